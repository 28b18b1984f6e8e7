"""A parameter server: gradients in, parameters out, updates, replicas and hand-overs of blocks."""

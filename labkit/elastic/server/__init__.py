"""A parameter server: blocks, their updates, replicas and hand-overs."""

"""A worker, synchronous or asynchronous: it computes gradients, pushes them to servers and pulls parameters."""

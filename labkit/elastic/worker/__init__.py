"""A worker, synchronous or asynchronous: gradients, and which servers they go to."""

"""A server's process: the memory of its slices, adding and folding, replicas, and checkpoints."""

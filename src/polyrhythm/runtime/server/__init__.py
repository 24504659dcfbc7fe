"""A server's process: memory of slices, adding, folding, replicas."""

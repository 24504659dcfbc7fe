"""A simulated server's process."""

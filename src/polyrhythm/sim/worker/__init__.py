"""A simulated worker's process."""

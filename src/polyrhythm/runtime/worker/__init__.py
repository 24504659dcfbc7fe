"""A worker's process below the training loop."""

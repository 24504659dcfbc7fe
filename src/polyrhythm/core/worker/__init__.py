"""A worker: the machine between the training loop and the servers."""

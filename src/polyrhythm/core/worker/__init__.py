"""A worker: the state machine between the user's training loop and the servers, and its parts."""

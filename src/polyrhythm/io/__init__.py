"""The only sockets, shared memory and files."""

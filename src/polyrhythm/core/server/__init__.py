"""A server: the state machine that decides what happens to the slices of a server, and its
parts."""

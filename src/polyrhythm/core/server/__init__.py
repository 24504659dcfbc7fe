"""A server: the machine that decides what happens to its slices, and that machine's parts."""

"""The links of a process: handshakes, listening sockets, and the threads that read links."""

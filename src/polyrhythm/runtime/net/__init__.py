"""Links of a process: handshakes, listeners and the threads that read."""

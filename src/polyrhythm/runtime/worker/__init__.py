"""The part of a worker's process below the user's training loop: links, buffers and the machine."""

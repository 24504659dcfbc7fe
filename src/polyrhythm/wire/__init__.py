"""Frames and typed messages as bytes, without I/O. Encoding returns a list of buffers and does not
copy payloads."""

"""Compares the scripts of `examples/` with plain torch."""

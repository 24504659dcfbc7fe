"""Arithmetic on flat buffers: slice views, aggregates, updaters. The only layer that needs torch."""

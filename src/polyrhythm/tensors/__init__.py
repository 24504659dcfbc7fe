"""Arithmetic on flat buffers of parameters: views of slices, aggregates and updaters."""

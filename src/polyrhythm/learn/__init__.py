"""The user's side: the worker and optimizer that a training loop uses, data sets, and built-in
jobs."""

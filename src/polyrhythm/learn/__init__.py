"""The classes that a user's training loop uses (the worker and its optimizer), data sets, and
built-in jobs."""

"""The journal of a run, and all texts and tables that are made from it."""

"""Measures how much checkpoints slow training down, and how soon a resumed job trains."""

"""Public data sets: which are known, where they are looked for, and how they are fetched and read."""

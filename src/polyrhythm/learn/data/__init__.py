"""Public data sets: the catalogue, and how sets are found, fetched and read."""

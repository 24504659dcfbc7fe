"""Which worker visits which points."""

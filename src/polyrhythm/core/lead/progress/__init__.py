"""How far a job has come: its goals, its objective, whether it learns, and sums for the journal."""

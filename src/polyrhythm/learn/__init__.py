"""What users write and pick: the torch loop and the jobs."""

"""What a job keeps beyond its end: models and checkpoints, in a folder or an object store."""

"""Models and checkpoints, which a job writes to a folder or an object store."""

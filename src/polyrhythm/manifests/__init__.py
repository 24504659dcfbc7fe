"""Manifests: files with which a launcher such as Kubernetes, Slurm, systemd or Docker Compose runs a
job. They contain the commands that a user would type, made from the options of `train`."""

"""Engines, which start the processes of a job: `local` (subprocesses, the default) and `inline`
(everything in this process)."""

"""Who starts processes: `local` (subprocesses, the default), `inline` (all in this process)."""

"""How much memory this host can still give to a process."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_nbytes() -> int | None:
    """The memory that new allocations can use without swapping; None if this system does not say."""
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None

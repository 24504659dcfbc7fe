"""How much memory this host can still give to a process."""

_MEMINFO = "/proc/meminfo"
_MOST_NBYTES = 4096


def available_nbytes() -> int | None:
    """The memory that new allocations can use without swapping; None if this system does not say."""
    try:
        # The file is read unbuffered and as bytes to save time, because this runs for every chunk
        # that arrives.
        with open(_MEMINFO, "rb", buffering=0) as file:
            _, _, rest = file.read(_MOST_NBYTES).partition(b"MemAvailable:")
        return int(rest.split(None, 1)[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None

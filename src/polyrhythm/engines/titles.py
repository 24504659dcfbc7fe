"""The titles of processes, as `ps` and `top` show them: `polyrhythm: worker-3 of RUN`."""

import contextlib
import ctypes
from pathlib import Path

_ARG_START, _ARG_END = 48, 49
"""The fields of /proc/self/stat with the addresses of the command line (see proc(5))."""
_MOST_COMM = 15


def set_title(title: str, short: str = "") -> None:
    """Set the title of this process. A title that is longer than the command line of the process is
    cut. `short`: the title for programs that show at most 15 characters; by default the end of the
    title."""
    # some systems have no /proc/self/stat
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        # the text after the last parenthesis begins with field 3
        start, end = int(fields[_ARG_START - 3]), int(fields[_ARG_END - 3])
        if 0 < start < end:
            # Keep a 0 at the end, so that `ps` does not show the environment, which follows in
            # memory, as part of the title.
            room = end - start - 1
            text = title.encode()[:room].decode(errors="ignore").encode()
            ctypes.memmove(start, text.ljust(room, b"\0"), room)
        Path("/proc/self/comm").write_text((short or title)[:_MOST_COMM])

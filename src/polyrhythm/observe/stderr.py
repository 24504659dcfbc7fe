"""stderr, as the display of progress uses it. *Progress that cannot be written does not end the job:*
the reader of a pipe may have ended, the terminal may be closed, or the disk may be full."""

import contextlib
import errno
import os
import sys
from typing import IO, Any, cast

from rich.console import Console


class _Unfailing:
    """A file that drops what cannot be written."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        """If no process can read this file any more, send the content of its buffer, and all later
        output, to the null device. Otherwise Python would try to write the buffer again when it
        ends, and fail."""
        if error.errno not in (errno.EPIPE, errno.EIO):
            return
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._file.fileno())
            os.close(null)


def stderr_console() -> Console:
    """stderr of this process. In a notebook it is plain text below the cell, without a table."""
    notebook = Console(stderr=True).is_jupyter
    return Console(
        file=None if sys.stderr is None else cast(IO[str], _Unfailing(sys.stderr)),
        stderr=True,
        highlight=False,
        # rich must leave a word between two colons as it is, and need not load its table of emoji
        emoji=False,
        soft_wrap=True,
        force_terminal=False if notebook else None,
        force_jupyter=False,
    )

"""What the nursery says of the processes it starts, line by line.

*Several lines may come at once: what was read together is at hand, whether or not more comes.*
"""

import signal
import socket
from collections.abc import Callable, Iterator

import msgspec

from polyrhythm.engines.requests import Exit
from polyrhythm.errors import JobFailed


def ending(status: int) -> str:
    """How a process ended, in words; `status` is negative for a signal."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


class Exits:
    def __init__(self, nursery: socket.socket, how: Callable[[], str]) -> None:
        """`how` is asked how the nursery ended, once its socket is closed."""
        self.nursery = nursery
        self._how = how
        self._unread = b""

    def next(self) -> Exit:
        """Waits for it."""
        while b"\n" not in self._unread:
            self._read()
        line, _, self._unread = self._unread.partition(b"\n")
        return msgspec.json.decode(line, type=Exit)

    def at_hand(self) -> Iterator[Exit]:
        """Those that were read already, without waiting."""
        while b"\n" in self._unread:
            yield self.next()

    def read(self) -> Iterator[Exit]:
        """There is something to read: those that are whole by then."""
        self._read()
        yield from self.at_hand()

    def close(self) -> None:
        self.nursery.close()

    def _read(self) -> None:
        try:
            part = self.nursery.recv(65536)
        except ConnectionResetError:  # it left something unread
            part = b""
        if not part:
            raise JobFailed(f"the process that starts the others died ({self._how()})")
        self._unread += part

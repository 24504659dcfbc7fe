"""What the nursery says of the processes it starts, line by line.

*Several lines may come at once: what was read together is at hand, whether or not more comes.*
"""

import socket
from collections.abc import Iterator

import msgspec

from polyrhythm.engines.requests import Fate
from polyrhythm.errors import JobFailed


class Fates:
    def __init__(self, nursery: socket.socket) -> None:
        self.nursery = nursery
        self._unread = b""

    def next(self) -> Fate:
        """Waits for it."""
        while b"\n" not in self._unread:
            self._read()
        line, _, self._unread = self._unread.partition(b"\n")
        return msgspec.json.decode(line, type=Fate)

    def at_hand(self) -> Iterator[Fate]:
        """Those that were read already, without waiting."""
        while b"\n" in self._unread:
            yield self.next()

    def read(self) -> Iterator[Fate]:
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
            raise JobFailed("the process that starts the others died; see above")
        self._unread += part

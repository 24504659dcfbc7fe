"""One thread that waits for many local links: their frames are small, and a thread each is slower."""

import os
import selectors
import threading
from collections.abc import Callable

from polyrhythm.io.stream import StreamLink


class Poller:
    """`poll` waits, then calls what was registered for each link that has something to read."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._calm)
        self._lock = threading.Lock()
        self._closed = False

    def add(self, link: StreamLink, ready: Callable[[], None]) -> None:
        self._selector.register(link, selectors.EVENT_READ, ready)

    def remove(self, link: StreamLink) -> None:
        try:
            self._selector.unregister(link)
        except KeyError:
            return  # its end was noticed twice: by reading and by closing

    def poll(self, timeout_s: float | None = None) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def wake(self) -> None:
        """Make the waiting thread look up. Calls before it does count once."""
        with self._lock:
            if not self._closed:
                try:
                    os.write(self._waker, b"!")
                except BlockingIOError:
                    return  # it has been woken thousands of times and will look up

    def _calm(self) -> None:
        os.read(self._woken, 4096)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._selector.close()
                os.close(self._woken)
                os.close(self._waker)

"""Lets one thread read many links. For small frames this is faster than one thread per link."""

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Pollable(Protocol):
    """A link or a listening socket."""

    def fileno(self) -> int: ...


class Poller:
    """`poll` waits for readable links, then calls the registered function of each of them once. A
    function returns True if it has left messages unread that were already taken from the socket.
    The next `poll` then calls it again, after the functions of the other links.

    One thread calls `poll`; any thread may call the other methods.
    """

    def __init__(self) -> None:
        self.idle_ns = 0
        """The total time that `poll` has waited."""
        self._poll = select.poll()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._ready: dict[int, Callable[[], bool | None]] = {self._woken: self._calm}
        self._unfinished: set[int] = set()
        self._poll.register(self._woken, _READABLE)
        self._lock = threading.Lock()
        self._polling: int | None = None
        self._closed = False

    def add(self, link: Pollable, ready: Callable[[], bool | None]) -> None:
        self._ready[link.fileno()] = ready
        self._poll.register(link.fileno(), _READABLE)
        self.wake()

    def remove(self, link: Pollable) -> None:
        fd = link.fileno()
        if self._ready.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def poll(self, timeout_s: float) -> bool:
        """Wait for readable links and call their functions. Returns whether a function has left
        messages unread."""
        self._polling = threading.get_ident()
        began_ns = time.monotonic_ns()
        before, self._unfinished = self._unfinished, set()
        events = self._poll.poll(0 if before else timeout_s * 1e3)
        self.idle_ns += time.monotonic_ns() - began_ns
        for fd in dict.fromkeys([*(fd for fd, _ in events), *before]):
            ready = self._ready.get(fd)
            if ready is not None and ready():
                self._unfinished.add(fd)
        return bool(self._unfinished)

    def wake(self) -> None:
        """Make `poll` return at once, unless the calling thread is the one that polls."""
        if threading.get_ident() == self._polling:
            return
        with self._lock:
            if not self._closed:
                try:
                    os.write(self._waker, b"!")
                except BlockingIOError:
                    return  # the pipe is full of earlier wake-ups, so `poll` returns anyway

    def _calm(self) -> bool:
        os.read(self._woken, 4096)
        return False

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._woken)
                os.close(self._waker)

"""Collects what a process has received over its links, until it tells the lead. Several threads
read links."""

import threading
import time

from polyrhythm.core.placement.bursts import Bursts
from polyrhythm.wire.messages import Received


class Meter:
    def __init__(self) -> None:
        self._bursts = Bursts()
        self._lock = threading.Lock()
        self._news = False

    def add(self, peer: str, began_ns: int, ended_ns: int, nbytes: int) -> None:
        with self._lock:
            self._bursts.add(peer, began_ns, ended_ns, nbytes)
            self._news = True

    def take(self) -> Received | None:
        """The measurements since the last report, if another one is due."""
        if not self._news:
            return None
        with self._lock:
            received = self._bursts.take(time.monotonic_ns())
            self._news = self._news and received is None
            return received

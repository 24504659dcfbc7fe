"""Measures how a worker spends its time: computing, waiting and transferring. The trailer of each
contribution reports these times.

*Time in which the process was stopped does not count as computing* (`core/liveness.py` finds out how
long that was).
"""

import threading
import time
from collections.abc import Callable

from polyrhythm.core.liveness import Pauses
from polyrhythm.io.limits import usable_cores

_EVERY_NS = 500_000_000
"""The time between two calls of `look`, until `look_every` sets another."""


def running_time() -> Callable[[], int]:
    """A clock that gives a lower bound of this process's computing time: the CPU time of the
    calling thread, or the CPU time of all threads divided by the number of cores, whichever is
    longer."""
    cores = usable_cores()
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: time.process_time_ns() // cores
    own = time.pthread_getcpuclockid(threading.get_ident())

    def ran_ns() -> int:
        whole_ns = time.process_time_ns() // cores
        try:
            return max(time.clock_gettime_ns(own), whole_ns)
        # the clock of the user's thread cannot be read any more: the thread has ended
        except OSError:
            return whole_ns

    return ran_ns


class Timesheet:
    """The thread that computes must make this object. Any thread may call `look`."""

    def __init__(self) -> None:
        self._running_time = running_time()
        self._pauses = Pauses(_EVERY_NS, time.monotonic_ns(), self._running_time())
        self._looking = threading.Lock()
        self._stopped_ns = 0
        """The total of the pauses that `computed_ns` must not subtract: those before the worker
        resumed, and those in excluded time."""
        self.waited_ns = 0
        self.transferred_ns = 0
        self.resumed_ns = time.monotonic_ns()
        """When the user's code got the parameters, plus all later excluded time."""
        self._interval_ns = 0

    def look_every(self, seconds: float) -> None:
        """Set the time between two calls of `look`."""
        self._pauses.every_ns = round(seconds * 1e9)

    def look(self) -> None:
        """Find out whether the process was stopped since the last call."""
        with self._looking:
            self._pauses.look(time.monotonic_ns(), self._running_time())

    def resume(self) -> None:
        """Begin to count computing time: the worker has its parameters."""
        self.look()
        self._stopped_ns = self._pauses.total_ns
        self.resumed_ns = time.monotonic_ns()

    def computed_ns(self, until_ns: int | None = None) -> int:
        """The computing time of the user's code: the time since it got the parameters, without
        pauses of the process and without excluded time."""
        self.look()
        had_ns = (time.monotonic_ns() if until_ns is None else until_ns) - self.resumed_ns
        return max(0, had_ns - (self._pauses.total_ns - self._stopped_ns))

    def exclude_time(self, nanoseconds: int) -> None:
        """Do not count this time as computing."""
        self.resumed_ns += nanoseconds

    def resumed_late(self, nanoseconds: int) -> None:
        """Count this time as transferring instead of computing: the device got the parameters this
        much later than the host."""
        self.resumed_ns += nanoseconds
        self.transferred_ns += nanoseconds

    def on_exchanged(self, began_ns: int, idle_ns: int) -> None:
        """Divide the time in which the worker sent a contribution and got a new version into
        waiting and transferring. `began_ns`: when it began to send. `idle_ns`: how long its thread
        has since been idle. That counts as waiting, even if other threads sent or read meanwhile;
        the rest (filling buffers, sending, reading) counts as transferring.

        `idle_ns` may exceed the whole time: while a worker rejoins, another thread connects while
        the user's thread waits, and both count as idle.
        """
        took_ns = self.resumed_ns - began_ns
        self.waited_ns = min(idle_ns, took_ns)
        self.transferred_ns = took_ns - self.waited_ns

    def trained_through(self, began_ns: int) -> None:
        """Count the time in which the worker sent a contribution as transferring. The worker
        continues to compute without waiting for a version."""
        self.resume()
        self.waited_ns = 0
        self.transferred_ns = self.resumed_ns - began_ns

    def waited_for_version(self, began_ns: int) -> int:
        took_ns = time.monotonic_ns() - began_ns
        self._exclude_pauses(began_ns)
        self.waited_ns += took_ns
        self.resumed_ns += took_ns
        return took_ns

    def on_rebased(self, began_ns: int, *, rejoined: bool) -> int:
        """Count the time in which the worker rebased its parameters. `began_ns`: when that began.
        Returns how long it took. `rejoined`: the worker has rejoined, so the time before `began_ns`
        is not counted."""
        if rejoined:
            self.waited_ns = self.transferred_ns = 0
            self.resumed_ns = began_ns
            self._stopped_ns = self._pauses.total_ns - self._pauses.since(began_ns)
        took_ns = time.monotonic_ns() - began_ns
        self._exclude_pauses(began_ns)
        self.transferred_ns += took_ns
        self.resumed_ns += took_ns
        return took_ns

    def _exclude_pauses(self, began_ns: int) -> None:
        """Do not subtract the pauses since `began_ns` from the computing time, because the caller
        excludes all time since then."""
        self.look()
        self._stopped_ns += self._pauses.since(began_ns)

    def begin_interval(self) -> None:
        """Begin the interval of this round, for policies whose rounds end by the clock."""
        self._interval_ns = time.monotonic_ns()

    def interval_left_ns(self, interval_ns: int) -> int:
        return self._interval_ns + interval_ns - time.monotonic_ns()

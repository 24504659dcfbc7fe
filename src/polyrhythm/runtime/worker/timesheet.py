"""Where a worker's time goes: computing, waiting and transferring, for the trailer to say.

*Time in which the process was stopped is not computing* (`core/pauses.py` decides how long that was).
"""

import threading
import time
from collections.abc import Callable

from polyrhythm.core.pauses import Pauses
from polyrhythm.io.cores import usable_cores

_EVERY_NS = 500_000_000
"""How often `look` is called until the job says otherwise."""


def running_time() -> Callable[[], int]:
    """A clock of the time that this process has computed at least: the CPU time of the calling thread,
    or that of all threads divided by the number of cores, whichever is longer."""
    cores = usable_cores()
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: time.process_time_ns() // cores
    own = time.pthread_getcpuclockid(threading.get_ident())

    def ran_ns() -> int:
        whole_ns = time.process_time_ns() // cores
        try:
            return max(time.clock_gettime_ns(own), whole_ns)
        except OSError:  # that thread has ended
            return whole_ns

    return ran_ns


class Timesheet:
    """Made by the thread that computes; any thread may `look`."""

    def __init__(self) -> None:
        self._running_time = running_time()
        self._pauses = Pauses(_EVERY_NS, time.monotonic_ns(), self._running_time())
        self._looking = threading.Lock()
        self._stopped_ns = 0
        """The pauses before the worker resumed, and those in time that is excluded."""
        self.waited_ns = 0
        self.transferred_ns = 0
        self.resumed_ns = time.monotonic_ns()
        """Since when the user's code has the parameters, later by the time that is excluded."""
        self._interval_ns = 0

    def look_every(self, seconds: float) -> None:
        """How often `look` is called from now on."""
        self._pauses.every_ns = round(seconds * 1e9)

    def look(self) -> None:
        """Find out whether the process was stopped since the last look."""
        with self._looking:
            self._pauses.look(time.monotonic_ns(), self._running_time())

    def resume(self) -> None:
        """The parameters are here: the clock of computing starts."""
        self.look()
        self._stopped_ns = self._pauses.total_ns
        self.resumed_ns = time.monotonic_ns()

    def computed_ns(self, until_ns: int | None = None) -> int:
        """How long the user's code has had the parameters, while the process ran."""
        self.look()
        had_ns = (time.monotonic_ns() if until_ns is None else until_ns) - self.resumed_ns
        return max(0, had_ns - (self._pauses.total_ns - self._stopped_ns))

    def exclude_time(self, nanoseconds: int) -> None:
        """Do not count this time as computing."""
        self.resumed_ns += nanoseconds

    def exchanged(self, began_ns: int, idle_ns: int) -> None:
        """The worker has sent something and resumed. Its own thread was idle for `idle_ns` meanwhile:
        that is waiting, even if other threads sent or read. The rest (filling, sending and reading) is
        transferring."""
        self.waited_ns = idle_ns
        self.transferred_ns = self.resumed_ns - began_ns - idle_ns

    def trained_through(self, began_ns: int) -> None:
        """The worker has sent something, and computes on."""
        self.resume()
        self.waited_ns = 0
        self.transferred_ns = self.resumed_ns - began_ns

    def waited_for_version(self, began_ns: int) -> int:
        took_ns = time.monotonic_ns() - began_ns
        self._exclude_pauses(began_ns)
        self.waited_ns += took_ns
        self.resumed_ns += took_ns
        return took_ns

    def rebased(self, began_ns: int, *, anew: bool) -> int:
        """Return how long it took. `anew`: the steps before belong to an incarnation that is over."""
        if anew:
            self.waited_ns = self.transferred_ns = 0
            self.resumed_ns = began_ns
            self._stopped_ns = self._pauses.total_ns - self._pauses.since(began_ns)
        took_ns = time.monotonic_ns() - began_ns
        self._exclude_pauses(began_ns)
        self.transferred_ns += took_ns
        self.resumed_ns += took_ns
        return took_ns

    def _exclude_pauses(self, began_ns: int) -> None:
        """Pauses since `began_ns` lie in time that is excluded as a whole."""
        self.look()
        self._stopped_ns += self._pauses.since(began_ns)

    def begin_interval(self) -> None:
        """Where rounds end by the clock: start the clock of this round."""
        self._interval_ns = time.monotonic_ns()

    def interval_left_ns(self, interval_ns: int) -> int:
        return self._interval_ns + interval_ns - time.monotonic_ns()

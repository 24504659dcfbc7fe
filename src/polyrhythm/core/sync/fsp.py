"""FSP: rounds by time. When the interval ends, all contribute what they have (FSP §3).

*Central: the lead says when the interval is over. Semi: each worker runs the interval on its own
timer, shortened by how late its contributions arrived before, so that all arrive together; the lead
still opens the next round. A worker that has passed over all of its points asks for the barrier.* The
barrier itself is BSP's, timer and all.
"""

from dataclasses import replace

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.bsp import Bsp
from polyrhythm.core.sync.interval import Interval, Measured
from polyrhythm.core.sync.lateness import Lateness
from polyrhythm.core.sync.policy import (
    Arrived,
    Asked,
    Decision,
    Left,
    Opened,
    PolicyEvent,
    Terms,
    Tick,
)
from polyrhythm.core.sync.reading import Reading
from polyrhythm.core.sync.timer import Timer

_PAUSE = Reason("interval-over")


class Fsp:
    kinds = frozenset({"gradient", "local", "statistics"})
    rounds = True

    def __init__(self, timer: Timer, interval: Interval, *, semi: bool) -> None:
        self._barrier = Bsp(timer)
        self._interval = interval
        self._lateness = Lateness()
        self._semi = semi
        self._terms = interval.next()
        self._opened_ns = 0
        self._pause_ns: int | None = None
        self._asked = False
        """Somebody had passed over all of its points before the interval was over."""
        self._worked_ns = 0
        self._arrivals: dict[int, int] = {}
        self._phi_ns = 0
        """The mean over workers from pause to resume, of the last round."""
        self._reading = Reading()

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        match event:
            case Opened(_):
                self._open(now_ns)
            case Arrived(worker, _, trailer):
                self._arrivals[worker] = now_ns
                if not self._asked:
                    interval_ns = self._terms.interval_ns
                    self._lateness.arrived(worker, self._opened_ns, interval_ns, now_ns)
                if trailer is not None:
                    self._reading.count(trailer)
            case Left(worker):
                self._arrivals.pop(worker, None)
                self._lateness.forget(worker)
        decision = self._barrier.on(event, now_ns)
        if decision.fold:
            return replace(decision, said=self._close())
        return self._pause(event, decision, now_ns)

    def _pause(self, event: PolicyEvent, decision: Decision, now_ns: int) -> Decision:
        """The interval is over, or somebody has nothing left to do in it."""
        central = not self._semi and isinstance(event, Tick)
        over = self._pause_ns is not None and now_ns >= self._pause_ns
        if self._pause_ns is not None and ((central and over) or isinstance(event, Asked)):
            self._pause_ns = None
            self._asked = isinstance(event, Asked)
            self._worked_ns = now_ns - self._opened_ns
            return replace(decision, reason=_PAUSE, pause=True)
        wake_ns = decision.wake_at
        if not self._semi and self._pause_ns is not None:
            wake_ns = self._pause_ns if wake_ns is None else min(wake_ns, self._pause_ns)
        return replace(decision, wake_at=wake_ns)

    def _open(self, now_ns: int) -> None:
        waits = [now_ns - at_ns for at_ns in self._arrivals.values()]
        if waits:
            self._phi_ns = round(sum(waits) / len(waits))
        self._arrivals.clear()
        self._opened_ns = now_ns
        self._pause_ns = now_ns + self._terms.interval_ns
        self._asked = False
        self._worked_ns = self._terms.interval_ns

    def _close(self) -> Reason | None:
        """The fold is decided: what this round measured decides over the next one's interval."""
        self._pause_ns = None
        reading, self._reading = self._reading, Reading()
        said = self._interval.closed(
            Measured(self._worked_ns, self._phi_ns, reading.objective, reading.micro_ns)
        )
        self._terms = self._interval.next()
        return said

    def terms(self, worker: int) -> Terms:
        interval_ns = self._terms.interval_ns
        if self._semi:
            interval_ns = self._lateness.own_interval(worker, interval_ns)
        return Terms(interval_ns=interval_ns, probe=self._terms.probe)

    def why(self) -> Waiting:
        return self._barrier.why()

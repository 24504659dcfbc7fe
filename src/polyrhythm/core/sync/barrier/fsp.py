"""FSP: rounds end by time. When the interval is over, every worker contributes the points that it
has visited so far (FSP §3).

With central coordination, the lead tells the workers when the interval is over. With
semi-centralised coordination, each worker measures the interval with its own timer, and the lead
only opens the next round. A worker whose contributions arrive late has a shorter timer, so that all
arrive together (`lateness`). A worker that has visited all of its points asks the lead to end the
round.

The barrier is that of BSP, with its timer. With `--abandon` the round closes without workers that
exceed the patience (`abandoning`). Rounds that measure the objective wait for every worker's part
of the sample.
"""

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.barrier.abandoning import parse_patience
from polyrhythm.core.sync.barrier.bsp import Bsp
from polyrhythm.core.sync.barrier.measurement import RoundMeasurement, WarmUp
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.core.sync.interval.fixed import Interval, IntervalTerms, Measured, parse_interval
from polyrhythm.core.sync.policy import (
    Asked,
    Decision,
    Left,
    MemberContributed,
    Opened,
    PolicyEntry,
    PolicyEvent,
    RoundTerms,
    TimePassed,
    Traits,
)
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

_RECENT = 0.3
_ALONE = 2
"""The first two contributions of a worker are not averaged: the second one replaces the first."""


class _Known(msgspec.Struct, gc=False):
    """The measurements of one worker."""

    times: int = 0
    """The number of contributions that were measured."""
    late_ns: float = 0.0
    own_ns: int | None = None
    probe_ns: int = 0


class Lateness(msgspec.Struct):
    """Semi-centralised coordination (FSP §5.2): late workers stop earlier, so that all arrive
    together.

    Every worker measures the interval with its own timer. The interval is shortened by the mean
    lateness of the worker's contributions, but never to less than half. Lateness is computed
    relative to the unshortened interval. Otherwise the correction would reduce its own input, and
    half of the delay would remain.

    The first measurement of a worker is dropped when the second one comes, because a process's
    first step takes many times as long as its others. The time to evaluate the probe sample does
    not count as lateness. In rounds that begin with the probe sample, the interval of each worker
    is shortened by the time that it needs for the sample beyond that of the fastest worker.
    """

    _known: dict[int, _Known] = {}
    _fastest_ns: int | None = None
    """The time that the fastest worker needs for its part of the probe sample; None if it must
    be calculated again."""

    def _of(self, worker: int) -> _Known:
        known = self._known.get(worker)
        if known is None:
            known = self._known[worker] = _Known()
        return known

    def own_interval(self, worker: int, interval_ns: int, *, probe: bool = False) -> int:
        """The interval of this worker in the next round."""
        known = self._of(worker)
        late_ns = round(known.late_ns)
        if probe and known.probe_ns:
            late_ns += known.probe_ns - self._fastest()
        known.own_ns = interval_ns - max(0, min(late_ns, interval_ns // 2))
        return known.own_ns

    def _fastest(self) -> int:
        if self._fastest_ns is None:
            probes_ns = (known.probe_ns for known in self._known.values() if known.probe_ns)
            self._fastest_ns = min(probes_ns, default=0)
        return self._fastest_ns

    def on_arrived(self, worker: int, opened_ns: int, now_ns: int, probe_ns: int = 0) -> None:
        """Measure a worker's contribution to the round that opened at `opened_ns`.

        A contribution that arrives far too early is ignored: the worker had visited all of its
        points and did not wait for its timer.
        """
        known = self._of(worker)
        if probe_ns:
            known.probe_ns = probe_ns
            self._fastest_ns = None
        own_ns = known.own_ns
        took_ns = now_ns - opened_ns - probe_ns
        if own_ns is None or 2 * took_ns < own_ns:
            return
        known.times += 1
        weight = _RECENT if known.times > _ALONE else 1.0
        known.late_ns += weight * (took_ns - own_ns - known.late_ns)

    def forget(self, worker: int) -> None:
        self._known.pop(worker, None)
        self._fastest_ns = None


COORDINATIONS = ("central", "semi")
_PAUSE = Reason("interval-over")
_MAY_PAUSE = (TimePassed, Asked)


class Fsp(msgspec.Struct):
    traits: ClassVar[Traits] = Traits(
        rounds=True,
        kinds=frozenset({"gradient", "local", "statistics"}),
        preferred_kind="local",
        timed=True,
        gathers=True,
    )

    _barrier: Bsp
    _interval: Interval
    _semi: bool
    _patience_ns: int | None = None
    _lateness: Lateness = msgspec.field(default_factory=Lateness)
    _opened_ns: int = 0
    _pause_ns: int | None = None
    _over_ns: int | None = None
    """When the interval of the open round ends, or when it was ended at a worker's request."""
    _asked: bool = False
    """Whether a worker had visited all of its points before the interval was over."""
    _worked_ns: int = 0
    _pass_ns: int | None = None
    """The fastest worker's time for all of its points, when it last asked to end a round."""
    _measurement: RoundMeasurement = msgspec.field(default_factory=RoundMeasurement)
    _phi_ns: int = 0
    """The cost of the last typical barrier: no worker's first step and no measurement of the
    objective delayed it."""
    _probed: bool = False
    """Whether the round before this one measured the objective."""
    _warm_up: WarmUp = msgspec.field(default_factory=WarmUp)

    @property
    def _terms(self) -> IntervalTerms:
        """The terms of the open round, or of the next round while a fold is under way."""
        return self._interval.next()

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        if isinstance(event, MemberContributed):
            self._measure(event, now_ns)
        elif isinstance(event, Opened):
            self._open(now_ns)
        elif isinstance(event, Left):
            # the points of a worker that left go to the others, so their passes take longer from
            # now on
            self._pass_ns = None
            self._lateness.forget(event.worker)
            self._warm_up.left(event.worker)
        decision = self._barrier.on(event, now_ns)
        if self._patience_ns is not None and not decision.fold:
            decision = self._abandon(decision, now_ns)
        if decision.fold:
            return replace(decision, change=self._close())
        if self._pause_ns is not None and isinstance(event, _MAY_PAUSE):
            decision = self._pause(event, decision, self._pause_ns, now_ns)
        wake_ns = self._wake_ns(decision.wake_at, now_ns)
        return decision if wake_ns == decision.wake_at else replace(decision, wake_at=wake_ns)

    def _measure(self, event: MemberContributed, now_ns: int) -> None:
        report = event.report
        if not self._asked:
            probe_ns = 0 if report is None else report.probe_ns
            self._lateness.on_arrived(event.worker, self._opened_ns, now_ns, probe_ns)
        first = self._warm_up.on_arrived(event.worker)
        if report is not None:
            self._measurement.count(report, first=first)

    def _abandon(self, decision: Decision, now_ns: int) -> Decision:
        deadline_ns, over_ns = self._deadline_ns(), self._over_ns
        if deadline_ns is None or over_ns is None or now_ns < deadline_ns:
            return decision
        return self._barrier.fold_without_missing(decision, "abandoned", over_ns, now_ns)

    def _deadline_ns(self) -> int | None:
        """Until when workers at the barrier wait for the others; None if no worker waits or there
        is no limit."""
        if self._patience_ns is None or self._over_ns is None or self._terms.probe:
            return None
        first_ns = self._barrier.first_arrival_ns
        return None if first_ns is None else max(self._over_ns, first_ns) + self._patience_ns

    def _pause(
        self, event: PolicyEvent, decision: Decision, pause_ns: int, now_ns: int
    ) -> Decision:
        """Pause all workers if the interval is over, or if a worker has visited all of its
        points."""
        asked = isinstance(event, Asked)
        if not asked and (self._semi or now_ns < pause_ns):
            return decision
        self._pause_ns = None
        self._asked = asked
        self._worked_ns = now_ns - self._opened_ns
        if self._asked:
            self._pass_ns, self._over_ns = self._worked_ns, now_ns
        return replace(decision, reason=_PAUSE, pause=True)

    def _wake_ns(self, wake_ns: int | None, now_ns: int) -> int | None:
        """When to wake next: the earliest of the barrier's own time, the end of the interval and
        the deadline."""
        if not self._semi and self._pause_ns is not None:
            wake_ns = self._pause_ns if wake_ns is None else min(wake_ns, self._pause_ns)
        deadline_ns = None if self._patience_ns is None else self._deadline_ns()
        if deadline_ns is not None and deadline_ns > now_ns:
            wake_ns = deadline_ns if wake_ns is None else min(wake_ns, deadline_ns)
        return wake_ns

    def _open(self, now_ns: int) -> None:
        self._opened_ns = now_ns
        self._worked_ns = self._terms.interval_ns
        self._pause_ns = self._over_ns = now_ns + self._worked_ns
        self._asked = False

    def _close(self) -> Reason | None:
        """Use the measurements of this round to choose the interval of the next one."""
        self._pause_ns = self._over_ns = None
        measurement, self._measurement = self._measurement, RoundMeasurement()
        usual = not self._probed and not self._warm_up.in_last_round
        if usual:
            self._phi_ns = measurement.phi_ns
        self._probed = self._terms.probe
        # whether the round contains the first step of a process, which takes longer than others
        cold = self._warm_up.in_round
        self._warm_up.close()
        return self._interval.on_closed(
            Measured(
                self._worked_ns,
                self._phi_ns,
                measurement.objective,
                measurement.micro_ns,
                self._pass_ns,
                usual=usual,
                batches=0.0 if cold else measurement.batches,
                probe_ns=measurement.probe_ns,
            )
        )

    def terms(self, worker: int) -> RoundTerms:
        terms = self._terms
        interval_ns = terms.interval_ns
        if self._semi:
            interval_ns = self._lateness.own_interval(worker, interval_ns, probe=terms.probe)
        return RoundTerms(interval_ns=interval_ns, probe=terms.probe, probe_parts=terms.parts)

    def why(self) -> Waiting:
        return self._barrier.why()


def _build(job: JobSpec) -> Fsp:
    if job.coordination not in COORDINATIONS:
        known = ", ".join(COORDINATIONS)
        raise UsageError(f"--coordination {job.coordination!r} is not known: choose one of {known}")
    return Fsp(
        Bsp(Timer.parse(job.timer)),
        parse_interval(job.interval, job.kind),
        job.coordination == "semi",
        parse_patience(job.abandon),
    )


FSP = PolicyEntry(
    "fsp", "the duration of rounds is given, or found by measuring", Fsp.traits, _build
)

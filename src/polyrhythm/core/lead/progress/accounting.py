"""Counts contributions, points and times over rounds, for the journal.

One entry of the journal covers many rounds. The lead writes it one second after the previous one,
when a round closes for an unusual reason, and at the end of the job. Each full pass has its own
entry, so that the journal of a short job contains a curve too.

*Time counts as redone if a worker spent it on points that did not count and must be visited again,
because another worker has their chunk now, or because the round closed without them (`--abandon` of
fsp).* If a worker dies before it contributes, its compute time is not known.

The worker that arrives last in a round waits for no other worker, so its waiting time counts as the
round-trip time.

The objective in an entry is the mean over the points of its contributions. With kind statistics
every contribution contains the objective over all points, so the entry has the last of these
values.
"""

import statistics
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.core.sync.barrier.prediction import resource_usage
from polyrhythm.wire.messages import Trailer

_LINE_EVERY_NS = 10**9
_PASS_EVERY_NS = 10 * 10**6
"""The least time between two entries about passes. Without it, the passes of a tiny data set would
fill the journal."""
_MOST = 2**63 - 1
"""The upper limit of a sum. Numbers in the journal and in a snapshot of the lead have 64 bits, and
a worker may report arbitrary times."""
_ON_ARRIVAL = "on-arrival"
_ABANDONED = "abandoned"
_ALL_ARRIVED = "all-arrived"
_ROUTINE = (_ALL_ARRIVED, _ABANDONED, _ON_ARRIVAL)


@dataclass(slots=True)
class WorkerTotals:
    """The totals of one worker since the job began."""

    contributions: int = 0
    points: int = 0
    compute_ns: int = 0
    wait_ns: int = 0
    transfer_ns: int = 0
    redone_ns: int = 0
    skipped: int = 0
    """How many steps and contributions of this worker were left out because they were not
    finite."""
    without_step: int = 0
    """How many contributions of this worker were left out because the training loop had made no
    step."""

    def add_times(self, compute_ns: int, wait_ns: int, transfer_ns: int, redone_ns: int) -> None:
        self.compute_ns += compute_ns
        self.wait_ns += wait_ns
        self.transfer_ns += transfer_ns
        self.redone_ns += redone_ns
        if self.compute_ns + self.wait_ns + self.transfer_ns + self.redone_ns > _MOST:
            self.compute_ns = min(_MOST, self.compute_ns)
            self.wait_ns = min(_MOST, self.wait_ns)
            self.transfer_ns = min(_MOST, self.transfer_ns)
            self.redone_ns = min(_MOST, self.redone_ns)

    def fields(self) -> dict[str, int]:
        fields = {
            "contributions": self.contributions,
            "points": self.points,
            "compute_ns": self.compute_ns,
            "wait_ns": self.wait_ns,
            "transfer_ns": self.transfer_ns,
            "redone_ns": self.redone_ns,
        }
        if self.skipped:
            fields["skipped"] = self.skipped
        if self.without_step:
            fields["without_step"] = self.without_step
        return fields


@dataclass(slots=True)
class _Span:
    """The sums over all rounds since the journal's last entry about rounds."""

    rounds: int = 0
    contributions: int = 0
    points: int = 0
    objective: float = 0.0
    objective_weight: float = 0.0
    longest_ns: int = 0
    abandoned: int = 0
    """The number of rounds that closed without a worker that was still computing."""
    usage: float = 0.0
    """The sum over rounds of the resource usage (eq. 1 of PSP)."""
    usages: int = 0
    spreads_ns: list[int] = field(default_factory=list)
    """Per round, the time from the arrival of its first contribution to the arrival of its last
    one."""
    rtts_ns: list[int] = field(default_factory=list)
    """Round-trip times: how long the last worker to arrive in each round waited."""
    parts: int = 0
    """How many contributions were larger or smaller than the model, because they were quantised or
    had only some slices."""
    parts_nbytes: int = 0
    """The number of bytes in these contributions, as their workers report it."""


@dataclass(slots=True)
class Accounting:
    _round: int = 0
    """The last round that was closed."""
    whole_objectives: bool = False
    """Whether the objective of each contribution is computed over all points (kind statistics)."""
    workers: dict[int, WorkerTotals] = field(default_factory=dict)
    _span: _Span = field(default_factory=_Span)
    _line_ns: int = 0
    _round_ns: int = 0
    _computed_ns: list[int] = field(default_factory=list)
    """The compute time of each contribution of this round."""
    _first_ns: int = 0
    _last_ns: int = 0
    """When the first (`_first_ns`) and the last contribution of this round arrived."""
    _last: int = -1
    """The worker whose contribution arrived last in this round."""
    _last_to_arrive: set[int] = field(default_factory=set)
    """The workers that arrived last in a round and have not contributed since then."""
    points: int = 0
    """The number of points that have counted in this run."""
    passes: int = 0
    """The number of passes in the journal's last entry about a pass, or in the checkpoint from
    which the job continues."""
    _passed_ns: int = 0
    """When the journal's last entry about a pass was written."""
    _pass_objective: float = 0.0
    _pass_weight: float = 0.0
    """The sum of the weighted objectives, and of the weights, since the journal's last entry about
    a pass."""
    made: int = 0
    """The number of contributions of the whole job, including those that were left out."""

    def count(self, trailer: Trailer, points: int, now_ns: int = 0) -> None:
        worker, report = trailer.worker, trailer.report
        compute_ns = report.compute_ns
        if not self._computed_ns:
            self._first_ns = now_ns
        self._last_ns = now_ns
        totals = self.workers.get(worker)
        if totals is None:
            totals = self.workers[worker] = WorkerTotals()
        self.made += 1
        totals.contributions += 1
        totals.points += points
        self.points += points
        redone_ns = report.abandoned_ns
        visited = report.weight if report.visited < 0 else report.visited
        if points < visited:
            redone_ns += round(compute_ns * (1 - points / visited))
        totals.add_times(compute_ns, report.wait_ns, report.transfer_ns, redone_ns)
        if report.skipped:
            totals.skipped = min(_MOST, totals.skipped + report.skipped)
            self.made = min(_MOST, self.made + report.skipped)
        self._computed_ns.append(compute_ns)
        span = self._span
        self._last = worker
        if worker in self._last_to_arrive:
            self._last_to_arrive.remove(worker)
            # the first report of an incarnation contains the time of joining instead of a
            # round-trip time
            if trailer.sequence > 1:
                span.rtts_ns.append(report.wait_ns)
        span.contributions += 1
        span.points += points
        if report.nbytes >= 0:
            span.parts += 1
            span.parts_nbytes = min(_MOST, span.parts_nbytes + report.nbytes)
        if report.objective is None:
            return
        if self.whole_objectives:
            span.objective, span.objective_weight = report.objective, 1.0
            self._pass_objective, self._pass_weight = report.objective, 1.0
        else:
            weighted = report.objective * report.weight
            span.objective += weighted
            span.objective_weight += report.weight
            self._pass_objective += weighted
            self._pass_weight += report.weight

    def visit(self, worker: int, points: int) -> None:
        """Count the points that a worker has visited. The steps that it made with them belong to
        its earlier contributions."""
        if points:
            self.workers.setdefault(worker, WorkerTotals()).points += points
            self._span.points += points
            self.points += points

    def skip(self, worker: int, *, without_step: bool = False) -> int:
        """Count a contribution that this worker leaves out, because it is not finite, or because
        the training loop has made no step. Returns how many contributions the worker has left out
        for this reason."""
        totals = self.workers.setdefault(worker, WorkerTotals())
        self.made += 1
        if without_step:
            totals.without_step += 1
            return totals.without_step
        totals.skipped += 1
        return totals.skipped

    def passed(self, round_: int, passes: int, now_ns: int, final: bool) -> dict[str, Any] | None:
        """Note the number of full passes; all contributions so far are folded. Returns the fields
        of a journal entry about the passes since the last such entry, if one is due."""
        early = self._passed_ns and now_ns < self._passed_ns + _PASS_EVERY_NS
        if passes <= self.passes or (early and not final):
            return None
        objective = self._pass_objective / self._pass_weight if self._pass_weight else None
        self.passes, self._passed_ns = passes, now_ns
        self._pass_objective = self._pass_weight = 0.0
        return {"round": round_, "passes": passes, "points": self.points, "objective": objective}

    def close(
        self, round_: int, reason: str, passes: int, now_ns: int, final: bool
    ) -> dict[str, Any] | None:
        """Close all rounds up to this one; they are folded. Returns the fields of a journal entry
        if one is due."""
        span = self._span
        if self._round_ns and round_ > self._round:
            span.longest_ns = max(span.longest_ns, now_ns - self._round_ns)
        if round_ > self._round or not self._round_ns:
            span.rounds += round_ - self._round
            self._round, self._round_ns = round_, now_ns
            span.abandoned += reason == _ABANDONED
            if self._computed_ns and reason != _ON_ARRIVAL:
                span.usage += resource_usage(self._computed_ns)
                span.usages += 1
                span.spreads_ns.append(self._last_ns - self._first_ns)
                if reason == _ALL_ARRIVED:
                    self._last_to_arrive.add(self._last)
            self._computed_ns.clear()
        if reason in _ROUTINE and not final and now_ns < self._line_ns + _LINE_EVERY_NS:
            return None
        return self.line(round_, reason, passes, now_ns)

    def line(self, round_: int, reason: str, passes: int, now_ns: int) -> dict[str, Any]:
        """The fields of a journal entry that sums up all rounds since the last such entry."""
        span = self._span
        self._line_ns, self._span = now_ns, _Span()
        objective = span.objective / span.objective_weight if span.objective_weight else None
        return {
            "round": round_,
            "rounds": span.rounds,
            "contributions": span.contributions,
            "points": span.points,
            "objective": objective,
            "longest_s": span.longest_ns / 1e9,
            "usage": span.usage / span.usages if span.usages else None,
            "spread_ms": _median_ms(span.spreads_ns),
            "rtt_ms": _median_ms(span.rtts_ns),
            "abandoned": span.abandoned,
            "passes": passes,
            "reason": reason,
            "workers": {worker: totals.fields() for worker, totals in self.workers.items()},
            **({"pushed": _pushed(span)} if span.parts else {}),
        }


def _pushed(span: _Span) -> dict[str, int]:
    """The number of contributions whose size is not that of the model, and their size."""
    return {"contributions": span.parts, "nbytes": span.parts_nbytes}


def _median_ms(times_ns: list[int]) -> float | None:
    return statistics.median(times_ns) / 1e6 if times_ns else None

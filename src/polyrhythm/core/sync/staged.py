"""FSP's interval, found anew in every stage of training (FSP §3.3, multi-stage linear fitting).

*Measuring undoes nothing: five rounds in the order eta, eta | 2 eta | eta, eta, with the objective
read at both ends of each part. The mean of both sides stands at the same moment of training as the
middle, so the trend of training itself cancels.* Two points give the line g, and g the interval. A
stage is over after three checks in a row with under 80% of the promised gain.

The paper rolls back instead, and trains the same data twice. A check spans four rounds, because
reading the objective after every one would cost what it is meant to save. What a part gains must
stand out from what readings vary by: where it does not, every part can be made `repeat` times as
long.
"""

from dataclasses import dataclass
from itertools import pairwise

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.gain import Line
from polyrhythm.core.sync.terms import (
    FIRST_NS,
    Blind,
    Bounds,
    Measured,
    Terms,
    changed,
    raised,
)

_FACTOR = 4
_ENOUGH = 0.8
_CHECKS = 3
_SPAN = 4
_CLEARLY_LONGER = 1.2
_PARTS = ((1, 2), (2, 1), (1, 2))
"""How many eta a round of each part lasts, and how many rounds the part has."""


@dataclass(slots=True)
class _Stage:
    promised: float
    """Gain of the objective per second."""
    rounds: int = 0
    short: int = 0
    read: float | None = None
    elapsed_s: float = 0.0


class AutoInterval:
    """The first round, 200 ms, only tells what a pass takes. Without an
    objective the interval follows the barrier's cost, and the next reading is awaited."""

    def __init__(self, repeat: int = 1, work: float = 0.0) -> None:
        """`work`: the least share of the time that is work (`Bounds`)."""
        self._schedule = _schedule(repeat)
        self._bounds = Bounds(work)
        self._interval_ns = FIRST_NS
        self._measuring: list[Measured] | None = None
        self._stage: _Stage | None = None
        self._blind: Blind | None = None

    def next(self) -> Terms:
        if self._blind is not None:
            return Terms(self._blind.interval_ns, self._blind.probe)
        if self._measuring is not None:
            times, probe = self._schedule[len(self._measuring)]
            return Terms(times * self._interval_ns, probe)
        probe = self._stage is not None and self._stage.rounds % _SPAN == 0
        return Terms(self._interval_ns, probe)

    def closed(self, measured: Measured) -> Reason | None:
        unread = self.next().probe and measured.reading is None
        self._bounds.measured(measured)
        if self._blind is not None:
            return self._blind.closed() if measured.reading is None else self._see(self._blind)
        if unread:
            self._blind = Blind(self._bounds)
            self._measuring = self._stage = None
            return self._blind.reason()
        if self._measuring is not None:
            return self._learn(measured, self._measuring)
        if self._stage is not None:
            return self._check(measured, self._stage)
        return self._measure("interval-measuring")

    def _see(self, blind: Blind) -> Reason:
        self._interval_ns, self._blind = blind.interval_ns, None
        return self._measure("interval-measuring")

    def _measure(self, code: str, **fields: float) -> Reason:
        """Both lengths must be possible, so that they differ when they are tried."""
        self._stage = None
        self._measuring = []
        most_ns = max(self._bounds.low_ns, self._bounds.high_ns // 2)
        self._interval_ns = min(most_ns, self._bounds.clamp(self._interval_ns))
        return changed(code, self._interval_ns, **fields)

    def _learn(self, measured: Measured, rounds: list[Measured]) -> Reason | None:
        rounds.append(measured)
        if len(rounds) < len(self._schedule):
            return None
        phi, tried_ns = self._bounds.phi_ns / 1e9, self._interval_ns
        low_ns = self._bounds.clamp(tried_ns / _FACTOR)
        high_ns = self._bounds.clamp(tried_ns * _FACTOR)
        line = _line(rounds, self._schedule)
        eta = line.best_within(low_ns / 1e9, high_ns / 1e9, phi)
        self._interval_ns = round(eta * 1e9)
        self._measuring, self._stage = None, _Stage(line.gain(eta, phi))
        fields = {"before_ms": tried_ns / 1e6, "gain": self._stage.promised}
        return changed("interval-chosen", self._interval_ns, **fields)

    def _check(self, measured: Measured, stage: _Stage) -> Reason | None:
        if stage.rounds % _SPAN == 0:
            reading = measured.reading
            if stage.read is not None and reading is not None:
                gained = (stage.read - reading) / stage.elapsed_s
                enough = stage.promised - (1 - _ENOUGH) * abs(stage.promised)
                stage.short = stage.short + 1 if gained < enough else 0
                if stage.short == _CHECKS:
                    fields = {"gain": gained, "promised": stage.promised}
                    return self._measure("interval-stage-over", **fields)
            stage.read, stage.elapsed_s = reading, 0.0
        stage.elapsed_s += measured.elapsed_s
        stage.rounds += 1
        if self._bounds.allow(self._interval_ns):
            return None
        self._interval_ns = self._bounds.low_ns
        return raised(self._bounds)


def _schedule(repeat: int) -> list[tuple[int, bool]]:
    """Of each round: how many eta it lasts, and whether it opens with a reading. The last one only
    ends the last part."""
    rounds = [(times, at == 0) for times, many in _PARTS for at in range(repeat * many)]
    return [*rounds, (1, True)]


def _line(rounds: list[Measured], schedule: list[tuple[int, bool]]) -> Line:
    """Through what a second of work gained at eta and at 2 eta. Where the middle was not clearly
    longer (somebody had seen all points), nothing is known of longer ones: a level line."""
    ends = [at for at, (_, probe) in enumerate(schedule) if probe]
    before, middle, after = (_part(rounds[start : end + 1]) for start, end in pairwise(ends))
    sides = ((before[0] + after[0]) / 2, (before[1] + after[1]) / 2)
    if middle[0] < _CLEARLY_LONGER * sides[0]:
        return Line(0.0, sides[1])
    return Line.through(sides, middle)


def _part(rounds: list[Measured]) -> tuple[float, float]:
    """The mean length of a part's rounds, and what a second of them gained; the last one ends it."""
    *inside, end = rounds
    work_s = sum(round_.work_s for round_ in inside)
    gained = (inside[0].reading or 0.0) - (end.reading or 0.0)
    return work_s / len(inside), gained / work_s

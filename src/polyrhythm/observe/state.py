"""The state of a run: one pure fold over its journal. Everything that people see reads only this.

It is fed lines one by one, so that a run that is being written can be followed, and it looks at no
clock: the time is that of the last line. Kinds of line that it does not know change nothing.

A `waiting` line says how long something has been waited for when it was written (`since_s`) and in
how many seconds a timer ends that (`until_s`, or None); here both become moments of the journal.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

from polyrhythm.core.lead.learning import Finding, LearningState
from polyrhythm.observe.aggregates import MeanOverRounds, MedianOverRounds
from polyrhythm.observe.worker import Fields, WorkerState
from polyrhythm.wire.messages.reasons import Reason

_RECENT_S = 10.0
"""Speeds are those of the last ten seconds."""
_WAITING_HOLDS_S = 2.5
"""The lead repeats once a second what is waited for; what it does not repeat is over."""


@dataclass(frozen=True, slots=True)
class WaitingState:
    """What is waited for. Moments are those of the journal."""

    reason: Reason
    since_s: float
    until_s: float | None
    missing: tuple[int, ...]
    held: tuple[int, ...]
    """Who waits, where the lead says so."""
    seen_s: float
    """When the lead said so last."""


@dataclass(frozen=True, slots=True)
class Ended:
    at_s: float
    reason: Reason
    failed: bool


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the run's curve: what one `rounds` line said."""

    at_s: float
    round: int
    passes: int
    points: int
    objective: float | None


@dataclass(slots=True)
class Failover:
    """A server was lost: who noticed, how, what moved, how long that took."""

    server: int
    at_s: float
    noticed: Reason
    promoted: dict[str, int] = field(default_factory=dict)
    """Per server, how many slices it became the primary of."""
    seconds: float | None = None
    """Until every server followed; None: not yet."""
    replaced: bool = False
    """Another server has its number since."""


@dataclass(slots=True)
class RunState:
    at_s: float = 0.0
    """When the last line was written."""
    opened_s: float | None = None
    worked_s: float | None = None
    """When the last rounds were counted."""
    round: int = 0
    passes: int = 0
    contributions: int = 0
    points: int = 0
    objective: float | None = None
    finding: Finding | None = None
    """What the lead found last about the objective; None: nothing worth a line."""
    nbytes: int = 0
    """Of the model."""
    rate: float | None = None
    momentum: float | None = None
    """Of the model's optimizer when the job began; None: not known."""
    batch: int = 0
    """Points that users take at a time; 0: not known."""
    slices: dict[int, int] = field(default_factory=dict)
    """How many of them each server holds."""
    servers: list[int] = field(default_factory=list)
    silent: dict[int, float] = field(default_factory=dict)
    """Servers that were said to be silent, and when."""
    failovers: list[Failover] = field(default_factory=list)
    learning: int = 0
    """Copies of slices that are being restored or moved."""
    given_up: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Processes that died too often to be started again, and how, until they are back."""
    listening: str | None = None
    """Where others may join."""
    links: dict[str, str] = field(default_factory=dict)
    workers: dict[int, WorkerState] = field(default_factory=dict)
    members: int = 0
    """How many of them are present."""
    refused: list[Reason] = field(default_factory=list)
    abandoned: int = 0
    """Rounds that closed without somebody whose points took long."""
    timers: int = 0
    """Rounds that a timer closed."""
    moved_chunks: int = 0
    folds: dict[int, int] = field(default_factory=dict)
    waiting: WaitingState | None = None
    ended: Ended | None = None
    curve: list[Point] = field(default_factory=list)
    accuracies: list[tuple[float, float]] = field(default_factory=list)
    """When the mean of what the workers reported last changed, and to what."""
    _accuracy_sum: Fraction = Fraction(0)
    """Exact, so that the mean of equals is their value."""
    _accuracy_count: int = 0
    _usage: MeanOverRounds = field(default_factory=MeanOverRounds)
    _spread_ms: MedianOverRounds = field(default_factory=MedianOverRounds)
    _rtt_ms: MedianOverRounds = field(default_factory=MedianOverRounds)
    _samples: deque[tuple[float, dict[Any, Fields]]] = field(default_factory=deque)

    # -- what follows from it ------------------------------------------------------------------

    @property
    def present(self) -> list[WorkerState]:
        return [worker for worker in self.workers.values() if worker.present]

    @property
    def seconds(self) -> float:
        """From the opening of round 1 to the last rounds that were counted."""
        if self.opened_s is None or self.worked_s is None:
            return 0.0
        return self.worked_s - self.opened_s

    @property
    def usage(self) -> float | None:
        """The mean over rounds of what PSP's Eq. 1 says; None where there are none."""
        return self._usage.value

    @property
    def spread_ms(self) -> float | None:
        """From a round's first arrival to its last; None where there are none."""
        return self._spread_ms.value

    @property
    def way_s(self) -> float | None:
        """What who came last to a round waited: the way there and back. None where nobody did; 0 where
        nobody waits (psp)."""
        rtt_ms = self._rtt_ms.value
        return None if rtt_ms is None else rtt_ms / 1e3

    @property
    def accuracy(self) -> float | None:
        return self.accuracies[-1][1] if self.accuracies else None

    @property
    def pulls(self) -> int:
        """Versions that were read: one when a worker comes in, one after each contribution."""
        if self.opened_s is None:
            return 0
        return self.contributions + sum(worker.joins for worker in self.workers.values())

    def name_of(self, worker: Any) -> str:
        """A worker's name; what is not a known worker's number keeps its own words."""
        known = self.workers.get(worker) if isinstance(worker, int) else None
        if known is not None:
            return known.name
        return f"w{worker}" if isinstance(worker, int) else str(worker)

    # -- the fold ------------------------------------------------------------------------------

    def take(self, line: dict[str, Any]) -> None:
        at_s = max(self.at_s, float(line.get("at_s", self.at_s)))
        self.at_s = at_s
        if self.waiting is not None and at_s > self.waiting.seen_s + _WAITING_HOLDS_S:
            self.waiting = None
        handler = self._HANDLERS.get(line.get("what", ""))
        if handler is not None:
            handler(self, line)

    def _server_joined(self, line: dict[str, Any]) -> None:
        if line["server"] not in self.servers:
            self.servers.append(line["server"])
        for failover in self.failovers:
            if failover.server == line["server"]:
                failover.replaced = True
        self.given_up.pop(f"s{line['server']}", None)
        self.silent.pop(line["server"], None)

    def _server_left(self, line: dict[str, Any]) -> None:
        if line["server"] in self.servers:
            self.servers.remove(line["server"])

    def _silent(self, line: dict[str, Any]) -> None:
        self.silent[line["server"]] = self.at_s

    def _server_lost(self, line: dict[str, Any]) -> None:
        self._server_left(line)
        self.silent.pop(line["server"], None)
        self.failovers.append(Failover(line["server"], self.at_s, reason_of(line)))

    def _rerouting(self, line: dict[str, Any]) -> None:
        for failover in self._unfinished():
            failover.promoted.update(line.get("promoted", {}))

    def _rerouted(self, line: dict[str, Any]) -> None:
        for failover in self._unfinished():
            failover.seconds = self.at_s - failover.at_s
        if line.get("slices"):
            self.slices = {int(name[1:]): count for name, count in line["slices"].items()}

    def _unfinished(self) -> list[Failover]:
        return [failover for failover in self.failovers if failover.seconds is None]

    def _copied(self, line: dict[str, Any]) -> None:
        self.learning = line.get("learning", 0)

    def _listening(self, line: dict[str, Any]) -> None:
        self.listening = f"{line['host']}:{line['port']}"

    def _linked(self, line: dict[str, Any]) -> None:
        self.links[line["peer"]] = line["link"]

    def _placed(self, line: dict[str, Any]) -> None:
        self.nbytes = line["nbytes"]
        self.slices = dict(enumerate(line["slices"]))
        self.rate, self.momentum = line.get("rate"), line.get("momentum")

    def _joined(self, line: dict[str, Any]) -> None:
        worker = line["worker"]
        incarnation = line.get("incarnation", line.get("epoch"))
        known = self.workers.get(worker)
        self.given_up.pop(line["name"], None)
        if known is None:
            self.workers[worker] = WorkerState(worker, line["name"], self.at_s, incarnation)
            self.members += 1
            return
        self.members += not known.present
        if incarnation is None or known.incarnation != incarnation:
            known.joins += 1  # a `joined` and a `rejoined` may both tell of one coming back
        known.incarnation, known.left, known.left_s = incarnation, None, None

    def _given_up(self, line: dict[str, Any]) -> None:
        self.given_up[line["name"]] = line

    def _data(self, line: dict[str, Any]) -> None:
        self.batch = line.get("batch", 0)

    def _left(self, line: dict[str, Any]) -> None:
        self._part(line["worker"], reason_of(line))

    def _evicted(self, line: dict[str, Any]) -> None:
        self._part(line["worker"], Reason("silent-for", {"silent_s": line["silent_s"]}))

    def _part(self, worker: int, reason: Reason) -> None:
        known = self.workers.get(worker)
        if known is not None and known.present:
            known.left, known.left_s = reason, self.at_s
            self.members -= 1
        if self.waiting is not None and worker in self.waiting.missing:
            self._wait_on(self.waiting, self.at_s)
            missing = tuple(w for w in self.waiting.missing if w != worker)
            self.waiting = (
                replace(self.waiting, missing=missing, seen_s=self.at_s) if missing else None
            )

    def _rounds(self, line: dict[str, Any]) -> None:
        if self.opened_s is None:
            self.opened_s, self.waiting = self.at_s, None
        elif self.waiting is not None and line["round"] >= self.waiting.reason.fields.get(
            "round", line["round"] + 1
        ):
            self._wait_on(self.waiting, self.at_s)
            self.waiting = None
        self.worked_s = self.at_s
        rounds = line.get("rounds", 0)
        self._usage.take(line.get("usage"), rounds)
        self._spread_ms.take(line.get("spread_ms"), rounds)
        self._rtt_ms.take(line.get("rtt_ms"), rounds)
        self.round, self.passes = line["round"], line.get("passes", self.passes)
        self.contributions += line.get("contributions", 0)
        self.points += line.get("points", 0)
        self.abandoned += line.get("abandoned", 0)
        self.timers += line.get("reason") == "timer"
        # a mean that is not finite is null in a file; a `learning` line tells of it
        objective = line.get("objective") if _is_number(line.get("objective")) else None
        self.objective = self.objective if objective is None else objective
        self.curve.append(Point(self.at_s, self.round, self.passes, self.points, objective))
        self._measure(line.get("workers", {}))

    def _measure(self, workers: dict[Any, Fields]) -> None:
        """Nothing is made of it before somebody asks: there may be thousands, in thousands of lines."""
        self._samples.append((self.at_s, workers))
        while len(self._samples) > 2 and self._samples[1][0] <= self.at_s - _RECENT_S:
            self._samples.popleft()
        before_s, before = self._samples[0]
        for number, fields in workers.items():
            state = self.workers.get(int(number))
            if state is None:
                continue
            state.measured, state.before = fields, before.get(number, {})
            if state.empty_handed and fields.get("contributions"):
                state.empty_handed = False
            state.recent_s = self.at_s - max(before_s, state.joined_s)
            state.clock = fields.get("clock", state.clock)

    def _waiting(self, line: dict[str, Any]) -> None:
        until_s, fields = line.get("until_s"), line.get("fields") or {}
        now = WaitingState(
            Reason(line["reason"], fields),
            self.at_s - line.get("since_s", 0.0),
            None if until_s is None else self.at_s + until_s,
            tuple(fields.get("missing") or ()),
            tuple(fields.get("held") or ()),
            self.at_s,
        )
        self._wait_on(now, self.at_s)
        self.waiting = now

    def _wait_on(self, waiting: WaitingState, until_s: float) -> None:
        """Book the time since the last word about this wait on those who were missing then and
        still are. Before the first word they may have been as busy as the others were; and where
        all are missing nobody waits."""
        before = self.waiting
        if before is None or len(before.missing) >= self.members:
            return
        for worker in set(waiting.missing) & set(before.missing) & self.workers.keys():
            self.workers[worker].waited_for_s += max(0.0, until_s - before.seen_s)

    def _reported(self, line: dict[str, Any]) -> None:
        worker = self.workers.get(line["worker"])
        if worker is None:
            return
        # what is not a number, a journal writes as null
        metrics = {name: value for name, value in line["metrics"].items() if _is_number(value)}
        if "accuracy" in metrics:
            before = worker.reports.get("accuracy")
            self._accuracy_count += before is None
            self._accuracy_sum += Fraction(metrics["accuracy"]) - Fraction(before or 0.0)
            self.accuracies.append((self.at_s, float(self._accuracy_sum / self._accuracy_count)))
        worker.reports.update(metrics)

    def _refused(self, line: dict[str, Any]) -> None:
        self.refused.append(reason_of(line))

    def _empty_handed(self, line: dict[str, Any]) -> None:
        if line["worker"] in self.workers:
            self.workers[line["worker"]].empty_handed = True

    def _chunks(self, line: dict[str, Any]) -> None:
        moved = line.get("moved", 0)
        self.moved_chunks += moved if isinstance(moved, int) else len(moved)

    def _found(self, line: dict[str, Any]) -> None:
        self.finding = Finding.read(line)
        if self.finding.state is LearningState.NOT_FINITE:
            self.objective = None  # the one before says nothing about the model as it is

    def _ended(self, line: dict[str, Any]) -> None:
        self.ended = Ended(self.at_s, reason_of(line), line.get("failed", False))
        self.round = line.get("rounds", self.round)
        self.folds = {int(server): count for server, count in line.get("folds", {}).items()}
        self.waiting = None
        if line.get("learning") is not None:
            self._found(line["learning"])

    _HANDLERS: ClassVar[dict[str, Callable[["RunState", dict[str, Any]], None]]] = {
        "server-joined": _server_joined,
        "server-left": _server_left,
        "silent": _silent,
        "server-silent": _silent,
        "server-lost": _server_lost,
        "rerouting": _rerouting,
        "rerouted": _rerouted,
        "copied": _copied,
        "listening": _listening,
        "linked": _linked,
        "placed": _placed,
        "data": _data,
        "joined": _joined,
        "rejoined": _joined,
        "left": _left,
        "evicted": _evicted,
        "rounds": _rounds,
        "waiting": _waiting,
        "reported": _reported,
        "refused": _refused,
        "chunks": _chunks,
        "empty-handed": _empty_handed,
        "learning": _found,
        "given-up": _given_up,
        "ended": _ended,
    }


def reason_of(line: dict[str, Any]) -> Reason:
    """The reason that a line of the journal gives."""
    return Reason(line["reason"], line.get("fields") or {})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def fold(lines: Iterable[dict[str, Any]]) -> RunState:
    """The state after these lines."""
    state = RunState()
    for line in lines:
        state.take(line)
    return state

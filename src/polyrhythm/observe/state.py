"""The state of a run, computed from the lines of its journal. All output for users is made from
this state alone.

Lines are read one by one, so a journal can be followed while it is written. The state reads no
clock: its time is that of the last line. Lines of unknown kinds change nothing.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from polyrhythm.core.lead.progress.learning import Finding, LearningState
from polyrhythm.core.metrics import OBJECTIVE
from polyrhythm.observe.join_hint import JoinHint
from polyrhythm.observe.reasons import CUT_OFF, in_words
from polyrhythm.observe.work import (
    MeanOverRounds,
    MedianOverRounds,
    ObservedWorker,
    Pushed,
    RecentWork,
    RunMetrics,
)
from polyrhythm.wire.messages.reasons import FAILED, HUNG, NOT_FINITE, UNATTACHED, Reason


class WaitingState(msgspec.Struct, frozen=True):
    """What the job waits for. Times are in seconds since the run began, as in the journal.

    A `waiting` line of the journal says how long the wait has lasted (`since_s`), and when a timer
    will end it (`until_s`, or None), both in seconds from the line. The state converts both to
    times on the clock of the journal.
    """

    reason: Reason
    since_s: float
    until_s: float | None
    """When a timer ends the wait; None if no timer does."""
    missing: tuple[int, ...]
    """The workers that the job waits for."""
    held: tuple[int, ...]
    """The workers that are waiting, if the lead names them."""
    seen_s: float
    """When the lead last reported this wait."""

    @classmethod
    def read(cls, line: dict[str, Any], at_s: float) -> "WaitingState":
        """Read a `waiting` line of the journal. `at_s`: when it was written."""
        until_s, fields = line.get("until_s"), line.get("fields") or {}
        return cls(
            Reason(line["reason"], fields),
            at_s - line.get("since_s", 0.0),
            None if until_s is None else at_s + until_s,
            tuple(fields.get("missing") or ()),
            tuple(fields.get("held") or ()),
            at_s,
        )

    def without(self, worker: int, at_s: float) -> "WaitingState | None":
        """What the job still waits for after this worker has left; None if it waits for no other
        worker."""
        missing = tuple(other for other in self.missing if other != worker)
        return msgspec.structs.replace(self, missing=missing, seen_s=at_s) if missing else None


class Ended(msgspec.Struct, frozen=True):
    at_s: float
    reason: Reason
    failed: bool


class Point(msgspec.Struct, frozen=True):
    """A data point of the run's curve, from one `rounds` line of the journal."""

    at_s: float
    round: int
    passes: int
    points: int
    """All points that have counted, including those from before a resume."""
    objective: float | None


class MeasuredLinks(msgspec.Struct, frozen=True):
    """What the lead knows about the links between hosts. Rates are in bytes per second."""

    at_s: float
    rates: dict[str, dict[str, float]]
    """Per source host and target host."""
    throughputs: dict[str, float]
    """What each host sends and receives at most."""
    hosts: dict[str, list[str]]
    """The processes on each host."""
    slowest: str | None = None
    """The server whose transfers of a round take longest."""
    seconds: float | None = None
    """How long the transfers of that server take."""

    def host_of(self, process: str) -> str | None:
        return next((host for host, there in self.hosts.items() if process in there), None)


@dataclass(slots=True)
class ServerLoss:
    """The loss of a server: how it was noticed, which slices moved, and how long that took."""

    server: int
    at_s: float
    noticed: Reason
    promoted: dict[str, int] = field(default_factory=dict)
    """Per server, the number of slices of which it became the primary."""
    seconds: float | None = None
    """The seconds until every server used the new routing; None until then."""
    replaced: bool = False
    """Whether another server with the same number has since joined."""


@dataclass(slots=True)
class RunFacts:
    """The facts about a run, and values derived from them."""

    at_s: float = 0.0
    """When the last line was written, in seconds since the run began."""
    opened_s: float | None = None
    worked_s: float | None = None
    """The time of the last line about rounds; None if the journal has no such line."""
    round: int = 0
    resumed_round: int | None = None
    """The round of the checkpoint from which the job resumed; None if it did not resume."""
    resumed_points: int = 0
    """The points that had counted before the job resumed. `points` does not include them."""
    passes: int = 0
    contributions: int = 0
    points: int = 0
    objective: float | None = None
    """The mean of the rounds in the journal's last line about rounds. If that line covers the whole
    last pass, the mean of that pass."""
    pass_objective: float | None = None
    """The mean of the last pass, if it has begun and ended since the journal's last line about
    rounds."""
    finding: Finding | None = None
    """The last finding of the lead about the objective; None if there is no finding."""
    nbytes: int = 0
    """The size of the model in bytes."""
    pushed: Pushed = field(default_factory=Pushed)
    rate: float | None = None
    momentum: float | None = None
    """The learning rate and momentum of the optimizer when the job began; None if unknown."""
    batch: int = 0
    """The number of points in a batch of the user; 0 if unknown."""
    data_sets: dict[str, int] = field(default_factory=dict)
    """The number of points in each data set, by worker. The data set of the whole job has an empty
    name."""
    slice_nbytes: int = 0
    """The size of the largest slice; 0 if unknown."""
    slices: dict[int, int] = field(default_factory=dict)
    """Per server, the number of slices of which it is the primary."""
    loads: dict[int, int] = field(default_factory=dict)
    """Per server, the bytes of the slices of which it is the primary."""
    measured: MeasuredLinks | None = None
    """The last measurements of the links between hosts; None if there are none."""
    servers: list[int] = field(default_factory=list)
    silent: dict[int, float] = field(default_factory=dict)
    """Per server that the lead reported as silent, the time of that report."""
    cut_off: dict[tuple[int, int], float] = field(default_factory=dict)
    """Per pair of a worker and a server that cannot reach each other, since when. The worker is
    excluded from the rounds until the link works."""
    failovers: list[ServerLoss] = field(default_factory=list)
    learning: int = 0
    """The number of replicas that servers are still fetching."""
    given_up: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Processes that died too often to be started again, each with the journal's line about this.
    An entry is removed when its process joins again."""
    gone: dict[str, Reason] = field(default_factory=dict)
    """On a cluster: for each process that is gone or must leave, the reason that the command that
    trains has observed. An entry is removed when its process joins again."""
    listening: str | None = None
    """The address at which more workers and servers can join."""
    join_hint: JoinHint = field(default_factory=JoinHint)
    """The information that a worker or a server needs to join the job."""
    links: dict[str, str] = field(default_factory=dict)
    workers: dict[int, ObservedWorker] = field(default_factory=dict)
    processes: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Per server and worker, the id of its process and the name of its host."""
    members: int = 0
    """The number of workers that are in the job now."""
    refused: list[Reason] = field(default_factory=list)
    abandoned: int = 0
    """How many rounds closed without a worker because its points took too long."""
    timers: int = 0
    """The number of rounds that a timer closed."""
    moved_chunks: int = 0
    moved_points: int = 0
    """The points that moved from slow workers to fast ones."""
    moves: list[dict[str, Any]] = field(default_factory=list)
    """The journal's lines about moves of points, without chunks that did not move."""
    migration: Reason | None = None
    """Why the job moves chunks in this way (`--migrate`)."""
    lost_points: dict[str, int] = field(default_factory=dict)
    """For each worker that has left with its private data, the number of its points."""
    hold: Reason | None = None
    """Kind statistics: why no parameters are computed now; None if they are."""
    held_versions: int = 0
    """How many versions have no new parameters, because points were missing from their sums, except
    versions of the present hold."""
    folds: dict[int, int] = field(default_factory=dict)
    waiting: WaitingState | None = None
    saving: bool = False
    """Whether the job is over and its model is being written."""
    model: str | None = None
    """The path of the trained model, once it is saved."""
    model_in_store: bool = False
    """Whether the model was saved in the job's store, because the folder of the run could not be
    written."""
    held: Reason | None = None
    """Why the servers hold the model of a job that is over; None if nothing prevents saving it."""
    best: dict[str, Any] | None = None
    """The journal's line about the best model so far."""
    not_saved: Reason | None = None
    """Why the model could not be saved."""
    ended: Ended | None = None
    curve: list[Point] = field(default_factory=list)
    metrics: RunMetrics = field(default_factory=RunMetrics)
    _usage: MeanOverRounds = field(default_factory=MeanOverRounds)
    _spread_ms: MedianOverRounds = field(default_factory=MedianOverRounds)
    _rtt_ms: MedianOverRounds = field(default_factory=MedianOverRounds)
    _recent: RecentWork = field(default_factory=RecentWork)

    # -- derived values ------------------------------------------------------------------------

    @property
    def present(self) -> list[ObservedWorker]:
        return [worker for worker in self.workers.values() if worker.present]

    @property
    def seconds(self) -> float:
        """The seconds from the opening of round 1 to the last `rounds` line."""
        if self.opened_s is None or self.worked_s is None:
            return 0.0
        return self.worked_s - self.opened_s

    @property
    def data_points(self) -> int:
        """The number of points in all data sets of the job; 0 if unknown."""
        return sum(self.data_sets.values())

    @property
    def usage(self) -> float | None:
        """The mean resource usage of all rounds (PSP, Eq. 1); None without rounds."""
        return self._usage.value

    @property
    def spread_ms(self) -> float | None:
        """The median time from the first contribution of a round to the last one; None without
        rounds."""
        return self._spread_ms.value

    @property
    def rtt_s(self) -> float | None:
        """The median round-trip time of the worker that contributes last in a round. None: no round
        has measured it. 0: workers do not wait (psp)."""
        rtt_ms = self._rtt_ms.value
        return None if rtt_ms is None else rtt_ms / 1e3

    @property
    def accuracy(self) -> float | None:
        return self.metrics.value("accuracy")

    @property
    def pulls(self) -> int:
        """How many versions workers have read: one when a worker joins, and one after each
        contribution."""
        if self.opened_s is None:
            return 0
        return self.contributions + sum(worker.joins for worker in self.workers.values())

    def trained_s(self, worker: ObservedWorker) -> float:
        """The seconds from the first round of this worker until it left, or until now."""
        began_s = max(worker.joined_s, self.opened_s or 0.0)
        worked_s = self.worked_s or 0.0
        ended_s = worked_s if worker.left_s is None else min(worker.left_s, worked_s)
        return max(0.0, ended_s - began_s)

    @property
    def failed_workers(self) -> dict[str, str]:
        """The workers whose code failed or hung, with the error, unless they have come back."""
        return {
            worker.name: str(worker.left.fields.get("detail", "")) or in_words(worker.left)
            for worker in self.workers.values()
            if worker.left is not None
            and worker.left.code in (FAILED, HUNG, UNATTACHED, NOT_FINITE)
        }

    def cut_off_from(self, worker: int) -> list[str]:
        """The servers that this worker cannot reach."""
        return [f"s{server}" for other, server in sorted(self.cut_off) if other == worker]

    def name_of(self, worker: Any) -> str:
        """The name of the worker with this number. Any other value is returned as text."""
        known = self.workers.get(worker) if isinstance(worker, int) else None
        if known is not None:
            return known.name
        return f"w{worker}" if isinstance(worker, int) else str(worker)


_WAITING_HOLDS_S = 2.5
"""The lead reports a wait once a second while it lasts. A wait that was not reported for this long
is over."""


@dataclass(slots=True)
class RunState(RunFacts):
    """The facts about a run, as stated by the lines of the journal so far."""

    def take(self, line: dict[str, Any]) -> None:
        at_s = max(self.at_s, float(line.get("at_s", self.at_s)))
        self.at_s = at_s
        if self.waiting is not None and at_s > self.waiting.seen_s + _WAITING_HOLDS_S:
            self.waiting = None
        handler = self._HANDLERS.get(line.get("what", ""))
        if handler is not None:
            handler(self, line)

    def _server_joined(self, line: dict[str, Any]) -> None:
        self._note_process(f"s{line['server']}", line)
        if line["server"] not in self.servers:
            self.servers.append(line["server"])
        for failover in self.failovers:
            if failover.server == line["server"]:
                failover.replaced = True
        self.given_up.pop(f"s{line['server']}", None)
        self.gone.pop(f"s{line['server']}", None)
        self.silent.pop(line["server"], None)

    def _note_process(self, name: str, line: dict[str, Any]) -> None:
        if "pid" in line:
            self.processes[name] = (line["pid"], line.get("host", ""))

    def _server_left(self, line: dict[str, Any]) -> None:
        server = line["server"]
        if server in self.servers:
            self.servers.remove(server)
        self.slices.pop(server, None)
        self.loads.pop(server, None)
        self.silent.pop(server, None)
        for pair in [pair for pair in self.cut_off if pair[1] == server]:
            del self.cut_off[pair]

    def _silent(self, line: dict[str, Any]) -> None:
        self.silent[line["server"]] = self.at_s

    def _heard(self, line: dict[str, Any]) -> None:
        self.silent.pop(line["server"], None)

    def _cut_off(self, line: dict[str, Any]) -> None:
        pair = line["worker"], line["server"]
        self.cut_off.setdefault(pair, self.at_s - line.get("silent_s", 0.0))

    def _link_works(self, line: dict[str, Any]) -> None:
        self.cut_off.pop((line["worker"], line["server"]), None)

    def _server_lost(self, line: dict[str, Any]) -> None:
        self._server_left(line)
        self.failovers.append(ServerLoss(line["server"], self.at_s, reason_of(line)))

    def _rerouting(self, line: dict[str, Any]) -> None:
        for failover in self._unfinished():
            failover.promoted.update(line.get("promoted", {}))

    def _rerouted(self, line: dict[str, Any]) -> None:
        for failover in self._unfinished():
            failover.seconds = self.at_s - failover.at_s
        if line.get("slices"):
            self.slices = {int(name[1:]): count for name, count in line["slices"].items()}
        self._loads(line)
        self.learning = line.get("learning", self.learning)

    def _unfinished(self) -> list[ServerLoss]:
        return [failover for failover in self.failovers if failover.seconds is None]

    def _copied(self, line: dict[str, Any]) -> None:
        self.learning = line.get("learning", 0)

    def _listening(self, line: dict[str, Any]) -> None:
        self.listening = f"{line['host']}:{line['port']}"
        self.join_hint = JoinHint.of(line)

    def _linked(self, line: dict[str, Any]) -> None:
        self.links[line["peer"]] = line["link"]

    def _placed(self, line: dict[str, Any]) -> None:
        self.nbytes = line["nbytes"]
        self.slice_nbytes = line.get("slice_nbytes", 0)
        self.slices = dict(enumerate(line["slices"]))
        self._loads(line)
        self.rate, self.momentum = line.get("rate"), line.get("momentum")

    def _loads(self, line: dict[str, Any]) -> None:
        if line.get("held"):
            self.loads = {int(name[1:]): nbytes for name, nbytes in line["held"].items()}

    def _links(self, line: dict[str, Any]) -> None:
        self.measured = MeasuredLinks(
            self.at_s,
            line["rates"],
            line["throughputs"],
            line["hosts"],
            line.get("slowest"),
            line.get("seconds"),
        )

    def _joined(self, line: dict[str, Any]) -> None:
        worker = line["worker"]
        incarnation = line.get("incarnation", line.get("epoch"))
        known = self.workers.get(worker)
        self._note_process(line["name"], line)
        self.given_up.pop(line["name"], None)
        self.gone.pop(line["name"], None)
        device = line.get("device", "")
        if known is None:
            known = ObservedWorker(worker, line["name"], self.at_s, incarnation, device=device)
            known.joined_late = self.opened_s is not None
            self.workers[worker] = known
            self.members += 1
            return
        known.device = device or known.device
        self.members += not known.present
        if incarnation is None or known.incarnation != incarnation:
            known.joins += 1  # `joined` and `rejoined` lines of one incarnation count once
            known.joined_late = self.opened_s is not None
            known.contributed_before = known.measured.get("contributions", 0)
        known.incarnation, known.left, known.left_s = incarnation, None, None

    def _given_up(self, line: dict[str, Any]) -> None:
        self.given_up[line["name"]] = line

    def _resumed(self, line: dict[str, Any]) -> None:
        self.resumed_round = line["round"]
        self.resumed_points = line.get("points", 0)

    def _gone(self, line: dict[str, Any]) -> None:
        names = [line["name"]] if "name" in line else line["on_it"].split(", ")
        self.gone.update(dict.fromkeys(names, Reason(line["what"], line)))

    def _data(self, line: dict[str, Any]) -> None:
        self.batch = line.get("batch", 0)
        self.data_sets[line.get("name", "")] = line.get("points", 0)

    def _left(self, line: dict[str, Any]) -> None:
        if line["reason"] != CUT_OFF:
            for pair in [pair for pair in self.cut_off if pair[0] == line["worker"]]:
                del self.cut_off[pair]
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
            self.waiting = self.waiting.without(worker, self.at_s)

    def _passed(self, line: dict[str, Any]) -> None:
        if (
            line["passes"] - self.passes >= 2
        ):  # the pass is shorter than the time since the last line
            self.pass_objective = line.get("objective")

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
        self.pushed.take(line.get("pushed", {}))
        self.abandoned += line.get("abandoned", 0)
        self.timers += line.get("reason") == "timer"
        # The line's objective is null if the mean is not finite. A `learning` line reports that.
        objective = line.get("objective") if _is_number(line.get("objective")) else None
        # The mean of a pass that is whole in this line is more recent than the mean of the line.
        latest, self.pass_objective = self.pass_objective, None
        latest = latest if _is_number(latest) else objective
        self.objective = self.objective if latest is None else latest
        points = self.resumed_points + self.points
        self.curve.append(Point(self.at_s, self.round, self.passes, points, objective))
        self._recent.take(line.get("workers", {}), self.at_s, self.workers)

    def _waiting(self, line: dict[str, Any]) -> None:
        now = WaitingState.read(line, self.at_s)
        self._wait_on(now, self.at_s)
        self.waiting = now

    def _wait_on(self, waiting: WaitingState, until_s: float) -> None:
        """Add the time since the last report of this wait to every worker that was missing then and
        still is. The time before the first report is not added, because then the missing workers
        may have been as busy as the others. If all workers are missing, no worker waits, and
        nothing is added."""
        before = self.waiting
        if before is None or len(before.missing) >= self.members:
            return
        for worker in set(waiting.missing) & set(before.missing) & self.workers.keys():
            self.workers[worker].waited_for_s += max(0.0, until_s - before.seen_s)

    def _reported(self, line: dict[str, Any]) -> None:
        worker = self.workers.get(line["worker"])
        if worker is None:
            return
        # The journal has null for a value that is not finite.
        metrics = {name: value for name, value in line["metrics"].items() if _is_number(value)}
        evaluated = line.get("evaluated", False)
        self.metrics.take(self.at_s, worker.worker, metrics, evaluated=evaluated)
        worker.reports.update(metrics)

    def _unreported(self, line: dict[str, Any]) -> None:
        self.metrics.unreported = reason_of(line)

    def _refused(self, line: dict[str, Any]) -> None:
        self.refused.append(reason_of(line))

    def _no_points(self, line: dict[str, Any]) -> None:
        if line["worker"] in self.workers:
            self.workers[line["worker"]].no_points = True

    def _chunks(self, line: dict[str, Any]) -> None:
        self.moved_chunks += line.get("moved", 0)
        self.moved_points += line.get("points", 0)
        self.moves.append(line)

    def _migration(self, line: dict[str, Any]) -> None:
        self.migration = reason_of(line)

    def _data_set(self, line: dict[str, Any]) -> None:
        news = reason_of(line)
        before = self.lost_points.pop(name := str(news.fields.get("name", "")), 0)
        if news.code in ("data-lost", "data-partly-lost", "data-lost-later"):
            points = before + int(str(news.fields.get("points", 0)))
            if points:
                self.lost_points[name] = points

    def _m_steps(self, line: dict[str, Any]) -> None:
        change = reason_of(line)
        self.hold = change if change.code == "m-steps-held" else None
        self.held_versions += int(str(change.fields.get("versions", 0)))

    def _points_kept(self, line: dict[str, Any]) -> None:
        self.moved_chunks -= line.get("chunks", 0)
        self.moved_points -= line.get("points", 0)
        self._take_back(line)

    def _take_back(self, kept: dict[str, Any]) -> None:
        """Subtract these chunks, which have not moved after all, from the last moves between the
        two workers."""
        chunks, points = kept.get("chunks", 0), kept.get("points", 0)
        for at, move in reversed(list(enumerate(self.moves))):
            fields = move.get("fields", {})
            ends = kept.get("worker"), kept.get("target")
            among = fields.get("workers") or (), fields.get("targets") or ()
            if chunks <= 0 or ends[0] not in among[0] or ends[1] not in among[1]:
                continue
            begun = move.get("moved", 0), move.get("points", 0)
            if chunks < begun[0]:
                left = {"moved": begun[0] - chunks, "points": max(0, begun[1] - points)}
                self.moves[at] = {**move, **left}
            else:
                del self.moves[at]
            chunks, points = chunks - begun[0], points - begun[1]

    def _found(self, line: dict[str, Any]) -> None:
        self.finding = Finding.read(line)
        if self.finding.state is LearningState.NOT_FINITE:
            # forget the last finite value: it belongs to an earlier version
            self.objective = None

    def _saving(self, line: dict[str, Any]) -> None:
        self.saving = True

    def _saved(self, line: dict[str, Any]) -> None:
        self.saving = False
        self.model, self.model_in_store = line["path"], line.get("store", False)

    def _model_held(self, line: dict[str, Any]) -> None:
        self.held = reason_of(line)

    def _best(self, line: dict[str, Any]) -> None:
        self.best = line

    def _not_saved(self, line: dict[str, Any]) -> None:
        self.saving = False
        self.not_saved = reason_of(line)

    def _ended(self, line: dict[str, Any]) -> None:
        self.ended = Ended(self.at_s, reason_of(line), line.get("failed", False))
        self.round = line.get("rounds", self.round)
        self.folds = {int(server): count for server, count in line.get("folds", {}).items()}
        self.waiting = None
        if line.get("learning") is not None:
            self._found(line["learning"])

    _HANDLERS: ClassVar[dict[str, Callable[["RunState", dict[str, Any]], None]]] = {
        "server-joined": _server_joined,
        "resumed": _resumed,
        "server-left": _server_left,
        "drained": _server_left,
        "silent": _silent,
        "server-silent": _silent,
        "server-heard": _heard,
        "cut-off": _cut_off,
        "unopened": _cut_off,
        "link-works": _link_works,
        "server-lost": _server_lost,
        "rerouting": _rerouting,
        "rerouted": _rerouted,
        "copied": _copied,
        "listening": _listening,
        "linked": _linked,
        "links": _links,
        "placed": _placed,
        "data": _data,
        "joined": _joined,
        "rejoined": _joined,
        "left": _left,
        "evicted": _evicted,
        "passed": _passed,
        "rounds": _rounds,
        "waiting": _waiting,
        "reported": _reported,
        "unreported": _unreported,
        "refused": _refused,
        "chunks": _chunks,
        "data-set": _data_set,
        "migration": _migration,
        "m-steps": _m_steps,
        "points-kept": _points_kept,
        "no-points": _no_points,
        "learning": _found,
        "given-up": _given_up,
        "actor-died": _gone,
        "node-lost": _gone,
        "node-drains": _gone,
        "node-drains-lead": _gone,
        "node-drains-lead-cut": _gone,
        "saving": _saving,
        "saved": _saved,
        "model-held": _model_held,
        "best": _best,
        "not-saved": _not_saved,
        "ended": _ended,
    }


def reason_of(line: dict[str, Any]) -> Reason:
    """The reason in a line of the journal."""
    return Reason(line["reason"], line.get("fields") or {})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def fold(lines: Iterable[dict[str, Any]]) -> RunState:
    """The state of a run with these lines in its journal."""
    state = RunState()
    for line in lines:
        state.take(line)
    return state


def last_metrics(state: RunState) -> dict[str, float]:
    """The last objective, and the last value of every metric that workers reported or evaluated."""
    objective = {} if state.objective is None else {OBJECTIVE: state.objective}
    return {**objective, **state.metrics.values()}


_ROWS = {"rounds": "rounds", "passed": "pass", "reported": "report"}
"""The kinds of journal lines that become rows of the history, and the names of the rows."""


def history_of(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each line of the journal about rounds (at least once a second while rounds are
    folded), about a full pass, or about values that a worker reported. A row of rounds has the mean
    objective since the previous row of rounds, a row of a pass that of the pass. A row of a report
    has the worker and its values; its round is the version with which the values were measured, if
    the journal names it."""
    state, rows = RunState(), []
    for line in lines:
        state.take(line)
        what = _ROWS.get(str(line.get("what")))
        if what is None:
            continue
        row: dict[str, Any] = {
            "at_s": state.at_s,
            "what": what,
            "round": line.get("round", state.round),
            "passes": line.get("passes", state.passes),
            "points": state.points if what == "rounds" else line.get("points", state.points),
        }
        if what == "report":
            row |= {"worker": line["name"], **line["metrics"]}
        else:
            row[OBJECTIVE] = line.get("objective")
        rows.append(row)
    return rows

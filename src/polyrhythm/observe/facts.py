"""The facts about a run that its journal has stated so far. `state.py` updates them, line by line."""

from dataclasses import dataclass, field
from typing import Any

from polyrhythm.core.lead.progress.learning import Finding
from polyrhythm.observe.aggregates import MeanOverRounds, MedianOverRounds, Pushed
from polyrhythm.observe.joining import JoinWay
from polyrhythm.observe.metrics import RunMetrics
from polyrhythm.observe.parts import Ended, Point, ServerLoss, WaitingState
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.recent import RecentWork
from polyrhythm.observe.worker import ObservedWorker
from polyrhythm.wire.messages.reasons import FAILED, HUNG, NOT_FINITE, UNATTACHED, Reason


@dataclass(slots=True)
class RunFacts:
    """What is known of a run, and values that follow from it."""

    at_s: float = 0.0
    """When the last line was written, in seconds since the run began."""
    opened_s: float | None = None
    worked_s: float | None = None
    """The time of the last line about rounds; None if the journal has no such line."""
    round: int = 0
    passes: int = 0
    contributions: int = 0
    points: int = 0
    objective: float | None = None
    """The mean of the rounds of the last line about rounds, or of the last pass if that line covers the
    pass as a whole."""
    pass_objective: float | None = None
    """The mean of the last pass, if it has begun and ended since the last line about rounds."""
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
    slices: dict[int, int] = field(default_factory=dict)
    """Per server, the number of slices of which it is the primary."""
    servers: list[int] = field(default_factory=list)
    silent: dict[int, float] = field(default_factory=dict)
    """Per server that the lead reported as silent, the time of the report."""
    cut_off: dict[tuple[int, int], float] = field(default_factory=dict)
    """Per worker and server that cannot talk to each other, since when. The worker is excluded from the
    rounds until their link works."""
    failovers: list[ServerLoss] = field(default_factory=list)
    learning: int = 0
    """The number of replicas that servers are still fetching."""
    given_up: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Processes that died too often to be started again, each with the line of the journal that
    says so. An entry is removed when its process joins again."""
    listening: str | None = None
    """The address at which further workers and servers can join."""
    way: JoinWay = field(default_factory=JoinWay)
    """What a worker or a server must know to join the job."""
    links: dict[str, str] = field(default_factory=dict)
    workers: dict[int, ObservedWorker] = field(default_factory=dict)
    processes: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Per server and worker, the id of its process and the name of its host."""
    members: int = 0
    """The number of workers that are in the job now."""
    refused: list[Reason] = field(default_factory=list)
    abandoned: int = 0
    """The number of rounds that closed without a worker because its points took too long."""
    timers: int = 0
    """The number of rounds that a timer closed."""
    moved_chunks: int = 0
    moved_points: int = 0
    """The points that moved from slow workers to fast ones."""
    moves: list[dict[str, Any]] = field(default_factory=list)
    """The lines of the journal about moves of points, without the chunks that stayed where they were."""
    migration: Reason | None = None
    """Why the job moves chunks in its present way (`--migrate`)."""
    lost_points: dict[str, int] = field(default_factory=dict)
    """For each worker that has left the job with its private data, the number of its points."""
    hold: Reason | None = None
    """Kind statistics: why no parameters are computed at present; None if they are computed."""
    held_versions: int = 0
    """How many versions have no new parameters, because points were missing from their sums. Those of
    the hold under way are not included."""
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
    """Why the servers hold the model of a job that is over; None if nothing has prevented that it is
    saved."""
    best: dict[str, Any] | None = None
    """The line of the journal about the best model so far."""
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
        """The median round-trip time of the worker that contributes last in a round. None: no round has
        measured it. 0: workers do not wait (psp)."""
        rtt_ms = self._rtt_ms.value
        return None if rtt_ms is None else rtt_ms / 1e3

    @property
    def accuracy(self) -> float | None:
        return self.metrics.value("accuracy")

    @property
    def pulls(self) -> int:
        """How many versions workers read: one when a worker joins, one after each contribution."""
        if self.opened_s is None:
            return 0
        return self.contributions + sum(worker.joins for worker in self.workers.values())

    @property
    def failed_workers(self) -> dict[str, str]:
        """The workers whose code failed or hung and that have not come back, with the error."""
        return {
            worker.name: str(worker.left.fields.get("detail", "")) or in_words(worker.left)
            for worker in self.workers.values()
            if worker.left is not None
            and worker.left.code in (FAILED, HUNG, UNATTACHED, NOT_FINITE)
        }

    def cut_off_from(self, worker: int) -> list[str]:
        """The servers that this worker cannot talk to."""
        return [f"s{server}" for other, server in sorted(self.cut_off) if other == worker]

    def name_of(self, worker: Any) -> str:
        """The name of the worker with this number. A value that is not the number of a worker is
        returned as text."""
        known = self.workers.get(worker) if isinstance(worker, int) else None
        if known is not None:
            return known.name
        return f"w{worker}" if isinstance(worker, int) else str(worker)

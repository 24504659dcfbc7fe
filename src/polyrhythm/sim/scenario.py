"""A scenario: a job, its links, its workers and their faults, read from a TOML file.

A scenario that cannot work is refused here. The error is one line and names the place in the file.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from polyrhythm.core.batches import DEFAULT
from polyrhythm.core.kinds import BY_POINTS, BY_WORKERS, EXACT, INT8, steps_on_workers
from polyrhythm.core.metrics import OBJECTIVE, parse_target
from polyrhythm.core.placement.schemes import RING, SCHEMES
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.core.sync.registry import AUTO, choose_kind, choose_policy
from polyrhythm.core.values import Schedule
from polyrhythm.errors import UsageError
from polyrhythm.sim.tables import (
    Duration,
    HostTable,
    LinkSettings,
    ObjectiveTable,
    Rate,
    Size,
    WorkersTable,
    check_factor,
)
from polyrhythm.wire.messages import JobSpec

LINKS = ("cut", "silence", "heal")
"""The events that happen to a link."""


class Happening(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault of a worker or server, or another event at a given time. `cut` breaks the link
    between a server and another process. `silence` stops all messages between the two without
    ending their link, until `heal`. `end` shuts the job down cleanly, as Ctrl-C or `polyrhythm
    stop` does. `drain` lets a server leave, as SIGTERM or `polyrhythm drain` does. A server whose
    number the job has not had yet may join: the next higher one. `rate` changes the rates of a
    host's network card."""

    at: Duration
    what: Literal[
        "crash",
        "stop",
        "continue",
        "leave",
        "slow",
        "join",
        "drain",
        "cut",
        "silence",
        "heal",
        "end",
        "rate",
    ]
    worker: str | None = None
    server: int | None = None
    factor: float | None = None
    """For slow: from then on, steps take this many times as long."""
    points: int | None = None
    """For join, with data_private: the number of points in the worker's own data set from then on.
    None: as many as before."""
    share_data: bool | None = None
    """For join: whether the worker sends its points to others from then on. None: as before."""
    peer: int | None = None
    """For cut, silence and heal: the server at the other end of the link."""
    host: int | None = None
    """For rate: the host, by its number in the order of the [[hosts]] tables."""
    outgoing: Rate | None = None
    incoming: Rate | None = None
    """For rate: the new rates. None: as before."""
    operator: str | None = None
    """For end and drain: the name of the operator that asks for it. None: the job or the server gets
    a signal, as from Ctrl-C."""

    def __post_init__(self) -> None:
        about_rates = (self.host, self.outgoing, self.incoming)
        if self.what == "rate":
            if self.host is None or self.outgoing is None is self.incoming:
                raise ValueError(
                    "an event rate is about a host: give host, and outgoing or incoming"
                )
            if self.worker is not None or self.server is not None:
                raise ValueError("an event rate is about a host: give no worker and no server")
        elif any(field is not None for field in about_rates):
            raise ValueError("host, outgoing and incoming can be given only with what = 'rate'")
        elif self.what in LINKS:
            if self.server is None or (self.worker is None) == (self.peer is None):
                raise ValueError(
                    f"{self.what} needs both ends of a link: a server, and either a worker or a peer"
                )
        elif self.what == "end":
            if self.worker is not None or self.server is not None:
                raise ValueError("an event end stops the whole job: give no worker and no server")
        elif (self.worker is None) == (self.server is None):
            raise ValueError(
                f"an event {self.what} is about a worker or a server: give one of the two"
            )
        elif self.server is not None and self.what in ("leave", "slow"):
            raise ValueError(f"an event {self.what} is only for workers")
        elif self.worker is not None and self.what == "drain":
            raise ValueError("an event drain is only for servers")
        if self.what == "crash" and self.server == FIRST_SEAT.server:
            raise ValueError(
                f"the lead runs in server {FIRST_SEAT.server}: its death would end the job"
            )
        about_data = self.points is not None or self.share_data is not None
        if about_data and (self.what != "join" or self.worker is None):
            raise ValueError("points and share_data can be given only if a worker joins")
        if self.points is not None and self.points < 1:
            raise ValueError(f"points is {self.points}: it must be at least 1")
        if self.operator is not None and self.what not in ("end", "drain"):
            raise ValueError("the field operator can be given only with what = 'end' or 'drain'")
        if (self.factor is not None) != (self.what == "slow"):
            raise ValueError("the field factor must be given with what = 'slow', and only then")
        if self.factor is not None:
            check_factor(self.factor)


_ITEM_NBYTES = 4
_TIMERS = ("auto", "off")
_AT_LEAST_ONE = (
    "local_steps",
    "servers",
    "workers",
    "rounds",
    "epochs",
    "max_points",
    "points",
    "batch",
    "most_steps",
    "probe_points",
    "min_batch",
)


class JobTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    sync: str = "bsp"
    timer: str = "auto"
    optimizer_on: str = "servers"
    kind: str = AUTO
    local_steps: int = 1
    outer: str = "off"
    """For kind local: the optimizer with which servers fold the averaged change. The simulated
    objective does not depend on the optimizer."""
    weights: str = BY_POINTS
    """How a round weighs its contributions: points or workers."""
    push: str = EXACT
    """How contributions are sent: exact, or int8."""
    servers: int = 1
    workers: int | None = None
    """Round 1 opens when this many workers have joined. None: the number of workers that join at
    the beginning."""
    rounds: int | None = None
    epochs: int | None = None
    max_points: int | None = None
    """End when this many points have counted."""
    target: str | None = None
    """End when the objective has this value, such as "objective=0.1"."""
    target_change: float | None = None
    """End when the objective changes by less than this over a full pass."""
    max_time: Duration | None = None
    """The virtual time after which the job ends, counted from the opening of round 1."""
    points: int | None = None
    """The number of points in the data set. None: workers contribute without visiting points."""
    batch: int = 32
    model: Size = Size(10**6)
    slice: Size = Size(2 * 2**20)
    fold_rate: Rate = Rate(10**10)
    """How many bytes a server folds per second."""
    seed: int = 0
    """The seed by which points are assigned to chunks. Noise and loss have their own seed
    (`--seed` of `simulate`)."""
    heartbeat: Duration = Duration(500_000_000)
    lead_timeout: Duration = Duration(120 * 10**9)
    """A worker or server ends when it has not heard from the lead for this long."""
    interval: str = "auto"
    """For fsp: the method that chooses the interval (auto or binary), or a fixed duration."""
    coordination: str = "semi"
    """For fsp: the process that ends the interval. central: the lead. semi: every worker, by its
    own clock."""
    abandon: str = "off"
    """For fsp: how long a round waits for an unfinished micro-batch after the interval."""
    migrate: str = "auto"
    """How chunks move from slow workers to fast ones: off, lease (only the right to visit them), full
    (their points travel too) or blocking (both workers wait meanwhile). auto: lease under fsp, and
    full with data_private."""
    migrate_memory: Size | None = None
    """For migrate = "full" and "blocking": how many bytes a worker's inactive copies may have. None:
    they may have as many points as the worker's first share."""
    data_private: bool = False
    """Whether every worker has its own data set. `points` in its [[workers]] table gives the
    size."""
    point: Size = Size(100)
    """The size of a point, for migrate = "full" and "blocking"."""
    most_steps: int = 64
    """For psp: the most steps that the fastest worker may take between two barriers."""
    probe_points: int = 2048
    """The size of the sample on which the objective is measured."""
    read_ahead: bool = False
    """For asp: whether a worker begins its next step before the answer to its last contribution has
    arrived."""
    min_batch: int = 2
    """The fewest points of a batch."""
    replicas: int = 0
    """How many copies every slice has on other servers."""
    placement: str = RING
    """How slices are assigned to servers: ring, average, elastic or aware."""
    save_model: bool = False
    """Whether the lead's process writes the model when the job ends."""
    checkpoint_every: str = ""
    """How often a checkpoint is made: a duration, or a number of rounds such as 100rounds. Empty:
    never."""
    kept: Size = Size(0)
    """The size of the state that every worker keeps (`worker.keep`). 0: workers keep none."""
    store_rate: Rate = Rate(5 * 10**8)
    """How many bytes of a checkpoint a server writes or reads per second."""
    start_timeout: Duration = Duration(60 * 10**9)
    limit: Duration = Duration(3600 * 10**9)
    """The virtual time after which a simulation that has not ended is given up."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        goals = (
            self.rounds,
            self.epochs,
            self.max_points,
            self.target,
            self.target_change,
            self.max_time or None,
        )
        if all(goal is None for goal in goals):
            raise ValueError(
                "the job would never end: give rounds, epochs, max_points, target, target_change or"
                " max_time"
            )
        if self.target is not None and parse_target(self.target).metric != OBJECTIVE:
            raise ValueError(f"target is {self.target!r}: a simulated job has only the objective")
        if self.target_change is not None and not 0 < self.target_change < float("inf"):
            raise ValueError(f"target_change is {self.target_change}: it must be a positive number")
        if self.epochs is not None and self.points is None:
            raise ValueError("epochs are passes over points: give points")
        if self.target_change is not None and self.points is None:
            raise ValueError("target_change is checked once per pass over points: give points")
        if not 0 <= self.replicas < self.servers:
            raise ValueError(
                f"replicas is {self.replicas}: with {self.servers} server(s) a slice can have"
                f" 0 to {self.servers - 1}"
            )
        if self.min_batch > max(DEFAULT, self.batch):
            raise ValueError(f"min_batch is {self.min_batch}, larger than batch {self.batch}")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}: it must be at least 0")
        for name in ("heartbeat", "lead_timeout"):
            if not getattr(self, name):
                raise ValueError(f"{name} is 0s: it must be longer")
        for name in ("model", "slice"):
            if getattr(self, name) < _ITEM_NBYTES:
                raise ValueError(f"{name} is smaller than one parameter of {_ITEM_NBYTES} bytes")
        if self.local_steps != 1 and not steps_on_workers(self.kind):
            raise ValueError("local_steps needs kind = 'local'")
        if self.weights not in (BY_POINTS, BY_WORKERS):
            raise ValueError(f"weights is {self.weights!r}: give {BY_POINTS} or {BY_WORKERS}")
        if self.placement not in SCHEMES:
            raise ValueError(f"placement is {self.placement!r}: give {', '.join(SCHEMES)}")
        if self.push not in (EXACT, INT8):
            raise ValueError(f"push is {self.push!r}: give {EXACT} or {INT8}")
        self.timer_text()

    def timer_text(self) -> str:
        """The timer in the format of the job's spec: in seconds."""
        return self.timer if self.timer in _TIMERS else f"{Duration.parse(self.timer) / 1e9}s"


class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker of a group, with the table of the group."""

    name: str
    table: WorkersTable
    link: LinkSettings


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    job: JobTable
    workers: tuple[WorkersTable, ...] = ()
    link: LinkSettings = LinkSettings()
    hosts: tuple[HostTable, ...] = ()
    """The hosts whose network cards limit what their processes send and receive. The links of other
    processes do not share bandwidth."""
    objective: ObjectiveTable | None = None
    """The model of learning. None: the simulation has no objective."""
    events: tuple[Happening, ...] = ()

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("there are no workers: give at least one [[workers]] table")
        if self.job.target is not None and self.objective is None:
            raise ValueError("the target needs an objective: give an [objective] table")
        if self.job.target_change is not None and self.objective is None:
            raise ValueError("target_change needs an objective: give an [objective] table")
        if self.job.weights != BY_POINTS and self.objective is not None:
            raise ValueError(
                "[objective] models learning by the number of points: give weights = 'points'"
            )
        if not self.job.data_private and any(g.points or g.share_data for g in self.workers):
            raise ValueError(
                "the fields points and share_data of a worker need data_private = true"
            )
        if self.job.data_private and self.job.points is None:
            raise ValueError(
                "with data_private = true the job needs the points of a worker: give points in [job]"
            )
        names = [worker.name for worker in self.cast()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two workers are called {twice!r}")
        self._check_hosts(names)
        servers = self.job.servers
        for event in sorted(self.events, key=lambda event: event.at):
            servers += event.what == "join" and event.server == servers
            for server in (event.server, event.peer):
                if server is not None and not 0 <= server < servers:
                    raise ValueError(
                        f"an event is about server {server}, which the job does not have"
                    )
            if event.worker is not None and event.worker not in names:
                raise ValueError(
                    f"an event is about {event.worker!r}, which is not a worker's name"
                )
        if all(group.join for group in self.workers) and self.job.workers is None:
            raise ValueError(
                "no worker joins at the beginning: give one worker without the field join"
            )

    def _check_hosts(self, workers: list[str]) -> None:
        placed = [name for host in self.hosts for name in host.processes()]
        if len(set(placed)) < len(placed):
            twice = next(name for name in placed if placed.count(name) > 1)
            raise ValueError(f"{twice} is on two hosts")
        for host in self.hosts:
            if unknown := set(host.workers) - set(workers):
                raise ValueError(f"a host has {min(unknown)!r}, which is not a worker's name")
        for event in self.events:
            if event.host is not None and not 0 <= event.host < len(self.hosts):
                raise ValueError(f"an event is about host {event.host}, which does not exist")

    def cast(self) -> list[WorkerSpec]:
        """All workers, in the order of the file. A worker without a name gets a name from its
        number."""
        found: list[WorkerSpec] = []
        for group in self.workers:
            for index in range(group.count):
                name = group.name or f"worker-{len(found)}"
                if group.name is not None and group.count > 1:
                    name = f"{group.name}-{index}"
                link = group.link or self.link
                found.append(WorkerSpec(name, group, link))
        return found

    def job_spec(self, name: str) -> JobSpec:
        job = self.job
        present = sum(group.count for group in self.workers if not group.join)
        spec = JobSpec(
            job="simulated",
            name=name,
            workers=job.workers or present,
            servers=job.servers,
            sync=job.sync,
            timer=job.timer_text(),
            optimizer_on=job.optimizer_on,
            kind=job.kind,
            local_steps=job.local_steps,
            outer=job.outer,
            weights=job.weights,
            push=job.push,
            rounds=job.rounds,
            epochs=job.epochs,
            points=job.max_points,
            seed=job.seed,
            start_timeout_s=job.start_timeout / 1e9,
            slice_nbytes=int(job.slice),
            heartbeat_s=job.heartbeat / 1e9,
            targets=() if job.target is None else (parse_target(job.target),),
            target_change=job.target_change,
            lead_timeout_s=job.lead_timeout / 1e9,
            max_seconds=job.max_time / 1e9 if job.max_time else None,
            interval=job.interval,
            coordination=job.coordination,
            abandon=job.abandon,
            migrate=job.migrate,
            data_private=job.data_private,
            migrate_memory=None if job.migrate_memory is None else int(job.migrate_memory),
            most_steps=job.most_steps,
            probe_points=job.probe_points,
            min_batch=job.min_batch,
            replicas=job.replicas,
            placement=job.placement,
            save_model=job.save_model,
            read_ahead=job.read_ahead,
            checkpoint_every=job.checkpoint_every,
            store="simulated" if job.checkpoint_every else "",
        )
        return choose_kind(spec)


def read_scenario(path: Path) -> Scenario:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return parse_scenario(text, str(path))


def parse_scenario(text: bytes | str, source: str) -> Scenario:
    """Parse a scenario. `source`: the name of the text in error messages."""
    try:
        scenario = msgspec.toml.decode(text, type=Scenario, dec_hook=_parse_quantity)
        choose_policy(scenario.job_spec("simulated"))
        Schedule.parse(scenario.job.checkpoint_every)
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
        raise UsageError(f"{source}: {error}") from None
    return scenario


def with_policy(scenario: Scenario, sync: str) -> Scenario:
    """The same scenario under another policy. Raises an error if its settings do not allow that
    policy."""
    job = msgspec.structs.replace(scenario.job, sync=sync)
    changed = msgspec.structs.replace(scenario, job=job)
    choose_policy(changed.job_spec("simulated"))
    return changed


def _parse_quantity(kind: type[Any], value: object) -> object:
    if kind in (Duration, Size, Rate):
        return kind.parse(value)
    raise NotImplementedError(f"a scenario cannot contain values of type {kind.__name__}")

"""A scenario: a job, its links, its workers and what befalls them, read from a TOML file.

Everything that cannot work is refused here, in one line that says where it stands.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from polyrhythm.core.sync.choose import choose_policy
from polyrhythm.errors import UsageError
from polyrhythm.sim.quantities import Duration, Rate, Size
from polyrhythm.wire.messages import JobSpec

_ITEM_NBYTES = 4
_TIMERS = ("auto", "off")


class JobTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    sync: str = "bsp"
    timer: str = "auto"
    kind: str = "gradient"
    local_steps: int = 1
    servers: int = 1
    workers: int | None = None
    """How many are waited for before round 1 opens; by default those who come at once."""
    rounds: int | None = None
    epochs: int | None = None
    max_time: Duration | None = None
    """Virtual time after the opening of round 1 at which the job ends."""
    points: int | None = None
    """Of the data set; without it, workers contribute and visit nothing."""
    batch: int = 32
    model: Size = Size(10**6)
    slice: Size = Size(2 * 2**20)
    fold_rate: Rate = Rate(10**10)
    """Bytes that a server folds in a second."""
    seed: int = 0
    """Of the dealing of points. What is random in the simulation has a seed of its own."""
    heartbeat: Duration = Duration(500_000_000)
    start_timeout: Duration = Duration(60 * 10**9)
    limit: Duration = Duration(3600 * 10**9)
    """Virtual time after which a run that does not end is given up."""

    def __post_init__(self) -> None:
        for name in ("local_steps", "servers", "workers", "rounds", "epochs", "points", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        if self.rounds is None and self.epochs is None and not self.max_time:
            raise ValueError("it would never end: give rounds, epochs or max_time")
        if self.epochs is not None and self.points is None:
            raise ValueError("epochs are passes over points: give points")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}: it must be at least 0")
        if not self.heartbeat:
            raise ValueError("heartbeat is 0s: it must be longer")
        for name in ("model", "slice"):
            if getattr(self, name) < _ITEM_NBYTES:
                raise ValueError(f"{name} is smaller than one parameter of {_ITEM_NBYTES} bytes")
        if self.local_steps != 1 and self.kind != "local":
            raise ValueError("local_steps goes with kind = 'local'")
        self.timer_text()

    def timer_text(self) -> str:
        """As the job's spec has it: in seconds."""
        return self.timer if self.timer in _TIMERS else f"{Duration.parse(self.timer) / 1e9}s"


class LinkTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one link is. A stream loses nothing: what is lost on the way is sent again, a time-out
    later, and everything behind it waits."""

    delay: Duration = Duration(100_000)
    bandwidth: Rate = Rate(1_250_000_000)
    loss: float = 0.0
    """How likely a message is lost on the way, each time it is sent."""
    timeout: Duration = Duration(200_000_000)

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss is {self.loss}: it must be at least 0 and less than 1")


class WorkersTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One worker, or a group of `count` that are alike."""

    step: Duration
    count: int = 1
    name: str | None = None
    step_noise: float = 0.0
    """The standard deviation of a step's time, as a part of it."""
    link: LinkTable | None = None
    join: Duration = Duration(0)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}: it must be at least 1")
        if not 0 <= self.step_noise < 1:
            raise ValueError(
                f"step_noise is {self.step_noise}: it must be at least 0 and less than 1"
            )


class Happening(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at: Duration
    what: Literal["crash", "stop", "continue", "leave", "slow", "join"]
    worker: str
    factor: float | None = None
    """Slow: its steps take so many times as long as the table says."""

    def __post_init__(self) -> None:
        if (self.factor is not None) != (self.what == "slow"):
            raise ValueError("factor goes with what = 'slow', and that needs one")
        if self.factor is not None and not 0 < self.factor < float("inf"):
            raise ValueError(f"factor is {self.factor}: it must be a positive number")


class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker, as a group's table describes it."""

    name: str
    step_ns: int
    step_noise: float
    link: LinkTable
    join_ns: int


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    job: JobTable
    workers: tuple[WorkersTable, ...]
    link: LinkTable = LinkTable()
    events: tuple[Happening, ...] = ()

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("there are no workers: give at least one [[workers]] table")
        names = [worker.name for worker in self.cast()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two workers are called {twice!r}")
        for event in self.events:
            if event.worker not in names:
                raise ValueError(f"an event is about {event.worker!r}, which is no worker here")
        if all(group.join for group in self.workers) and self.job.workers is None:
            raise ValueError("nobody is there at the beginning: give one worker without join")

    def cast(self) -> list[WorkerSpec]:
        """Every worker, in order. Who has no name of its own is called by its number."""
        found: list[WorkerSpec] = []
        for group in self.workers:
            for index in range(group.count):
                name = group.name or f"worker-{len(found)}"
                if group.name is not None and group.count > 1:
                    name = f"{group.name}-{index}"
                link = group.link or self.link
                found.append(WorkerSpec(name, group.step, group.step_noise, link, group.join))
        return found

    def job_spec(self, name: str) -> JobSpec:
        job = self.job
        present = sum(group.count for group in self.workers if not group.join)
        return JobSpec(
            job="simulated",
            name=name,
            workers=job.workers or present,
            servers=job.servers,
            sync=job.sync,
            timer=job.timer_text(),
            kind=job.kind,
            local_steps=job.local_steps,
            rounds=job.rounds,
            epochs=job.epochs,
            seed=job.seed,
            start_timeout_s=job.start_timeout / 1e9,
            slice_nbytes=int(job.slice),
            heartbeat_s=job.heartbeat / 1e9,
            max_seconds=job.max_time / 1e9 if job.max_time else None,
        )


def read_scenario(path: Path) -> Scenario:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return parse_scenario(text, str(path))


def parse_scenario(text: bytes | str, source: str) -> Scenario:
    """`source` is what the text is called where it is refused."""
    try:
        scenario = msgspec.toml.decode(text, type=Scenario, dec_hook=_parse_quantity)
        choose_policy(scenario.job_spec("simulated"))
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
        raise UsageError(f"{source}: {error}") from None
    return scenario


def _parse_quantity(kind: type[Any], value: object) -> object:
    if kind in (Duration, Size, Rate):
        return kind.parse(value)
    raise NotImplementedError(f"a scenario holds no {kind.__name__}")

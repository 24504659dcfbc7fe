"""The tables of a scenario about its links, its workers and the model of learning. Also the
durations, sizes and rates in them, as people write them: `10ms`, `2MiB`, `1Gbit`."""

import math
import re
from collections.abc import Callable

import msgspec

from polyrhythm.core.names import server_name
from polyrhythm.core.values import bytes_of_unit, parse_size

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BITS = {"bit": 1 / 8, "kbit": 10**3 / 8, "mbit": 10**6 / 8, "gbit": 10**9 / 8}
_TEXT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*")


class Duration(int):
    """In nanoseconds."""

    @classmethod
    def parse(cls, text: object) -> "Duration":
        return cls(round(_number(text, _SECONDS.get, "a duration", "10ms or 2s") * 1e9))


class Size(int):
    """In bytes."""

    @classmethod
    def parse(cls, text: object) -> "Size":
        return cls(parse_size(text if isinstance(text, str) else repr(text)))


class Rate(int):
    """A rate in bytes per second."""

    @classmethod
    def parse(cls, text: object) -> "Rate":
        rate = cls(_number(text, _rate_of_unit, "a rate, per second", "1Gbit or 100MB"))
        if not rate:
            raise ValueError(f"{text!r} is not a rate that can be used: nothing would ever arrive")
        return rate


def _rate_of_unit(unit: str) -> float | None:
    """The bytes of a unit of a rate. The unit says whether it counts bits or bytes: it ends with
    `bit` or with a capital `B`."""
    return bytes_of_unit(unit) if unit.endswith("B") else _BITS.get(unit.lower())


def _number(
    text: object, factor_of: Callable[[str], float | None], what: str, examples: str
) -> float:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    factor = None if match is None else factor_of(match[2])
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not {what}: give for example {examples}")
    number = float(match[1]) * factor
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not {what}: it is too large")
    return number


def check_factor(factor: float) -> None:
    """Refuse an invalid factor for slowing down steps."""
    if not 0 < factor < float("inf"):
        raise ValueError(f"factor is {factor}: it must be a positive number")


_WIDEST = 3.0


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The properties of a link. A lost packet is sent again after a time-out, and all messages
    behind it wait."""

    delay: Duration = Duration(100_000)
    bandwidth: Rate = Rate(1_250_000_000)
    loss: float = 0.0
    """The probability that a message is lost, each time it is sent."""
    timeout: Duration = Duration(200_000_000)

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss is {self.loss}: it must be at least 0 and less than 1")


class HostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A host with a network card, whose rates all links of its servers and workers to other hosts
    share. Links within the host do not pass the card."""

    outgoing: Rate
    incoming: Rate
    servers: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()

    def processes(self) -> list[str]:
        """The names of the processes of this host."""
        return [*map(server_name, self.servers), *self.workers]


class ObjectiveTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model of learning (`sim/model/objective.py`)."""

    halving: int
    """The number of points that halve the objective if each is folded alone."""
    at_once: int
    """If this many points are folded at once, each of them counts half."""
    start: float = 1.0

    def __post_init__(self) -> None:
        for name in ("halving", "at_once", "start"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}: it must be a positive number")


class Slowing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """From this time on, steps take `factor` times as long."""

    at: Duration
    factor: float

    def __post_init__(self) -> None:
        check_factor(self.factor)


class Stall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pause after every `points` points (FSP's *Injected* straggler)."""

    pause: Duration
    points: int

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ValueError(f"points is {self.points}: it must be at least 1")


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Another user of the same host, who is active for `on` and then idle for `off`, in turn (FSP's
    *Natural* straggler). While it is active, steps take `factor` times as long."""

    on: Duration
    off: Duration
    factor: float

    def __post_init__(self) -> None:
        check_factor(self.factor)
        if not self.on or not self.off:
            raise ValueError("on and off must be longer than 0s")


class WorkersTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One worker, or a group of `count` equal workers. `step` is the time of a step. Steps have at
    most one kind of noise."""

    step: Duration
    count: int = 1
    name: str | None = None
    step_noise: float = 0.0
    """Normal noise: the standard deviation of a step's time, as a fraction of `step`."""
    step_lognormal: float = 0.0
    """Log-normal noise: the standard deviation of the logarithm of a step's time. `step` is the
    median."""
    step_pareto: float | None = None
    """Pareto noise: the exponent. Near 1, very long steps are frequent. `step` is the shortest
    time."""
    slows: tuple[Slowing, ...] = ()
    stall: Stall | None = None
    tenant: Tenant | None = None
    link: LinkSettings | None = None
    handling: Duration = Duration(0)
    """How long the worker itself takes for an exchange, to copy what it sends and receives."""
    join: Duration = Duration(0)
    memory: int | None = None
    """How many points of other workers fit into the worker's memory; None: any number."""
    points: int | None = None
    """With data_private: the number of points in the worker's own data set; None: as many as the
    job's table says."""
    data: str = ""
    """The fingerprint of the worker's data set. If workers have different fingerprints, migrate =
    "auto" means full."""
    share_data: bool = False
    """With data_private: whether the worker sends its points to others."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}: it must be at least 1")
        if not self.step:
            raise ValueError("step is 0s: it must be longer")
        if self.points is not None and self.points < 1:
            raise ValueError(f"points is {self.points}: it must be at least 1")
        if not 0 <= self.step_noise < 1:
            raise ValueError(
                f"step_noise is {self.step_noise}: it must be at least 0 and less than 1"
            )
        if not 0 <= self.step_lognormal <= _WIDEST:
            raise ValueError(
                f"step_lognormal is {self.step_lognormal}: it must be from 0 to {_WIDEST:g}"
            )
        if self.step_pareto is not None and not 1 < self.step_pareto < float("inf"):
            raise ValueError(
                f"step_pareto is {self.step_pareto}: it must be above 1, or steps have no mean"
            )
        if bool(self.step_noise) + bool(self.step_lognormal) + (self.step_pareto is not None) > 1:
            raise ValueError("give one of step_noise, step_lognormal and step_pareto")
        if [change.at for change in self.slows] != sorted(change.at for change in self.slows):
            raise ValueError("the entries of slows must be in the order of their time `at`")

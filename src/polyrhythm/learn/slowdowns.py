"""Slows workers and servers down on purpose, so that policies can be compared on one host.

The plan has no side effects: it computes from the time and the points of a step how much longer the
step must take. *Injected* and *Natural* are FSP's two kinds of stragglers (§7). An injected
straggler pauses after a fixed number of points. A natural straggler shares its host with another
process.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyrhythm.core.values import parse_duration
from polyrhythm.errors import UsageError

_SPIN_NS = 50_000
"""A pause ends with a busy wait of this length, because a sleep alone ends late. The busy wait is
short because workers share cores. If a pause is still too long, the next one is shorter by the
difference."""
_MOST_FACTOR = 1000.0
_NAME = re.compile(r"worker-(\d+)")
_ITEM = re.compile(r"(?:(?P<at>[^:=]*):)?(?P<worker>\d+)(?:=(?P<value>.+))?", re.ASCII)
_SHAPES = {
    "min-step": "a duration such as 10ms",
    "slow": "FACTOR such as 4x",
    "slow-at": "TIME:FACTOR such as 60s:4x",
    "stall": "PAUSE/POINTS such as 32ms/1000",
    "tenant": "nothing",
}
_SHAPES_OF_WORKERS = {
    "min-step": "a duration such as 10ms",
    "slow": "WORKER=FACTOR such as 3=4x",
    "slow-at": "TIME:WORKER=FACTOR such as 60s:3=4x",
    "stall": "WORKER=PAUSE/POINTS such as 3=32ms/1000",
    "tenant": "a worker's number such as 2",
}
_OF_A_SERVER = re.compile(r"(?P<server>\d+)=(?P<pause>.+)", re.ASCII)
_OF_WORKERS = ("slow", "slow-at", "stall", "tenant")
"""Flags whose items name a worker. `min-step` applies to all workers."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How one worker is slowed down."""

    min_step_ns: int = 0
    factor: float = 1.0
    changes: tuple[tuple[int, float], ...] = ()
    """For a worker whose speed changes: pairs of a time and the factor by which steps take longer
    from that time on, in order of time."""
    stall_ns: int = 0
    stall_points: int = 1
    tenant: bool = False

    def pad_ns(
        self,
        elapsed_ns: int,
        computed_ns: int,
        points: float,
        visited: float = 0,
        share: float = 1.0,
    ) -> int:
        """Return how much longer a step must take. The step took `computed_ns` and visited `points`
        points. `elapsed_ns`: how long this worker has trained. `visited`: its points before this
        step. `share`: the length of this step as a share of a full step. It differs from 1 if the sync
        policy chooses the points of a step."""
        factor = self.factor
        for since_ns, later in self.changes:
            if elapsed_ns >= since_ns:
                factor = later
        stalls = (visited + points) // self.stall_points - visited // self.stall_points
        whole_ns = max(computed_ns, self.min_step_ns * share) * factor + stalls * self.stall_ns
        return max(0, round(whole_ns) - computed_ns)

    def amended(self, flags: Mapping[str, str]) -> "Slowdown":
        """Return this slowdown with the changes from the flags of `polyrhythm worker`, such as
        {"slow": "4x"}."""
        slowdown = self
        for flag, text in flags.items():
            slowdown = _amend(slowdown, flag, text, text, _SHAPES)
        return slowdown


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """The slowdowns of a job, as its flags name them: of workers, and of the folds of servers."""

    default: Slowdown = Slowdown()
    of_workers: dict[int, Slowdown] = field(default_factory=dict)
    fold_pauses_ns: dict[int, int] = field(default_factory=dict)
    """Per server, the pause that is added to each of its folds, in nanoseconds."""

    @classmethod
    def parse(
        cls, flags: Mapping[str, str], workers: int | None = None, servers: int | None = None
    ) -> "Slowdowns":
        """Parse the flags of the command line. The items of a flag are separated by commas.
        `workers` and `servers`: how many there are, to check the numbers in the items. None: do not
        check."""
        default = Slowdown()
        if "min-step" in flags:
            text = flags["min-step"]
            default = _amend(default, "min-step", text, text, _SHAPES_OF_WORKERS)
        of_workers: dict[int, Slowdown] = {}
        said: set[tuple[str, int]] = set()
        for flag in _OF_WORKERS:
            for item in flags[flag].split(",") if flag in flags else ():
                worker, value = _worker_of(flag, item)
                if workers is not None and worker >= workers:
                    numbers = (
                        f"the workers have the numbers 0 to {workers - 1}"
                        if workers > 1
                        else "the only worker has the number 0"
                    )
                    raise UsageError(
                        f"--{flag} {item!r}: there is no worker {worker}; with --workers {workers}"
                        f" {numbers}"
                    )
                if flag != "slow-at" and (flag, worker) in said:
                    raise UsageError(f"--{flag} {item!r}: worker {worker} has a --{flag} already")
                said.add((flag, worker))
                slowdown = of_workers.get(worker, default)
                of_workers[worker] = _amend(slowdown, flag, value, item, _SHAPES_OF_WORKERS)
        items = flags.get("slow-fold", "").split(",")
        return cls(default, of_workers, dict(_fold_pause(item, servers) for item in items if item))

    def fold_pause_s(self, server: int) -> float:
        return self.fold_pauses_ns.get(server, 0) / 1e9

    def of(self, name: str) -> Slowdown:
        """Return the slowdown of the worker with this name. The number in the name counts: `worker-3`
        has the number 3."""
        match = _NAME.fullmatch(name)
        return self.of_workers.get(int(match[1]), self.default) if match else self.default

    def pad_ns(
        self, worker: int, elapsed_ns: int, computed_ns: int, points: float, visited: float = 0
    ) -> int:
        slowdown = self.of_workers.get(worker, self.default)
        return slowdown.pad_ns(elapsed_ns, computed_ns, points, visited)


class Pacer:
    """Makes a worker's steps as long as its slowdown requires."""

    def __init__(self, slowdown: Slowdown) -> None:
        self.share = 1.0
        """The length of the next step as a share of a full step."""
        self._slowdown = slowdown
        self._visited = 0.0
        self._counted = 0.0
        self._overslept_ns = 0
        """How much too long the last pause was. The next pause is shorter by this time."""
        self.begin()

    def begin(self) -> None:
        """Begin to count: the worker has joined the job, so its training time and its first step
        begin now."""
        self._began_ns = self._since_ns = time.monotonic_ns()

    def pace(self, points: float) -> None:
        """End a step that visited `points` points. Sleep until the step is as long as the slowdown
        requires."""
        now_ns = time.monotonic_ns()
        new = points - self._counted
        pad_ns = self._slowdown.pad_ns(
            now_ns - self._began_ns, now_ns - self._since_ns, new, self._visited, self.share
        )
        self._visited += new
        self._counted = points
        until_ns = now_ns + max(0, pad_ns - self._overslept_ns)
        if pad_ns:
            _sleep_until(until_ns)
        self._since_ns = time.monotonic_ns()
        self._overslept_ns = min(pad_ns, self._since_ns - until_ns) if pad_ns else 0

    def exclude_time(self, nanoseconds: int) -> None:
        """Do not count this time as computing."""
        self._since_ns += nanoseconds

    def resume(self, since_ns: int) -> None:
        """Begin the next step. The exchange is over, and this worker has been computing since
        `since_ns`."""
        self._counted = 0.0
        self._since_ns = since_ns


def _sleep_until(until_ns: int) -> None:
    """Sleep until this time. Nothing ends the sleep early: the sleep represents computing, which
    nothing would interrupt."""
    rest_ns = until_ns - _SPIN_NS - time.monotonic_ns()
    if rest_ns > 0:
        time.sleep(rest_ns / 1e9)
    while time.monotonic_ns() < until_ns:
        pass


# -- from text ---------------------------------------------------------------------------------


def _worker_of(flag: str, item: str) -> tuple[int, str]:
    """Split an item into the number of the worker and the rest: 60s:3=4x gives (3, 60s:4x)."""
    match = _ITEM.fullmatch(item.strip())
    shape = _SHAPES_OF_WORKERS[flag]
    if match is None or (match["at"] is not None) != (flag == "slow-at"):
        raise UsageError(f"--{flag} {item!r} is not understood: give {shape}")
    at, value = match["at"], match["value"] or ""
    return int(match["worker"]), value if at is None else f"{at}:{value}"


def _amend(
    slowdown: Slowdown, flag: str, text: str, said: str, shapes: Mapping[str, str]
) -> Slowdown:
    try:
        match flag:
            case "min-step":
                return replace(slowdown, min_step_ns=parse_duration(text))
            case "slow":
                return replace(slowdown, factor=_factor(text))
            case "slow-at":
                at, _, factor = text.partition(":")
                changes = (*slowdown.changes, (parse_duration(at), _factor(factor)))
                return replace(slowdown, changes=tuple(sorted(changes)))
            case "stall":
                pause, _, points = text.partition("/")
                return replace(
                    slowdown, stall_ns=parse_duration(pause), stall_points=_positive(points)
                )
            case "tenant" if not text:
                return replace(slowdown, tenant=True)
            case _:
                raise ValueError("only this form is known")
    except ValueError as error:
        raise UsageError(
            f"--{flag} {said!r} is not understood: give {shapes[flag]} ({error})"
        ) from None


def _fold_pause(item: str, servers: int | None) -> tuple[int, int]:
    """Split an item into the number of the server and the pause that is added to its folds, in
    nanoseconds."""
    match = _OF_A_SERVER.fullmatch(item.strip())
    try:
        if match is None:
            raise ValueError("a server must be named")
        server, pause_ns = int(match["server"]), parse_duration(match["pause"])
    except ValueError as error:
        shape = "SERVER=PAUSE such as 0=500ms"
        raise UsageError(
            f"--slow-fold {item!r} is not understood: give {shape} ({error})"
        ) from None
    if servers is not None and server >= servers:
        raise UsageError(
            f"--slow-fold {item!r}: there is no server {server} with --servers {servers}"
        )
    return server, pause_ns


def _factor(text: str) -> float:
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= _MOST_FACTOR:
        raise ValueError(f"a factor is a number from 1 to {_MOST_FACTOR:.0f}")
    return factor


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("the number of points must be a whole number of at least 1")
    return int(text)

"""One run of the measurements: which problem, which policy, and which workers are slow."""

from dataclasses import dataclass
from typing import Any

from benchmarks.fsp.problems import LARGE, PROBLEMS, SORTED, Problem

WORKERS = 4
POINTS = {
    **{"higgs.npy": 10_984, SORTED: 10_984, LARGE: 1_098_400},
    **{"films.npy": 3_650, "digits.npz": 3_000},
}
POLICIES = {
    "bspb": "--sync bspb",
    "bspv": "--sync bspv",
    "fspb": "--sync fsp --interval binary --migrate off",
    "fspv": "--sync fsp --interval auto --migrate off",
    "fspv, central": "--sync fsp --interval auto --migrate off --coordination central",
    "fspv, lease": "--sync fsp --interval auto --migrate lease",
    "fspv, full": "--sync fsp --interval auto --migrate full",
    "fspv, blocking": "--sync fsp --interval auto --migrate blocking",
    **{
        f"60 ms, {way}": f"--sync fsp --interval 60ms --migrate {way}"
        for way in ("off", "lease", "full")
    },
    "asp": "--sync asp",
}
"""The policies by the names of the FSP paper, with their flags. `asp 32` makes 32 contributions per
pass of a worker."""
_FIXED = "interval "
"""`interval 0.1` is fsp with a fixed interval of 0.1 passes."""


@dataclass(frozen=True, slots=True)
class Spec:
    problem: str
    policy: str
    slow: tuple[tuple[int, float], ...] = ()
    """The stalled workers. The factor of each says how many times as long as usual it needs for a
    point."""
    rep: int = 0
    """The number of the start. It decides the first parameters, the order of the points and the target,
    and is the same for all policies."""
    link: str = ""
    """The rate of the link between processes, such as `50mbit`; empty: links within a host."""
    hold_s: float = 0.0
    """If this is above 0, the run lasts this many seconds, whatever its objective."""

    @property
    def of(self) -> Problem:
        return PROBLEMS[self.problem]

    @property
    def pass_s(self) -> float:
        return self.of.pass_s

    @property
    def share(self) -> int:
        """The number of points that each worker has."""
        return POINTS[self.of.data] // WORKERS

    @property
    def batch(self) -> int:
        name, _, parts = self.policy.partition(" ")
        return max(1, self.share // int(parts)) if name == "asp" else self.of.batch

    @property
    def most_s(self) -> float:
        """How long the run trains at most: three times as long as `bspb` needs with equal workers.
        If a run has not reached the target by then, this time is taken as its result. `bspb` and `bspv`
        wait for the slowest worker, so their limit is at least 1.5 times the time that this worker
        needs."""
        if self.hold_s:
            return self.hold_s
        slowest = max((factor for _, factor in self.slow), default=1.0)
        waits = "bsp" in self.policy
        return self.of.passes * self.pass_s * max(3.0, 1.5 * slowest if waits else 0.0)

    @property
    def flags(self) -> list[str]:
        """The flags of `polyrhythm train` that belong to this run."""
        point_s = self.pass_s / self.share
        flags = ["--kind", self.of.kind, *self._policy_flags()]
        flags += ["--min-step", _ms(self.batch * point_s)]
        for worker, factor in self.slow:
            pause = _ms((factor - 1) * point_s * self.of.stall_every)
            flags += ["--stall", f"{worker}={pause}/{self.of.stall_every}"]
        return flags + (["--link", "tcp"] if self.link else [])

    def _policy_flags(self) -> list[str]:
        if self.policy.startswith(_FIXED):
            interval = _ms(float(self.policy.removeprefix(_FIXED)) * self.pass_s)
            return ["--sync", "fsp", "--interval", interval, "--migrate", "off"]
        name, _, parts = self.policy.partition(" ")
        return POLICIES[name if parts.isdigit() else self.policy].split()

    @property
    def described(self) -> dict[str, Any]:
        """The description of this run as JSON, which also identifies the run in a file of
        results."""
        slow = [list(item) for item in self.slow]
        told = {"problem": self.problem, "policy": self.policy, "slow": slow, "rep": self.rep}
        return {**told, "link": self.link, "hold_s": self.hold_s}

    @classmethod
    def read(cls, told: dict[str, Any]) -> "Spec":
        slow = tuple((int(worker), float(factor)) for worker, factor in told["slow"])
        return cls(**{**told, "slow": slow})

    @property
    def name(self) -> str:
        slow = ", ".join(f"worker {worker} {factor:g}x" for worker, factor in self.slow)
        held = f", {self.hold_s:g} s" if self.hold_s else ""
        return f"{self.problem}, {self.policy}{f', {slow}' if slow else ''}{held} ({self.rep + 1})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4f}ms"

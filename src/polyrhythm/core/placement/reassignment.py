"""Whether a new assignment of slices is taken.

*A new assignment is taken if it makes rounds shorter by at least 3% and the error of the measurements,
if the time that it saves in the remaining rounds is longer than the time in which its slices move, and
if two measurements in a row say so.* More than 100 rounds ahead, nothing is known about the network. A
rate that varies without a trend is averaged over many measurements, so that noise moves no slice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from polyrhythm.core.kinds import sums_only
from polyrhythm.wire.messages import JobSpec, ModelSpec, OptimizerSpec

HORIZON_ROUNDS = 100
LEAST_GAIN = 0.03
NOISE = 0.15
"""The relative error of one measurement. Two equal links that are shaped with `tc` differ by so much."""
CONFIRMATIONS = 2
_FAR = 1.25
"""A rate that differs by more than this factor has changed, and is not noise."""
_MOST_AVERAGED = 20


class SteadyRate(msgspec.Struct, gc=False):
    """The mean of a rate since it last changed."""

    value: float
    seen: float
    """The last measurement."""
    count: int = 1
    """How many measurements are in the mean."""

    @classmethod
    def begin(cls, rate: float) -> "SteadyRate":
        return cls(rate, rate)

    def add(self, rate: float) -> bool:
        """Take in a measurement. Returns False if it is the one that was seen last."""
        if rate == self.seen:
            return False
        self.seen = rate
        if not self.value / _FAR <= rate <= self.value * _FAR:
            self.value, self.count = rate, 0
        self.count = min(self.count + 1, _MOST_AVERAGED)
        self.value += (rate - self.value) / self.count
        return True


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a new assignment promises: the time of a round now and then, and what its moves cost."""

    now_s: float
    then_s: float
    moving_s: float = 0.0
    moving_nbytes: float = 0.0

    @property
    def gain(self) -> float:
        """By which part rounds become shorter."""
        return 1 - self.then_s / self.now_s if self.now_s > 0 else 0.0

    def pays(self, rounds: int, measured: int) -> bool:
        """Whether the assignment is better if so many rounds follow. `measured`: of how many
        measurements each rate is the mean."""
        saved_s = (self.now_s - self.then_s) * rounds
        least = LEAST_GAIN + NOISE / math.sqrt(max(1, measured))
        return self.gain >= least and saved_s > self.moving_s


def horizon(job: JobSpec, done: int) -> int:
    """For how many rounds a new assignment is expected to be used."""
    if job.rounds is None:
        return HORIZON_ROUNDS
    return max(0, min(HORIZON_ROUNDS, job.rounds - done))


_STATES = {"SGD": 0, "Adagrad": 1, "ASGD": 1, "RMSprop": 1}
_MORE_STATES = ("momentum", "amsgrad", "centered")
"""Per optimizer, how many values it keeps for one parameter (2 if it is not listed), and the options
that add one."""


def _states(optimizer: OptimizerSpec) -> int:
    more = (name for name in _MORE_STATES if any(group.get(name) for group in optimizer.groups))
    return _STATES.get(optimizer.name, 2) + len(list(more))


def moving_nbytes(job: JobSpec, spec: ModelSpec, nbytes: int) -> float:
    """What must be copied so that another server can take over slices of this size: the parameters and
    the state of the optimizer, or only the sum of the gradients if workers make the steps."""
    if sums_only(job):
        return nbytes
    if job.kind == "gradient" and job.updater != "addition":
        return nbytes * (1 + max(map(_states, spec.optimizers)))
    if job.kind == "statistics":
        return nbytes * (1 + job.workers)  # a row for each worker
    return nbytes * (1 if job.outer == "off" else 2)


def moving_s(fetched: Mapping[tuple[int, int], float], rates: Mapping[int, float]) -> float:
    """How long the busiest server is occupied by copies. `fetched`: the bytes per source and target.
    `rates`: the bytes per second of each server."""
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    for (source, target), nbytes in fetched.items():
        sent[source] = sent.get(source, 0.0) + nbytes
        received[target] = received.get(target, 0.0) + nbytes
    return max(
        (
            nbytes / rates[server]
            for table in (sent, received)
            for server, nbytes in table.items()
            if server in rates
        ),
        default=0.0,
    )

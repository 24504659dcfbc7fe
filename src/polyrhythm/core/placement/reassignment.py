"""Decides whether the lead adopts a new assignment of slices to servers.

*The lead adopts a new assignment if three conditions hold. Rounds become shorter by at least 3%
plus the measurement error. The remaining rounds save more time than moving the slices costs. Two
consecutive measurements agree.* Only the next 100 rounds count, because the network may change
later. A rate that varies without a trend is averaged over many measurements, so that noise does not
move slices.
"""

import math
from collections.abc import Mapping

import msgspec

from polyrhythm.core.kinds import sums_only
from polyrhythm.wire.messages import JobSpec, ModelSpec, OptimizerSpec

HORIZON_ROUNDS = 100
LEAST_GAIN = 0.03
NOISE = 0.15
"""The relative error of one measurement: the measured rates of two links that `tc` limits to the
same rate differ by this much."""
CONFIRMATIONS = 2
_FAR = 1.25
"""If a measurement differs from the mean by more than this factor, the rate has changed; a smaller
difference is noise."""
_MOST_AVERAGED = 20


class SteadyRate(msgspec.Struct, gc=False):
    """The mean of a rate since the rate last changed."""

    value: float
    seen: float
    """The last measurement."""
    count: int = 1
    """How many measurements are in the mean."""

    @classmethod
    def begin(cls, rate: float) -> "SteadyRate":
        return cls(rate, rate)

    def add(self, rate: float) -> bool:
        """Add a measurement to the mean. Returns False if it is the same measurement as the last
        one."""
        if rate == self.seen:
            return False
        self.seen = rate
        if not self.value / _FAR <= rate <= self.value * _FAR:
            self.value, self.count = rate, 0
        self.count = min(self.count + 1, _MOST_AVERAGED)
        self.value += (rate - self.value) / self.count
        return True


class Prospect(msgspec.Struct, frozen=True):
    """The expected effect of a new assignment: the time of a round before and after it, and the
    cost of moving slices."""

    now_s: float
    then_s: float
    moving_s: float = 0.0
    moving_nbytes: float = 0.0

    @property
    def gain(self) -> float:
        """The share by which rounds become shorter."""
        return 1 - self.then_s / self.now_s if self.now_s > 0 else 0.0

    def pays(self, rounds: int, measured: int) -> bool:
        """Whether the new assignment is better if this many rounds follow. `measured`: how many
        measurements each rate is the mean of."""
        saved_s = (self.now_s - self.then_s) * rounds
        least = LEAST_GAIN + NOISE / math.sqrt(max(1, measured))
        return self.gain >= least and saved_s > self.moving_s


def horizon(job: JobSpec, done: int) -> int:
    """The number of rounds for which a new assignment is expected to be used."""
    if job.rounds is None:
        return HORIZON_ROUNDS
    return max(0, min(HORIZON_ROUNDS, job.rounds - done))


_STATES = {"SGD": 0, "Adagrad": 1, "ASGD": 1, "RMSprop": 1}
_MORE_STATES = ("momentum", "amsgrad", "centered")
"""`_STATES`: per optimizer, how many values it keeps for each parameter (2 if the optimizer is not
listed). `_MORE_STATES`: the options that add one value each."""


def _states(optimizer: OptimizerSpec) -> int:
    more = (name for name in _MORE_STATES if any(group.get(name) for group in optimizer.groups))
    return _STATES.get(optimizer.name, 2) + len(list(more))


def moving_nbytes(job: JobSpec, spec: ModelSpec, nbytes: int) -> float:
    """How many bytes must be copied when another server takes over slices of this size: the
    parameters and the state of the optimizer. If workers make the steps, only the sum of the
    gradients is copied."""
    if sums_only(job):
        return nbytes
    if job.kind == "gradient" and job.updater != "addition":
        return nbytes * (1 + max(map(_states, spec.optimizers)))
    if job.kind == "statistics":
        return nbytes * (1 + job.workers)  # servers copy a row for each worker
    return nbytes * (1 if job.outer == "off" else 2)


def moving_s(fetched: Mapping[tuple[int, int], float], rates: Mapping[int, float]) -> float:
    """How long the busiest server is occupied with copying. `fetched` gives the bytes per source
    and target, `rates` the bytes per second of each server."""
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

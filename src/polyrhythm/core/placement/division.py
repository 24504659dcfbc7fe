"""How large the slices of a model are (Aware, §3.1, Eqs. 1 to 4).

*The lead decides it once, when the first worker says how large its model is. From then on it is part
of the model's description, which every process has and every checkpoint contains. Slices are not cut
again when servers come and go, or when the job resumes.*

`--slice-size auto`: on one machine a slice has at most 2 MiB. Between machines it has
x = sqrt(M alpha / N) bytes, for N workers and a model of M bytes. Smaller slices overlap pushes and
pulls better, and each slice costs as much time as `alpha` bytes. If rates decide how many bytes each
server holds, there are at least 8 slices per server, because servers hold whole slices. In both cases
slices are made so much smaller that every server can hold equally many. A size that the user gives is
taken as it is.
"""

import math
from collections.abc import Sequence
from statistics import linear_regression

from polyrhythm.core.placement.assignment import PROBES
from polyrhythm.core.placement.schemes import AWARE, MEASURING
from polyrhythm.wire.messages import Division, JobSpec, ModelSpec

ALPHA = 1.2e5
"""What a slice costs beside its bytes, in bytes: the value of the paper. `polyrhythm bench slices`
measures it."""
AUTO = 0
"""The value of `JobSpec.slice_nbytes` if the lead decides."""
LOCAL_NBYTES = 2 * 1024 * 1024
LEAST_NBYTES, MOST_NBYTES = 64 * 1024, 16 * 1024 * 1024
"""The bounds of x. The head of a frame and its digest cost as much as some kilobytes; and a process
keeps a slice in memory for each link that it reads."""
LEAST_SLICES = 8
"""Slices per server between machines, if rates decide how many bytes each server holds: then rounds are
5% longer than if slices could be divided, on six servers with random rates. With four slices per
server they are 10% longer."""
_LINE = 64
"""Slices begin on a cache line."""


def best_nbytes(nbytes: float, nodes: int, alpha: float = ALPHA) -> float:
    """x = sqrt(M alpha / N) (Eq. 4)."""
    return math.sqrt(nbytes * alpha / nodes)


def fit_alpha(times: Sequence[tuple[float, float]], nodes: int) -> float:
    """alpha, from the seconds of rounds with slices of at least three sizes: those of least squares in
    T = a + d x + c / x (Eq. 2), where alpha = N c / a. 0 if small slices do not cost more."""
    sizes, seconds = [x for x, _ in times], [t for _, t in times]
    inverses = [1 / x for x in sizes]
    rest, rest_s = _without(sizes, inverses), _without(sizes, seconds)
    cost = linear_regression(rest, rest_s, proportional=True).slope
    without = [t - cost * inverse for t, inverse in zip(seconds, inverses, strict=True)]
    delay, constant = linear_regression(sizes, without)
    if delay < 0:  # large slices cannot be faster for this reason
        cost, constant = linear_regression(inverses, seconds)
    return max(0.0, nodes * cost / constant) if constant > 0 else 0.0


def _without(sizes: Sequence[float], values: Sequence[float]) -> list[float]:
    """What a linear function of the sizes does not explain of these values."""
    slope, constant = linear_regression(sizes, values)
    return [value - constant - slope * x for x, value in zip(sizes, values, strict=True)]


def given_division(job: JobSpec) -> Division | None:
    """The division of a job whose user has given the size of slices; None if the lead decides."""
    if job.slice_nbytes == AUTO:
        return None
    return Division(job.servers, job.slice_nbytes, _probes(job))


def choose_division(job: JobSpec, nbytes: int, *, machines: bool) -> Division:
    """The division of a model of this size. `machines`: whether processes of the job may run on several
    machines."""
    if (given := given_division(job)) is not None:
        return given
    most = LOCAL_NBYTES
    if machines:
        x = best_nbytes(nbytes, max(1, job.workers))
        if job.placement in MEASURING:
            x = min(x, nbytes / (max(1, job.servers) * LEAST_SLICES))
        most = round(min(max(x, LEAST_NBYTES), MOST_NBYTES))
    return Division(job.servers, _even(nbytes, job.servers, most), _probes(job))


def resume_division(job: JobSpec, recorded: ModelSpec) -> Division:
    """The division of a job that resumes from a checkpoint of this model. Slices keep their size."""
    if (given := given_division(job)) is not None:
        return given
    assert recorded.division is not None  # a manifest without it is refused
    return Division(job.servers, recorded.division.slice_nbytes, _probes(job))


def most_slice_nbytes(job: JobSpec) -> int:
    """The size that no slice of the job exceeds."""
    return job.slice_nbytes or MOST_NBYTES


def _even(nbytes: int, servers: int, most: int) -> int:
    """The greatest size that is at most `most` and divides the share of each server evenly."""
    share = max(1, -(-nbytes // max(1, servers)))
    even = -(-share // -(-share // most))
    return max(_LINE, min(most, -(-even // _LINE) * _LINE))


def _probes(job: JobSpec) -> int:
    """Servers are measured by probe slices only if their rates decide what they hold."""
    return PROBES * job.servers if job.placement == AWARE else 0

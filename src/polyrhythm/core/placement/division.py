"""Chooses the size of the slices of a model (Aware, §3.1, Eqs. 1 to 4).

*The lead chooses the size once, when the first worker announces the size of its model. The size is
then a part of the model's description, which every process has and every checkpoint contains. It
does not change when servers join or leave, or when the job resumes.*

With `--slice-size auto`, a slice has at most 2 MiB if all processes run on one machine. Otherwise
it has x = sqrt(M alpha / N) bytes, for N workers and a model of M bytes. Pushes and pulls of
smaller slices overlap better, but each slice costs as much additional time as the transfer of
`alpha` bytes. There are at least 8 slices per server if measured rates decide how many bytes each
server holds, because a slice cannot be divided between servers. There are at least 24 if servers
send slices back while others are pushed (`--optimizer-on workers`). At last the size is reduced
until every server can hold the same number of slices.

A size that the user gives is used unchanged.
"""

import math
from collections.abc import Sequence
from statistics import linear_regression

from polyrhythm.core.placement.assignment import PROBES
from polyrhythm.core.placement.schemes import AWARE, MEASURING
from polyrhythm.wire.messages import Division, JobSpec, ModelSpec

ALPHA = 1.2e5
"""The additional cost of a slice, in bytes. This is the paper's value; `polyrhythm bench slices`
measures the real one."""
AUTO = 0
"""The value of `JobSpec.slice_nbytes` that lets the lead choose the size."""
LOCAL_NBYTES = 2 * 1024 * 1024
LEAST_NBYTES, MOST_NBYTES = 64 * 1024, 16 * 1024 * 1024
"""The limits of x. Slices must not be smaller, because the header of a frame and its digest cost as
much as some kilobytes. They must not be larger, because a process keeps a buffer of one slice for
each link."""
LEAST_SLICES = 8
"""The least number of slices per server if processes run on several machines and measured rates
decide how many bytes each server holds. Compared with slices that could be divided, rounds are 5%
longer with 8 slices per server, and 10% longer with 4 (six servers with random rates)."""
LEAST_SUMMED = 24
"""The least number of slices per server if processes run on several machines and a server sends
each slice back once all workers have pushed it.

The first pulls begin when the first slice of each server is complete, and the last pulls begin
after the last push. So a round is longer by the time of about one slice per server: in the
simulator by 22% with 8 slices, 12% with 16, and 11% with 24 (median of six dedicated servers with
random rates).
"""
_LINE = 64
"""Slices begin on a cache line."""


def best_nbytes(nbytes: float, nodes: int, alpha: float = ALPHA) -> float:
    """The best size of a slice in bytes: x = sqrt(M alpha / N) (Eq. 4)."""
    return math.sqrt(nbytes * alpha / nodes)


def fit_alpha(times: Sequence[tuple[float, float]], nodes: int) -> float:
    """Estimate alpha from the measured times of rounds with at least three slice sizes. The
    least-squares fit of T = a + d x + c / x (Eq. 2) gives alpha = N c / a. Returns 0 if small
    slices do not cost more than large ones."""
    sizes, seconds = [x for x, _ in times], [t for _, t in times]
    inverses = [1 / x for x in sizes]
    rest, rest_s = _without(sizes, inverses), _without(sizes, seconds)
    cost = linear_regression(rest, rest_s, proportional=True).slope
    without = [t - cost * inverse for t, inverse in zip(seconds, inverses, strict=True)]
    delay, constant = linear_regression(sizes, without)
    if delay < 0:  # then large slices cannot be faster because of this cost
        cost, constant = linear_regression(inverses, seconds)
    return max(0.0, nodes * cost / constant) if constant > 0 else 0.0


def _without(sizes: Sequence[float], values: Sequence[float]) -> list[float]:
    """The residuals of these values after a linear fit to the sizes."""
    slope, constant = linear_regression(sizes, values)
    return [value - constant - slope * x for x, value in zip(sizes, values, strict=True)]


def given_division(job: JobSpec) -> Division | None:
    """The division that the user's `--slice-size` gives; None if the lead chooses the size."""
    if job.slice_nbytes == AUTO:
        return None
    return Division(job.servers, job.slice_nbytes, _probes(job))


def choose_division(
    job: JobSpec, nbytes: int, *, machines: bool, overlaps: bool = False
) -> Division:
    """Choose the division for a model of this size. `machines` says whether the processes of the
    job may run on several machines, and `overlaps` whether servers send slices back while others are
    pushed."""
    if (given := given_division(job)) is not None:
        return given
    most = LOCAL_NBYTES
    if machines:
        x = best_nbytes(nbytes, max(1, job.workers))
        if overlaps or job.placement in MEASURING:
            least = LEAST_SUMMED if overlaps else LEAST_SLICES
            x = min(x, nbytes / (max(1, job.servers) * least))
        most = math.ceil(min(max(x, LEAST_NBYTES), MOST_NBYTES))
    return Division(job.servers, _even(nbytes, job.servers, most), _probes(job))


def resume_division(job: JobSpec, recorded: ModelSpec) -> Division:
    """The division of a job that resumes from a checkpoint of this model. The size of slices stays
    the same."""
    if (given := given_division(job)) is not None:
        return given
    assert recorded.division is not None  # a manifest without a division is refused
    return Division(job.servers, recorded.division.slice_nbytes, _probes(job))


def most_slice_nbytes(job: JobSpec) -> int:
    """A size in bytes that no slice of the job exceeds."""
    return job.slice_nbytes or MOST_NBYTES


def _even(nbytes: int, servers: int, most: int) -> int:
    """The largest size up to `most` with which every server's share is a whole number of slices."""
    share = max(1, -(-nbytes // max(1, servers)))
    even = -(-share // -(-share // most))
    return max(_LINE, min(most, -(-even // _LINE) * _LINE))


def _probes(job: JobSpec) -> int:
    """How many probe slices the job has. Only `--placement aware` needs them, to measure
    servers."""
    return PROBES * job.servers if job.placement == AWARE else 0

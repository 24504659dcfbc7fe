"""The values of `--migrate`: whether points move from slow workers to fast ones, and how."""

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.sync.policy import Traits
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

AUTO, OFF, LEASE, FULL, BLOCKING = "auto", "off", "lease", "full", "blocking"
_VALUES = (AUTO, OFF, LEASE, FULL, BLOCKING)


def migration_of(job: JobSpec, traits: Traits) -> str:
    """How chunks move from slow workers to fast ones: `off`, `lease`, `full` or `blocking`. Raises an
    error if `--migrate` cannot go with the other options.

    `auto` moves chunks under policies with an interval, because there a fast worker visits its points
    more often than a slow one. It means `lease`, and with private data `full`, of which only chunks of
    workers with `--share-data` move. With the kind statistics it means `off`: the points of a moved
    chunk are missing from the sum until the new worker visits them.
    """
    mode = job.migrate
    if job.data_private:
        _check_private(job, traits)
    if mode == AUTO and (not traits.timed or keeps_rows(job.kind)):
        return OFF
    if mode == AUTO:
        return FULL if job.data_private else LEASE
    if mode not in _VALUES:
        raise UsageError(f"--migrate {mode!r} is not known: give one of {', '.join(_VALUES)}")
    if mode != OFF and not traits.rounds:
        raise UsageError(
            f"--migrate {mode} needs a policy with rounds, such as fsp: under {job.sync} leases move"
            " only when workers join or leave"
        )
    return mode


def _check_private(job: JobSpec, traits: Traits) -> None:
    """Raise an error if `--data-private` cannot go with the other options."""
    if not traits.rounds:
        raise UsageError(
            f"--data-private needs a policy with rounds, such as bsp or fsp: {job.sync} has none"
        )
    if keeps_rows(job.kind):
        raise UsageError(
            "--data-private is not built for kind statistics: give --kind gradient or local"
        )
    if job.migrate == LEASE:
        raise UsageError(
            "--data-private and --migrate lease contradict each other: no other worker can read these"
            " points; leave --migrate out, and give --share-data if they may be sent to others"
        )


def sharing_fault(job: JobSpec, traits: Traits) -> str | None:
    """Why a worker with `--share-data` sends no points in this job; None if it may."""
    if not job.data_private:
        return (
            "it goes with --data-private: in this job every worker can read the whole data set, so no"
            " worker has points of its own to share"
        )
    if migration_of(job, traits) not in DELIVERING and job.migrate == OFF:
        return "it contradicts --migrate off, with which no points move"
    if migration_of(job, traits) not in DELIVERING:
        return f"under --sync {job.sync} no points move by themselves: give --migrate full"
    return None


DELIVERING = (FULL, BLOCKING)
"""The values with which points travel from worker to worker."""

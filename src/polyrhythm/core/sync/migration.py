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

    `auto` means `lease` under policies with an interval, because there a fast worker visits its
    points more often than a slow one. With the kind statistics it means `off`: the points of a moved
    chunk are missing from the sum until the new worker visits them.
    """
    mode = job.migrate
    if job.data_private:
        _check_private(job, traits)
    if mode == AUTO:
        return LEASE if traits.timed and not keeps_rows(job.kind) and not job.data_private else OFF
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
    if job.migrate not in (AUTO, OFF):
        raise UsageError(
            f"--data-private and --migrate {job.migrate} contradict each other: points that only one"
            " worker has cannot move; leave --migrate out"
        )


DELIVERING = (FULL, BLOCKING)
"""The values with which points travel from worker to worker."""

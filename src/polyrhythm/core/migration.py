"""The values of `--migrate`: whether points move from slow workers to fast ones, and how."""

from dataclasses import dataclass

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.sync.policy import Traits
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Reason

AUTO, OFF, LEASE, FULL, BLOCKING = "auto", "off", "lease", "full", "blocking"
_VALUES = (AUTO, OFF, LEASE, FULL, BLOCKING)


@dataclass(frozen=True, slots=True)
class MigrationChoice:
    """How chunks move from slow workers to fast ones, and why: `off`, `lease`, `full` or `blocking`."""

    mode: str
    reason: Reason


def choose_migration(job: JobSpec, traits: Traits) -> MigrationChoice:
    """Choose how chunks move. Raises an error if `--migrate` cannot be used with the other options.

    `auto` moves chunks under policies with an interval, because there a fast worker visits its points
    more often than a slow one. `auto` means `lease` where all workers can read the whole data set, and
    `full` with private data. With the kind statistics it always means `full`: the memory of the points
    must move with them, or the points would be missing from the sum until the new worker visits
    them.
    """
    mode = job.migrate
    if job.data_private:
        _check_private(job)
    if mode == AUTO:
        return _automatic(job, traits)
    if mode not in _VALUES:
        raise UsageError(f"--migrate {mode!r} is not known: give one of {', '.join(_VALUES)}")
    if mode != OFF and not traits.rounds:
        raise UsageError(
            f"--migrate {mode} needs a policy with rounds, such as fsp: under {job.sync} leases move"
            " only when workers join or leave"
        )
    return MigrationChoice(mode, Reason("migrate-given", {"name": mode}))


def _automatic(job: JobSpec, traits: Traits) -> MigrationChoice:
    if not traits.timed:
        return MigrationChoice(OFF, Reason("migrate-off-policy", {"name": job.sync}))
    if keeps_rows(job.kind):
        return MigrationChoice(FULL, Reason("migrate-kind", {"name": job.kind}))
    if job.data_private:
        return MigrationChoice(FULL, Reason("migrate-private"))
    return MigrationChoice(LEASE, Reason("migrate-lease"))


def migration_of(job: JobSpec, traits: Traits) -> str:
    """How chunks move according to the options of the job alone: see `choose_migration`."""
    return choose_migration(job, traits).mode


def _check_private(job: JobSpec) -> None:
    """Raise an error if `--data-private` cannot be used with the other options."""
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
    """Why a worker with `--share-data` sends no points in this job; None if it may send them."""
    if not job.data_private:
        return (
            "it needs --data-private: in this job every worker can read the whole data set, so no"
            " worker has points of its own to share"
        )
    if migration_of(job, traits) not in DELIVERING and job.migrate == OFF:
        return "it contradicts --migrate off, with which no points move"
    if migration_of(job, traits) not in DELIVERING:
        return f"under --sync {job.sync} no points move by themselves: give --migrate full"
    return None


DELIVERING = (FULL, BLOCKING)
"""The values of `--migrate` with which points are sent from worker to worker."""
MOVING = (LEASE, *DELIVERING)
"""The values of `--migrate` with which chunks move."""

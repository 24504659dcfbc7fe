"""The values of `--migrate`: whether points move from slow workers to fast ones, and how."""

import msgspec

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.sync.policy import Traits
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Reason

AUTO, OFF, LEASE, FULL, BLOCKING = "auto", "off", "lease", "full", "blocking"
MIGRATIONS = (AUTO, OFF, LEASE, FULL, BLOCKING)


class MigrationChoice(msgspec.Struct, frozen=True):
    """How chunks move from slow workers to fast ones, and why: `off`, `lease`, `full` or `blocking`."""

    mode: str
    reason: Reason


def choose_migration(job: JobSpec, traits: Traits) -> MigrationChoice:
    """Choose how chunks move in a job whose options work together (`core/combinations.py`).

    `auto` moves chunks under policies with an interval, because there a fast worker visits its points
    more often than a slow one. `auto` means `lease` where all workers can read the whole data set, and
    `full` with private data. With the kind statistics it always means `full`: the memory of the points
    must move with them, or the points would be missing from the sum until the new worker visits
    them.
    """
    if job.migrate == AUTO:
        return _automatic(job, traits)
    return MigrationChoice(job.migrate, Reason("migrate-given", {"name": job.migrate}))


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


DELIVERING = (FULL, BLOCKING)
"""The values of `--migrate` with which points are sent from worker to worker."""
MOVING = (LEASE, *DELIVERING)
"""The values of `--migrate` with which chunks move."""

"""The values of `--migrate`: whether points move from slow workers to fast ones, and how."""

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.sync.policy import Traits
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

AUTO, OFF, LEASE = "auto", "off", "lease"
_LATER = ("full", "blocking")


def moves_leases(job: JobSpec, traits: Traits) -> bool:
    """Whether the lead moves leases between workers. Raises an error if `--migrate` cannot go with
    the other options.

    `auto` means `lease` under policies with an interval, because there a fast worker visits its
    points more often than a slow one. With the kind statistics it means `off`: the points of a moved
    chunk are missing from the sum until the new worker visits them.
    """
    mode = job.migrate
    if mode == AUTO:
        return traits.timed and not keeps_rows(job.kind)
    if mode in _LATER:
        raise UsageError(f"--migrate {mode} is not built yet: give auto, off or lease")
    if mode not in (OFF, LEASE):
        raise UsageError(f"--migrate {mode!r} is not known: give auto, off or lease")
    if mode == LEASE and not traits.rounds:
        raise UsageError(
            f"--migrate lease needs a policy with rounds, such as fsp: under {job.sync} leases move"
            " only when workers join or leave"
        )
    return mode == LEASE

"""The registry of all sync policies: it finds the policy that `--sync` names, or refuses the text
with a reason.

A new policy adds its `PolicyEntry` to `POLICIES`. The command line's help, the checks of a job and
the conformance suite read it from there.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from polyrhythm.core import kinds as outer
from polyrhythm.core.combinations import OF_MACHINES, check
from polyrhythm.core.kinds import KINDS, steps_on_servers, steps_on_workers
from polyrhythm.core.sync.arrival.restart import SSP_RESTART
from polyrhythm.core.sync.arrival.staleness import ASP, SSP
from polyrhythm.core.sync.barrier.abandoning import OFF
from polyrhythm.core.sync.barrier.batched import BSPB, BSPV
from polyrhythm.core.sync.barrier.bsp import BSP
from polyrhythm.core.sync.barrier.fsp import FSP
from polyrhythm.core.sync.barrier.global_batch import BSPG
from polyrhythm.core.sync.barrier.psp import PSP
from polyrhythm.core.sync.policy import PolicyEntry, SyncPolicy, Traits, split_sync
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

POLICIES: dict[str, PolicyEntry] = {
    entry.name: entry for entry in (BSP, PSP, FSP, SSP, SSP_RESTART, ASP, BSPB, BSPV, BSPG)
}
AUTO = "auto"


def find_policy(sync: str) -> PolicyEntry:
    """The entry of the policy that the text of `--sync` names."""
    name, _ = split_sync(sync)
    entry = POLICIES.get(name)
    if entry is None:
        known = ", ".join(entry.syntax for entry in POLICIES.values())
        raise UsageError(f"--sync {sync!r} is not known: choose one of {known}")
    if entry.argument and ":" not in sync:
        raise UsageError(
            f"--sync {sync} needs a whole number {entry.argument}, such as {name}:8 ({entry.help})"
        )
    if ":" in sync and not entry.argument:
        raise UsageError(f"--sync {sync!r} is not known: {name} takes no number")
    return entry


def with_global_batch(sync: str, points: int | None) -> str:
    """The text of `--sync` for a job with `--global-batch`. `points`: the value of that option; None
    if it is not given."""
    if points is None:
        return sync
    if points < 1:
        raise UsageError(f"--global-batch is {points}: it must be at least 1")
    if sync != BSP.name:
        traits = traits_of(sync)
        why = "the lead chooses how many points a round has"
        if not traits.rounds:
            why = "there are no rounds"
        elif traits.timed:
            why = "the clock decides how many points a round has"
        elif traits.plans_steps:
            why = "the speed of the workers decides how many steps a round has"
        raise UsageError(f"--global-batch needs --sync bsp: under {sync} {why}")
    return f"{BSPG.name}:{points}"


def traits_of(sync: str) -> Traits:
    """The traits of the policy that the text of `--sync` names."""
    return find_policy(sync).traits


def sync_help() -> str:
    """The policies of `--sync`, for the command line's help."""
    return ", ".join(f"{entry.syntax} ({entry.help})" for entry in POLICIES.values())


def choose_kind(job: JobSpec) -> JobSpec:
    """The job with `auto` replaced by the kind that its policy prefers.

    fsp learns as much per pass with either kind, and more per second with local steps (decision
    030). If an option of the job needs gradients, the kind is gradient; an outer optimizer needs
    local steps.
    """
    if job.kind != AUTO:
        return job
    traits = traits_of(job.sync)
    needs_gradients = job.abandon != OFF or job.in_place or job.updater == "addition"
    kinds: Iterator[str] = iter(())
    if needs_gradients:
        kinds = filter(steps_on_servers, sorted(traits.kinds))
    elif job.outer != outer.OFF:
        kinds = filter(steps_on_workers, sorted(traits.kinds))
    return replace(job, kind=next(kinds, traits.preferred_kind))


def check_several(job: JobSpec) -> None:
    """Refuse a job with several models if servers make the steps and one contribution contains
    several steps: servers cannot make one step from gradients of several models."""
    traits = traits_of(job.sync)
    if not steps_on_servers(job.kind) or not (traits.gathers or traits.plans_steps):
        return
    hint = "use --kind local" if "local" in traits.kinds else "choose another policy"
    raise UsageError(
        f"--sync {job.sync} --kind {job.kind} cannot train several models, because a contribution"
        f" contains many steps: {hint}"
    )


def choose_policy(job: JobSpec) -> SyncPolicy:
    """Build the policy of a job; refuse options that cannot work together (`core/combinations.py`)."""
    entry = find_policy(job.sync)
    policy, traits = entry.build(job), entry.traits
    if job.kind not in KINDS:
        raise UsageError(
            f"--kind {job.kind!r} is not known: choose one of {', '.join((AUTO, *KINDS))}"
        )
    outer.parse_outer(job.outer)
    check(OF_MACHINES, job, traits, POLICIES.values())
    return policy

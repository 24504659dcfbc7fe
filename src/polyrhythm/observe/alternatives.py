"""Options with which a job would wait less, or exchange less. All of them are options that the job
accepts together with its other options."""

from collections.abc import Iterable

from msgspec.structs import replace

from polyrhythm.core.kinds import EXACT, keeps_rows, steps_on_servers, steps_on_workers
from polyrhythm.core.migration import sharing_fault
from polyrhythm.core.sync.barrier.global_batch import BSPG
from polyrhythm.core.sync.registry import choose_policy, find_policy, traits_of
from polyrhythm.errors import UsageError
from polyrhythm.observe.words import either
from polyrhythm.wire.messages import JobSpec

_WITHOUT = "the job without this worker"


def accepts(job: JobSpec, **changes: object) -> bool:
    """Whether the job can have these other values of its settings."""
    other = replace(job, **changes)
    try:
        choose_policy(other)
    except UsageError:
        return False
    traits = traits_of(other.sync)
    if other.share_data and sharing_fault(other, traits) is not None:
        return False
    if not steps_on_servers(other.kind) and (other.in_place or other.updater == "addition"):
        return False
    return traits.rounds or not other.in_place


def less_waiting(job: JobSpec) -> str:
    """What to try if workers wait for a slow one."""
    policy = find_policy(job.sync)
    traits = policy.traits
    if not traits.rounds:
        larger = f"a larger bound in --sync {policy.name}:N"
        return either([larger, *_policies(job, ["fsp"])])
    if traits.timed or traits.plans_steps:
        found = _policies(job, ["ssp:4"])
        return either(found or ["smaller batches" if traits.timed else _WITHOUT])
    return either(_policies(job, ["fsp", "psp", "ssp:4"]) or [_WITHOUT])


def _policies(job: JobSpec, names: Iterable[str]) -> list[str]:
    """Those of the policies that the job accepts, as options. If a policy does not fold the job's
    kind, the option contains another kind."""
    found = []
    for sync in names:
        if accepts(job, sync=sync):
            found.append(f"--sync {sync}")
        elif not keeps_rows(job.kind) and accepts(job, sync=sync, kind="local"):
            found.append(f"--sync {sync} --kind local")
    if found and find_policy(job.sync).name == BSPG.name:
        found[-1] += " (without --global-batch)"
    return found


def less_exchange(job: JobSpec, *, over_tcp: bool) -> str:
    """What to try if the exchange takes most of the time."""
    found = []
    if keeps_rows(job.kind):
        if job.sync != "bspb" and accepts(job, sync="bspb"):
            found.append("--sync bspb")
        return either([*found, "larger batches"])
    found = local_steps(job)
    if over_tcp and job.push == EXACT and accepts(job, push="int8"):
        found.append("--push int8")
    return either([*found, "larger batches"])


def local_steps(job: JobSpec) -> list[str]:
    """The option with which a worker makes more steps between two contributions, if the job accepts
    it."""
    if steps_on_workers(job.kind):
        return [f"--local-steps {2 * job.local_steps}"]
    return ["--kind local --local-steps 8"] if accepts(job, kind="local") else []

"""Advice for a run: one line that says what to change and what it would gain, or none if nothing is
wrong. It names only the change that gains most; `why` lists everything that may help.

If a run does not learn, the advice is about that. Otherwise it is about the share of time that was
not spent on computing. It never recommends a policy for its speed alone: a policy that waits less
lets workers compute with older parameters, and only the time to the same objective shows whether
that helps.

The others *waited for* a worker during the time by which their waits exceed its wait. Even the
slowest worker waits for the exchange. So the time of the *exchange* is the time of transfers plus
the shortest wait of all workers.
"""

from collections.abc import Iterable, Mapping
from statistics import fmean, median

from msgspec.structs import replace

from polyrhythm.core.combinations import OF_COMMANDS, SHARING, broken
from polyrhythm.core.kinds import EXACT, keeps_rows, steps_on_servers, steps_on_workers
from polyrhythm.core.link_kinds import find_link_kind
from polyrhythm.core.sync.barrier.global_batch import BSPG
from polyrhythm.core.sync.registry import choose_policy, find_policy, traits_of
from polyrhythm.core.values import parse_duration
from polyrhythm.errors import UsageError
from polyrhythm.observe.learning import learning_advice
from polyrhythm.observe.state import RunState
from polyrhythm.observe.words import either
from polyrhythm.observe.work import ObservedWorker, Totals
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import DONE, STREAM_ENDED

_WITHOUT = "the job without this worker"


def accepts(job: JobSpec, **changes: object) -> bool:
    """Whether the job accepts these other values of its settings."""
    other = replace(job, **changes)
    try:
        choose_policy(other)
    except UsageError:
        return False
    if not steps_on_servers(other.kind) and other.updater == "addition":
        return False
    return not any(broken((*OF_COMMANDS, *SHARING), other, traits_of(other.sync)))


def less_waiting(job: JobSpec) -> list[str]:
    """What to try if workers wait for a slow one, best first."""
    policy = find_policy(job.sync)
    traits = policy.traits
    if not traits.rounds:
        larger = f"a larger bound in --sync {policy.name}:N"
        return [larger, *_policies(job, ["fsp"])]
    if traits.timed or traits.plans_steps:
        found = _policies(job, ["ssp:4"])
        return found or ["smaller batches" if traits.timed else _WITHOUT]
    return _policies(job, ["fsp", "psp", "ssp:4"]) or [_WITHOUT]


def _policies(job: JobSpec, names: Iterable[str]) -> list[str]:
    """Those of the policies that the job accepts, as options. If a policy does not fold the job's
    kind, the option also changes the kind."""
    found = []
    for sync in names:
        if accepts(job, sync=sync):
            found.append(f"--sync {sync}")
        elif not keeps_rows(job.kind) and accepts(job, sync=sync, kind="local"):
            found.append(f"--sync {sync} --kind local")
    if found and find_policy(job.sync).name == BSPG.name:
        found[-1] += " (without --global-batch)"
    return found


def less_exchange(job: JobSpec, *, over_tcp: bool) -> tuple[str, int | None]:
    """What to try if the exchange takes most of the time, and the factor by which it reduces the
    exchange; None if the factor is unknown."""
    if keeps_rows(job.kind):
        each_pass = job.sync != "bspb" and accepts(job, sync="bspb")
        return ("--sync bspb" if each_pass else "larger batches"), None
    if (fewer := local_steps(job)) is not None:
        return fewer, 2 if steps_on_workers(job.kind) else _LOCAL_STEPS
    if over_tcp and job.push == EXACT and accepts(job, push="int8"):
        return "--push int8", None
    return "larger batches", None


def local_steps(job: JobSpec) -> str | None:
    """The option with which a worker makes more steps between two contributions; None if the job does
    not accept it."""
    if steps_on_workers(job.kind):
        return f"--local-steps {2 * job.local_steps}"
    return f"--kind local --local-steps {_LOCAL_STEPS}" if accepts(job, kind="local") else None


_LOCAL_STEPS = 8
_TOO_SHORT_S = 1.0
_WAITED_FOR = 0.25
_STRAGGLER = 0.1
"""A worker is named only if the others waited for it for at least this share of the last
seconds."""
_EXCHANGE = 0.5
_MOST_GAIN = 10.0
COMPARE = "compare the time to the same objective"
"""What proves that a policy or an option helps: more points per second may be worth less."""


def advise(state: RunState, job: JobSpec) -> str | None:
    """One line that says what to change, and what that would gain. None: nothing is wrong."""
    if (learning := learning_advice(state, job)) is not None:
        return learning
    if state.seconds < _TOO_SHORT_S:
        return None
    if (points := _points_in_short_interval(state, job)) is not None:
        return (
            f"try --interval auto: in {job.interval} a worker visits only {points:.0f} points of its"
            f" batch of {state.batch}"
        )
    waited_for = _waited_for(state)
    if waited_for is not None and waited_for[1] >= _WAITED_FOR and _waits(job):
        name, share = waited_for
        remedy = less_waiting(job)[0].replace(_WITHOUT, f"the job without {name}")
        return _worth_trying(remedy, _gain_without_waits(state, share))
    exchange = _exchange(state)
    if exchange >= _EXCHANGE:
        kinds = [find_link_kind(name) for name in state.links.values()]
        over_tcp = any(kind is not None and not kind.has_payload_references for kind in kinds)
        remedy, times = less_exchange(job, over_tcp=over_tcp)
        rest = 0.0 if times is None else exchange / times
        gain = min(_MOST_GAIN, 1 / max(1e-9, 1 - exchange + rest))
        return _worth_trying(remedy, gain)
    return None


def _worth_trying(remedy: str, gain: float) -> str:
    return f"try {remedy} for up to {gain:.1f}x points/s; {COMPARE}"


def _gain_without_waits(state: RunState, share: float) -> float:
    """By how much the points per second would rise if no worker waited for the slowest. `share`:
    the share of their time that the others spend waiting for it."""
    workers = len([each for each in state.workers.values() if _remained(each)])
    return min(_MOST_GAIN, (1 + (workers - 1) / max(1e-9, 1 - share)) / max(1, workers))


def _points_in_short_interval(state: RunState, job: JobSpec) -> float | None:
    """The mean number of points of a contribution, if a fixed interval ends it before the worker
    has visited half of its batch; otherwise None. A contribution that ends early because the worker
    has visited all of its points does not count."""
    if not traits_of(job.sync).timed or not state.batch:
        return None
    try:
        interval_s = parse_duration(job.interval) / 1e9
    except ValueError:  # `--interval` is not a duration: the job chooses its interval by measuring
        return None
    totals = [worker.totals for worker in state.workers.values()]
    contributions = sum(each.contributions for each in totals)
    computing_s = sum(each.compute_s for each in totals)
    if not contributions or computing_s < contributions * interval_s / 2:
        return None
    points = sum(each.points for each in totals) / contributions
    return points if points < state.batch / 2 else None


def _waits(job: JobSpec) -> bool:
    """Whether workers wait for each other under this policy."""
    return traits_of(job.sync).asks_before_steps


def straggler(state: RunState, job: JobSpec) -> tuple[str, float, str] | None:
    """The worker for which the others have waited in the last seconds, the share of this time, and
    what would help. None if they waited for no worker, or if workers do not wait for each
    other under the job's policy."""
    found = _slowest({worker.name: worker.recent for worker in state.present})
    if found is None or found[1] < _STRAGGLER or not _waits(job):
        return None
    return (*found, f"try {either(less_waiting(job))}, and {COMPARE}")


def _slowest(times: Mapping[str, Totals]) -> tuple[str, float] | None:
    """The worker that has waited for the smallest share of its time, and by how much the median of
    the other workers' shares is larger."""
    waits = {name: time.shares[1] for name, time in times.items() if time.shares is not None}
    if len(waits) < 2:
        return None
    slowest = min(waits, key=lambda name: waits[name])
    others = median(share for name, share in waits.items() if name != slowest)
    return slowest, others - waits[slowest]


def _waited_for(state: RunState) -> tuple[str, float] | None:
    """The worker for which the others waited longest, and the share of their time that this took.
    Workers that died or were evicted do not count."""
    remained = [each for each in state.workers.values() if _remained(each)]
    found = _slowest({worker.name: worker.totals for worker in remained})
    if found is None:
        return None
    for worker in remained:
        found = max(found, (worker.name, worker.waited_for_s / state.seconds), key=lambda f: f[1])
    return found[0], min(1.0, found[1])


def _remained(worker: ObservedWorker) -> bool:
    """Whether the worker is in the job, or was until the end. Advice about a worker that died or left
    would not help."""
    return worker.left is None or worker.left.code in (DONE.code, STREAM_ENDED.code)


def _exchange(state: RunState) -> float:
    shares = [w.totals.shares for w in state.workers.values() if w.totals.shares is not None]
    if not shares:
        return 0.0
    return fmean(transfer for _, _, transfer in shares) + min(wait for _, wait, _ in shares)

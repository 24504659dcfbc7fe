"""Describes in words whether a run learns, and what to try if it does not.

The advice names only settings that can help in this case: the learning rate, the momentum, or a
limit on the age of the parameters on which a worker computes. It recommends no policy for its
speed.
"""

from typing import Any

from polyrhythm.core.kinds import OFF, keeps_rows, outer_rate, steps_on_workers
from polyrhythm.core.lead.progress.learning import FAULTS, Finding, LearningState
from polyrhythm.core.sync.policy import sync_argument
from polyrhythm.core.sync.registry import find_policy, traits_of
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.state import RunState
from polyrhythm.observe.words import either, listed, number
from polyrhythm.wire.messages import JobSpec

_LOWER_RATE = 1 / 3
_HALF = 0.5
_BOUND = 4


def is_fault(finding: Finding | None) -> bool:
    """Whether the objective rises, is not finite, or stagnates without having fallen."""
    return finding is not None and finding.state in FAULTS


def needs_help(finding: Finding | None) -> bool:
    """Whether there is a fault, or the objective rose once and has not become stable since. Such an
    objective may rise again."""
    if finding is None:
        return False
    unstable = finding.state is LearningState.FALLING and finding.rises > 0
    return unstable or is_fault(finding)


def learning_in_words(state: RunState) -> str | None:
    """The last finding about the objective, as a sentence. None: the objective has always
    fallen."""
    finding = state.finding
    if finding is None or (finding.state is LearningState.FALLING and not finding.rises):
        return None
    now, passes = number(finding.objective), finding.passes
    match finding.state:
        case LearningState.NOT_FINITE:
            names = listed(state.name_of(worker) for worker in finding.workers)
            return f"the objective is not finite: {names} reported NaN or infinity"
        case LearningState.RISING:
            best = number(finding.best)
            again = f"; it has risen {_times(finding)}" if finding.rises > 1 else ""
            return f"the objective rises: {now} in pass {passes}, {best} {_best_at(finding)}{again}"
        case LearningState.STALLED:
            first = number(finding.first)
            return f"the objective stagnates: {now} in pass {passes}, {first} in the first round"
        case LearningState.SETTLED:
            first = number(finding.first)
            return (
                f"the objective changes little from pass to pass: {now} in pass {passes}, {first} in"
                " the first round; training may have converged"
            )
        case _:
            rose = f"it has risen {_times(finding)} before"
            return f"the objective falls again: {now} in pass {passes}; {rose}"


def _best_at(finding: Finding) -> str:
    return f"in pass {finding.best_pass}" if finding.best_pass else "in the first round"


def _times(finding: Finding) -> str:
    return "once" if finding.rises == 1 else f"{finding.rises} times"


def ended_in_words(state: RunState) -> str | None:
    """Why a run ended. If the model is worse than the goal suggests, a remark says so."""
    if state.ended is None:
        return None
    reason = in_words(state.ended.reason, state.name_of)
    finding = state.finding
    if state.ended.failed or finding is None or not needs_help(finding):
        return reason
    match finding.state:
        case LearningState.RISING if finding.lost_share >= _HALF:
            return f"{reason}, but its model has diverged"
        case LearningState.RISING:
            return f"{reason}, but its model has become worse"
        case LearningState.STALLED:
            return f"{reason}, but its model has learned nothing"
        case LearningState.NOT_FINITE:
            return f"{reason}, but losses of its last pass are not finite"
        case _:
            return f"{reason}, but its training was unstable"


def learning_result(state: RunState, job: JobSpec) -> dict[str, Any] | None:
    """The fields about learning that `--json` prints. None: no objective is known."""
    finding = state.finding
    if finding is None or (finding.objective is None and not is_fault(finding)):
        return None
    return {
        **finding.fields(),
        "workers": [state.name_of(worker) for worker in finding.workers],
        "says": learning_in_words(state),
        "advice": learning_advice(state, job),
    }


def learning_advice(state: RunState, job: JobSpec | None) -> str | None:
    """What to try if the run does not learn well. None: nothing is wrong."""
    finding = state.finding
    if finding is None or not needs_help(finding):
        return None
    if job is not None and keeps_rows(job.kind):
        return None  # a job of kind statistics has no learning rate
    rate = _rate(state, job)
    if finding.state is LearningState.STALLED:
        return f"try another rate{rate}, higher or lower, and check the data and its labels"
    tries = [f"a lower rate{_example(state, job)}"]
    if job is not None and job.outer != OFF:
        tries.append(f"a lower lr of --outer (it is {outer_rate(job.outer):g})")
        if job.local_steps == 1:
            tries.append("more --local-steps (each round is one step)")
    if finding.state is LearningState.NOT_FINITE:
        tries.append("clipped gradients")
    if state.momentum and job is not None and not traits_of(job.sync).rounds:
        tries.append(f"less momentum (it is {state.momentum:g})")
    elif job is not None and steps_on_workers(job.kind):
        tries.append("less momentum (if there is any)")
    if job is not None:
        tries += _bounds(job)
    return f"try {either(tries)}"


def _rate(state: RunState, job: JobSpec | None) -> str:
    return "" if state.rate is None else f" (it is {state.rate:g})"


def _example(state: RunState, job: JobSpec | None) -> str:
    """An example of a lower learning rate. Only a built-in job has a command-line option for its
    rate."""
    if job is None or job.path or state.rate is None:
        return _rate(state, job)
    return f" (such as --set rate={_LOWER_RATE * state.rate:.1g})"


def _bounds(job: JobSpec) -> list[str]:
    """Options with which workers under this policy would compute on newer parameters."""
    policy = find_policy(job.sync)
    traits = policy.traits
    found = []
    if job.async_scale in ("none", "root") and not traits.rounds:
        found.append("--async-scale members")
    if job.async_momentum == "contribution" and not traits.rounds:
        found.append("--async-momentum round")
    if job.read_ahead:
        found.append("no --read-ahead")
    if not traits.asks_before_steps:
        if not job.read_ahead:  # no policy with a bound can be used with --read-ahead
            found.append(f"a bound on staleness (--sync ssp:{_BOUND})")
    elif not traits.rounds and (bound := sync_argument(job)) > 1:
        found.append(f"a smaller bound (--sync {policy.name}:{min(_BOUND, bound // 2)})")
    elif traits.plans_steps:
        found.append(f"fewer steps between barriers (--most-steps {max(1, job.most_steps // 2)})")
    elif traits.timed:
        found.append("a shorter --interval")
    if steps_on_workers(job.kind) and job.local_steps > 1:
        found.append(f"fewer local steps (--local-steps {job.local_steps // 2})")
    return found

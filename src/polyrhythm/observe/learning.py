"""Describes in words whether a run learns, and what to try if it does not.

The advice names only settings that can help in this case: the learning rate, the momentum, or a
limit on the age of a worker's parameters. It recommends no policy for its speed.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from polyrhythm.core.kinds import OFF, keeps_rows, outer_rate, steps_on_workers
from polyrhythm.core.lead.progress.learning import FAULTS, Finding, LearningState
from polyrhythm.core.sync.policy import sync_argument
from polyrhythm.core.sync.registry import find_policy, traits_of
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.state import Point, RunState
from polyrhythm.observe.words import listed, number
from polyrhythm.wire.messages import JobSpec

_LOWER_RATE = 1 / 3
_HALF = 0.5
_BOUND = 4


def is_fault(finding: Finding | None) -> bool:
    """Whether the objective rises, is not finite, or stagnates and has never fallen."""
    return finding is not None and finding.state in FAULTS


def needs_help(finding: Finding | None) -> bool:
    """Whether there is a fault, or the objective once rose and has not been stable since: it may
    rise again."""
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


FALLING = "falling"
_SHORT = {
    LearningState.NOT_FINITE: "not finite",
    LearningState.RISING: "rising",
    LearningState.STALLED: "stagnating",
    LearningState.SETTLED: "level",
    LearningState.FALLING: "falling again",
}
_FALLEN = 0.05
"""An objective that has fallen by at least this share of its first value is described as
falling."""
_LEVELS = "▁▂▃▄▅▆▇█"
_SHAPE_CELLS = 16


def learning_in_short(state: RunState) -> str | None:
    """Whether the objective falls, in a word or two. None if that is not known yet."""
    finding = state.finding
    if finding is not None and (finding.state is not LearningState.FALLING or finding.rises):
        return _SHORT[finding.state]
    # no finding: the objective has fallen so far, or it is too early to judge
    first = next((point.objective for point in state.curve if point.objective is not None), None)
    if first is None or state.objective is None:
        return None
    return FALLING if first - state.objective >= _FALLEN * abs(first) else None


def shape_of(curve: Sequence[Point]) -> str:
    """The objective over time as a row of bars; empty if there are too few values to see a shape."""
    values = [point.objective for point in curve if point.objective is not None]
    if len(values) < _SHAPE_CELLS // 2:
        return ""
    cells = min(_SHAPE_CELLS, len(values))
    bounds = [len(values) * at // cells for at in range(cells + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(bounds)]
    low, span = min(means), max(means) - min(means)
    levels = [0.0 if not span else (mean - low) / span for mean in means]
    return "".join(_LEVELS[round(level * (len(_LEVELS) - 1))] for level in levels)


def _best_at(finding: Finding) -> str:
    return f"in pass {finding.best_pass}" if finding.best_pass else "in the first round"


def _times(finding: Finding) -> str:
    return "once" if finding.rises == 1 else f"{finding.rises} times"


def ended_in_words(state: RunState) -> str | None:
    """Why a run ended, with a remark if the model is worse than the goal suggests."""
    if state.ended is None:
        return None
    reason = in_words(state.ended.reason, state.name_of)
    finding = state.finding
    if state.ended.failed or finding is None or not needs_help(finding):
        return reason
    match finding.state:
        case LearningState.RISING if finding.lost_share >= _HALF:
            worse = "model has diverged" if _diverged(finding) else "objective has risen"
            return f"{reason}, but its {worse}"
        case LearningState.RISING:
            return f"{reason}, but its objective was lower {_best_at(finding)}"
        case LearningState.STALLED:
            return f"{reason}, but its objective has hardly fallen"
        case LearningState.NOT_FINITE:
            return f"{reason}, but losses of its last pass are not finite"
        case _:
            return f"{reason}, but its objective has risen {_times(finding)} on the way"


def _diverged(finding: Finding) -> bool:
    """Whether a model that has lost what it gained has diverged. *If the objective was never much
    below its first value, and is not far above it, the answer is unknown*: the loss of a GAN, or of
    contrastive learning with a queue, may rise while the model learns."""
    first, best, last = finding.first, finding.best, finding.objective
    if first is None or best is None or last is None:
        return True
    return first - best >= _FALLEN * abs(first) or last - first >= abs(first)


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
    """What to change first if the run does not learn well, and the purpose. None: nothing is
    wrong."""
    tries = learning_remedies(state, job)
    finding = state.finding
    if not tries or finding is None:
        return None
    match finding.state:
        case LearningState.STALLED:
            gain = "with a rate that is too low or too high, the objective hardly falls"
        case LearningState.NOT_FINITE:
            gain = "steps that are too large end in NaN or infinity"
        case LearningState.FALLING:
            gain = "the objective may fall without rising on the way"
        case _ if finding.best_pass:
            gain = f"the objective was {number(finding.best)} {_best_at(finding)}, before it rose"
        case _:
            gain = "the objective has risen since the first round"
    return f"try {tries[0]}: {gain}"


def learning_remedies(state: RunState, job: JobSpec | None) -> list[str]:
    """What may help if the run does not learn well, best first. Empty: nothing is wrong."""
    finding = state.finding
    if finding is None or not needs_help(finding):
        return []
    if job is not None and keeps_rows(job.kind):
        return []  # a job of kind statistics has no learning rate
    if finding.state is LearningState.STALLED:
        return [
            f"another rate{_rate(state)}, higher or lower",
            "other data (check the labels first)",
        ]
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
    return tries


def _rate(state: RunState) -> str:
    return "" if state.rate is None else f" (it is {state.rate:g})"


def _example(state: RunState, job: JobSpec | None) -> str:
    """An example of a lower learning rate. Only a built-in job has a command-line option for its
    rate."""
    if job is None or job.path or state.rate is None:
        return _rate(state)
    return f" (such as --set rate={_LOWER_RATE * state.rate:.1g})"


def _bounds(job: JobSpec) -> list[str]:
    """Options with which workers under this policy would compute with newer parameters."""
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

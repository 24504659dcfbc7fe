"""How far a run is, and when it will end: by its number of rounds, passes or points, or by its time
limit, whichever comes first. *A target of a metric has no estimate*, because the time at which a
metric reaches a value is not predictable. So a job with a target may end earlier than estimated."""

import msgspec

from polyrhythm.observe.state import RunState
from polyrhythm.observe.words import grouped, rough
from polyrhythm.wire.messages import JobSpec

_LOOK_BACK = 30
"""How many lines of the journal the estimate uses. These lines cover about half a minute."""


class Estimate(msgspec.Struct, frozen=True):
    left_s: float
    """The seconds until the end of the run."""
    share: float
    """The share of the run's time that is over."""
    at_most: bool
    """Whether the run may end earlier than estimated, because it has a goal without an estimate."""

    def in_words(self) -> str:
        if self.left_s < 1:
            return "less than 1 s left"
        limit = "at most" if self.at_most else "about"
        return f"{limit} {rough(self.left_s)} left"


def estimate(state: RunState, job: JobSpec | None, now_s: float) -> Estimate | None:
    """When the run will end. None if no goal has an estimate (yet), or if the model is being
    saved."""
    if job is None or state.opened_s is None or state.saving:
        return None
    rest_s = left_s(state, job, now_s)
    if rest_s is None:
        return None
    gone_s = max(0.0, now_s - state.opened_s)
    share = gone_s / (gone_s + rest_s) if gone_s + rest_s else 1.0
    return Estimate(rest_s, share, bool(job.targets) or job.target_change is not None)


def left_s(state: RunState, job: JobSpec, now_s: float) -> float | None:
    """The seconds until the end of the run; None if there is no estimate yet. Targets of metrics are
    not included."""
    if state.opened_s is None:
        return None
    ends = [
        end_s
        for end_s in (
            _by_rounds(state, job.rounds),
            _by_passes(state, job.epochs),
            _by_points(state, job.points),
            None if job.max_seconds is None else state.opened_s + job.max_seconds,
        )
        if end_s is not None
    ]
    return max(0.0, min(ends) - now_s) if ends else None


def _by_rounds(state: RunState, goal: int | None) -> float | None:
    first, last = state.curve[-_LOOK_BACK:][0], state.curve[-1]
    if goal is None or last.round <= first.round:
        return None
    per_round_s = (last.at_s - first.at_s) / (last.round - first.round)
    return last.at_s + per_round_s * (goal - last.round)


def _by_points(state: RunState, goal: int | None) -> float | None:
    first, last = state.curve[-_LOOK_BACK:][0], state.curve[-1]
    if goal is None or last.points <= first.points:
        return None
    per_point_s = (last.at_s - first.at_s) / (last.points - first.points)
    return last.at_s + per_point_s * max(0, goal - last.points)


def _by_passes(state: RunState, goal: int | None) -> float | None:
    """The seconds until this number of passes is done. The estimate assumes that later passes have
    as many points as those so far, and that the speed of the last lines stays the same. In the
    first pass, it uses the number of points of the data set."""
    first, last = state.curve[-_LOOK_BACK:][0], state.curve[-1]
    begun = next((point for point in state.curve if point.passes == last.passes), last)
    in_pass = begun.points / begun.passes if begun.passes else state.data_points
    if goal is None or not in_pass or last.points <= first.points:
        return None
    per_point_s = (last.at_s - first.at_s) / (last.points - first.points)
    return last.at_s + per_point_s * max(0.0, goal * in_pass - last.points)


def counts(state: RunState, job: JobSpec | None) -> list[str]:
    """How many rounds, passes and points the run has made, each with its goal if there is one."""
    epochs, rounds, points = (None,) * 3 if job is None else (job.epochs, job.rounds, job.points)
    parts = []
    if state.passes or epochs:
        parts.append(
            f"{_of(state.passes, epochs)} {'pass' if (epochs or state.passes) == 1 else 'passes'}"
        )
    parts.append(f"round {_of(state.round, rounds)}")
    if points:
        parts.append(f"{_of(state.resumed_points + state.points, points)} points")
    return parts


def _of(count: int, goal: int | None) -> str:
    return grouped(count) if goal is None else f"{grouped(count)} of {grouped(goal)}"


def open_end(job: JobSpec) -> str | None:
    """What ends a run for which no estimate can be made; None if one can be made later."""
    if any(goal is not None for goal in (job.rounds, job.epochs, job.points, job.max_seconds)):
        return None
    if job.target_change is not None and not job.targets:
        return f"ends when the objective changes by less than {job.target_change:g} in a pass"
    if job.targets:
        return "ends at its target"
    return None

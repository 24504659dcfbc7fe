"""Estimates when a run will end: by its number of rounds, passes or points, or by its time limit,
whichever comes first."""

from polyrhythm.observe.state import RunState
from polyrhythm.wire.messages import JobSpec

_LOOK_BACK = 30
"""How many lines of the journal the estimate uses. These lines cover about half a minute."""


def left_s(state: RunState, job: JobSpec, now_s: float) -> float | None:
    """The seconds until the end of the run; None if there is no estimate yet. Targets of
    metrics are not included, because their time cannot be estimated."""
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
    as many points as the passes so far, and that the speed of the last lines stays the same."""
    first, last = state.curve[-_LOOK_BACK:][0], state.curve[-1]
    begun = next((point for point in state.curve if point.passes == last.passes), last)
    if goal is None or not last.passes or last.points <= first.points:
        return None
    per_point_s = (last.at_s - first.at_s) / (last.points - first.points)
    in_goal = goal * begun.points / begun.passes
    return last.at_s + per_point_s * max(0.0, in_goal - last.points)

"""Decides which super-workers give points to which others, and gives the reason.

*Points move only where the difference is larger than the tolerance, larger than the noise of the
measured speeds, and larger than a chunk. So nothing moves between equal machines.*
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyrhythm.core.lead.balance.pairs import (
    ALIKE,
    EPSILON,
    Key,
    Pace,
    SuperWorker,
    group,
    merged,
    pair,
    points_by_passes,
    visits_by_finish,
)
from polyrhythm.core.machine import Reason
from polyrhythm.wire.messages.reasons import Field

PARTS = 4
"""The remaining time is divided into this many parts (d in FSP). Chunks move so that passes are
balanced at the end of the next part."""
_MOST_PASSES = 16
"""The remaining time counts as at most the time of this many passes. With a lower limit, workers that
are behind would give away many points for a short time, and get them back."""
_MOVE_ROUNDS = 2
"""How many rounds a move takes: it is complete only when the holder of the chunks has confirmed
it."""
_PASS = "balance-pass"
_MOST_CHUNKS = 2
"""The most chunks that a worker gives away at once to finish the pass in time. More chunks would
change its passes so much that the chunks would have to come back."""
_CERTAIN, _LIKELY = 3.0, 1.5
"""A difference must be larger than this many standard errors. The first number is for a move of
many points, the second for a move of one or two chunks between workers that are known to differ."""


@dataclass(frozen=True, slots=True)
class Move:
    """Each of `sources` gives about `points` points away; `targets` share them evenly. `ends`:
    `points` is a number of remaining visits, and not of points."""

    sources: tuple[Key, ...]
    targets: tuple[Key, ...]
    points: float
    ends: bool
    reason: Reason
    this_pass: bool = False
    """With `ends`: whether only the visits of the present pass count. Otherwise all visits until the
    end of the job count."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The decision. `reason`: why points move, or why no points move."""

    moves: tuple[Move, ...]
    reason: Reason


def decide(
    paces: Sequence[Pace], remaining_s: float | None, chunk: float, round_s: float
) -> Balance:
    """`remaining_s`: the time until the job ends; None if it is not known. `chunk`: the mean number
    of points in a chunk. `round_s`: the time of a round; a move takes about two rounds."""
    groups = group(pace for pace in paces if pace.points)
    if len(groups) < 2:
        return Balance((), Reason("balance-alike", {"count": len(paces)}))
    pass_s = sum(pace.points for pace in paces) / sum(1 / pace.seconds for pace in paces)
    """The time of a full pass if all members finish it together."""
    ends = all(pace.left is not None for pace in paces)
    if ends:
        left_s = sum(pace.left or 0.0 for pace in paces) / sum(1 / pace.seconds for pace in paces)
        if left_s <= pass_s:
            return _by_finish(groups, left_s, chunk, round_s)
        remaining_s = min(left_s, math.inf if remaining_s is None else remaining_s)
    most_s = _MOST_PASSES * pass_s
    total_s = most_s if remaining_s is None else min(most_s, remaining_s)
    return _by_passes(groups, max(total_s, round_s), chunk)


def _by_passes(groups: Sequence[SuperWorker], total_s: float, chunk: float) -> Balance:
    """Move points so that all passes are equal at the end of the next part of the remaining
    time."""
    tau_s = total_s / PARTS
    mean = sum(each.predicted(total_s) for each in groups) / len(groups)
    worst = max(abs(each.predicted(total_s) - mean) for each in groups)
    if worst <= EPSILON:
        return Balance((), Reason("balance-even", {"apart": worst, "bound": EPSILON}))
    moves = []
    for slow, fast in pair(sorted(groups, key=lambda each: (each.predicted(tau_s), each.keys))):
        points = points_by_passes(slow, fast, tau_s)
        if points * len(slow.keys) >= chunk and _passes_differ(slow, fast, total_s):
            moves.append(_move("balance-passes", slow, fast, points, total_s))
    return _decided(moves, worst)


def _passes_differ(slow: SuperWorker, fast: SuperWorker, total_s: float) -> bool:
    """Whether the passes of two super-workers differ already, or will certainly differ. A difference
    that is usual between equal machines need not be balanced."""
    walked = math.hypot(slow.walk_s * slow.rate, fast.walk_s * fast.rate)
    if fast.passes - slow.passes > max(2 * EPSILON, _CERTAIN * walked):
        return True
    apart = fast.predicted(total_s) - slow.predicted(total_s)
    errors = (total_s * each.rate * each.error / each.seconds for each in (slow, fast))
    noise = math.hypot(walked, *errors)
    steady = slow.rate < (1 - ALIKE) * fast.rate
    return steady and apart > max(2 * EPSILON, _CERTAIN * noise)


def _by_finish(
    groups: Sequence[SuperWorker], left_s: float, chunk: float, round_s: float
) -> Balance:
    """Less than a pass is left: let all workers finish at the same time."""
    ranked = sorted(groups, key=lambda each: (-each.finish_s, each.keys))
    worst = ranked[0].finish_s - ranked[-1].finish_s
    moves = []
    for slow, fast in pair(ranked):
        apart_s = slow.finish_s - fast.finish_s
        noise = math.hypot(slow.left * slow.error, fast.left * fast.error)
        if not fast.left:
            # The fast workers have nothing left to visit. So they can help even if the speeds are
            # uncertain.
            noise = min(noise, slow.finish_s / (2 * _CERTAIN))
        points = visits_by_finish(slow, fast)
        bound_s = max(ALIKE * left_s, 2 * round_s, _CERTAIN * noise)
        if points * len(slow.keys) >= chunk and apart_s > bound_s:
            moves.append(_move("balance-finish", slow, fast, points, apart_s))
    return _decided(moves, worst)


def speeds_differ(paces: Sequence[Pace]) -> bool:
    """Whether it is certain that the fastest worker is faster than the slowest one."""
    fast, slow = min(paces, key=_seconds), max(paces, key=_seconds)
    certain = _CERTAIN * math.hypot(slow.error, fast.error)
    return slow.seconds - fast.seconds > max(ALIKE * slow.seconds, certain)


def _seconds(pace: Pace) -> float:
    return pace.seconds


def finish_pass(paces: Sequence[Pace], chunk: float, round_s: float) -> Balance:
    """Let all workers finish the present pass at the same time, so that none begins the next one long
    before the others. `left` of a pace is the number of its visits in this pass. Workers are not
    grouped, because workers that are alike may have reached different parts of the pass."""
    alone = [merged([pace]) for pace in paces]
    ranked = sorted(alone, key=lambda each: (-each.finish_s, each.keys))
    worst = ranked[0].finish_s - ranked[-1].finish_s
    moves = []
    for slow, fast in pair(ranked) if ranked[0].finish_s > _MOVE_ROUNDS * round_s else ():
        apart_s = slow.finish_s - fast.finish_s
        noise = math.hypot(slow.left * slow.error, fast.left * fast.error)
        points = visits_by_finish(slow, fast)
        # A slow worker should rather finish early: the others visit several chunks while it visits
        # its last one.
        points += chunk / 2 * max(0.0, 1 - fast.seconds / slow.seconds)
        if points >= chunk / 2 and apart_s > max(chunk * fast.seconds, _LIKELY * noise):
            moves.append(_move(_PASS, slow, fast, min(points, _MOST_CHUNKS * chunk), apart_s))
    return _decided(moves, worst)


def _move(code: str, slow: SuperWorker, fast: SuperWorker, points: float, seconds: float) -> Move:
    """The fields `passes` and `target_passes` of the reason are the predicted passes after `seconds`,
    if no points move."""
    fields: dict[str, Field] = {
        "workers": [worker for worker, _ in slow.keys],
        "targets": [worker for worker, _ in fast.keys],
        "passes": slow.predicted(seconds),
        "target_passes": fast.predicted(seconds),
        "times": slow.seconds / fast.seconds,
        "seconds": seconds,
    }
    this_pass = code == _PASS
    ends = this_pass or code == "balance-finish"
    return Move(slow.keys, fast.keys, points, ends, Reason(code, fields), this_pass)


def _decided(moves: Sequence[Move], worst: float) -> Balance:
    if moves:
        return Balance(tuple(moves), moves[0].reason)
    return Balance((), Reason("balance-uncertain", {"apart": worst}))

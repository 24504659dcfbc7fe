"""Decides between which super-workers points move, and gives the reason. A *super-worker* is a
group of workers with about the same number of points, speed and number of passes.

*Points move between two super-workers only if their difference is larger than the tolerance, larger
than the noise of the measured speeds, and larger than a chunk. So nothing moves between equal
machines.*
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.wire.messages.reasons import Field

Key: TypeAlias = tuple[int, int]
"""A worker and its incarnation."""
ALIKE = 0.1
"""Workers form one super-worker if their points, speeds and passes differ by at most this share.
Speeds may also differ by the standard error of their difference."""
EPSILON = 0.5
"""By how many passes a super-worker may differ from the mean (FSP Eq. 8)."""


class Pace(msgspec.Struct, frozen=True):
    """One worker: the number of its points, its seconds per point with their standard error, its
    passes, and how many visits of its points are left until the last pass (None if there is no last
    pass). `walk_s`: see `speeds.Speed`."""

    key: Key
    points: int
    seconds: float
    error: float
    passes: float
    left: float | None = None
    walk_s: float = 0.0
    left_next: float = 0.0
    """See `decision.finish_pass`."""

    @property
    def finish_s(self) -> float:
        """How long the worker's remaining visits take if no points move."""
        return (self.left or 0.0) * self.seconds

    @property
    def finish_next_s(self) -> float:
        """How long the worker's visits in this pass and the next one take if no points move."""
        return self.left_next * self.seconds


class SuperWorker(msgspec.Struct, frozen=True):
    """Workers with about the same points, speed and passes. Every number is a mean over them."""

    keys: tuple[Key, ...]
    points: float
    seconds: float
    error: float
    passes: float
    left: float
    walk_s: float = 0.0

    def predicted(self, tau_s: float) -> float:
        """How many passes the super-worker will have made after this time, if no points move."""
        return self.passes + tau_s * self.rate

    @property
    def rate(self) -> float:
        """Passes per second."""
        return 1 / (self.seconds * self.points)

    @property
    def finish_s(self) -> float:
        """How long the remaining visits of the super-worker take, if no points move."""
        return self.left * self.seconds


def without_stuck(paces: Sequence[Pace], can_give: Callable[[Key], bool]) -> list[Pace]:
    """Leave out stuck workers. A worker is stuck if its points cannot move and it makes its passes
    more slowly than every worker whose points can move. No move of points can balance it with the
    others. `can_give` says whether the points of a worker may move."""
    speeds = [pace.seconds * pace.points for pace in paces if can_give(pace.key)]
    slowest = max(speeds, default=0.0)
    return [p for p in paces if p.seconds * p.points <= slowest or can_give(p.key)]


def alike(one: Pace, other: Pace) -> bool:
    most = max(one.passes, other.passes)
    uncertain = math.hypot(one.error, other.error)
    return (
        abs(one.points - other.points) <= ALIKE * max(one.points, other.points)
        and abs(one.seconds - other.seconds)
        <= max(ALIKE * max(one.seconds, other.seconds), uncertain)
        and abs(one.passes - other.passes) <= min(EPSILON, max(ALIKE, ALIKE * most))
    )


def group(paces: Iterable[Pace]) -> list[SuperWorker]:
    """Group workers that are about equal. Every worker is compared with the fastest worker of a
    group, so the result does not depend on the order of the workers.

    The functions below use the symbols of FSP §4.2: N points per worker, V seconds per point, P
    passes, beta slow workers per fast worker, and tau, the time for which passes are predicted.
    """
    groups: list[list[Pace]] = []
    for pace in sorted(paces, key=lambda pace: (pace.seconds, pace.key)):
        for members in groups:
            if alike(members[0], pace):
                members.append(pace)
                break
        else:
            groups.append([pace])
    return [merged(members) for members in groups]


def merged(members: Sequence[Pace]) -> SuperWorker:
    """Combine these workers into one super-worker."""
    count = len(members)
    return SuperWorker(
        keys=tuple(sorted(pace.key for pace in members)),
        points=sum(pace.points for pace in members) / count,
        seconds=sum(pace.seconds for pace in members) / count,
        error=max(pace.error for pace in members),
        passes=sum(pace.passes for pace in members) / count,
        left=sum(pace.left or 0.0 for pace in members) / count,
        walk_s=max(pace.walk_s for pace in members),
    )


def pair(ranked: Sequence[SuperWorker]) -> list[tuple[SuperWorker, SuperWorker]]:
    """Pair the first super-worker with the last one, the second with the last but one, and so on.
    The super-workers in `ranked` are sorted by the quantity that is to be balanced."""
    return [(ranked[at], ranked[-1 - at]) for at in range(len(ranked) // 2)]


def points_by_passes(slow: SuperWorker, fast: SuperWorker, tau_s: float) -> float:
    """How many points each slow worker must give away, so that after `tau_s` both super-workers
    have made the same number of passes (FSP Eq. 9, which is linear in the points).

    A fast worker first visits the moved points, until they have as many passes as its own points.
    If `tau_s` is too short for that, the points are divided so that both passes take equally long:
    that of a slow worker over its remaining points, and that of a fast worker over the moved
    points.
    """
    beta = len(slow.keys) / len(fast.keys)
    behind = fast.passes - slow.passes
    reach_s = behind * fast.points * fast.seconds + tau_s
    if reach_s <= 0:
        return 0.0
    numerator = reach_s * slow.points * slow.seconds - tau_s * fast.points * fast.seconds
    found = numerator / (tau_s * beta * fast.seconds + reach_s * slow.seconds)
    if tau_s < behind * beta * found * fast.seconds:
        found = slow.points * slow.seconds / (slow.seconds + beta * fast.seconds)
    return min(max(0.0, found), slow.points)


def visits_by_finish(slow: SuperWorker, fast: SuperWorker) -> float:
    """How many of its remaining visits each slow worker must give away, so that both super-workers
    finish at the same time."""
    beta = len(slow.keys) / len(fast.keys)
    found = (slow.finish_s - fast.finish_s) / (slow.seconds + beta * fast.seconds)
    return min(max(0.0, found), slow.left)


PARTS = 4
"""The remaining time is divided into this many parts (d in FSP). Moves shall balance the passes at
the end of the next part."""
_MOST_PASSES = 16
"""The remaining time is limited to the time of this many passes. Otherwise workers that are behind
would give away many points for a short time, and get them back."""
_MOVE_ROUNDS = 2
"""How many rounds a move takes: it is complete only when the holder of the chunks has confirmed
it."""
_PASS = "balance-pass"
_MOST_CHUNKS = 2
"""The most chunks that a worker gives away at once to finish the pass in time. More chunks would
change its passes so much that some would have to come back."""
_LEAST_GAIN = 0.5
"""A chunk moves only if it shortens the time during which some chunks have two visits more than
others by at least this many rounds. Without such a limit, chunks would move back and forth between
equally fast workers."""
_CERTAIN, _LIKELY = 3.0, 1.5
"""Points move only if the measured difference is larger than this many standard errors. The first
number is used for a move of many points, the second for a move of one or two chunks."""


class Move(msgspec.Struct, frozen=True):
    """A move of points from workers to other workers. Each worker in `sources` gives about `points`
    points away, and the workers in `targets` share them evenly. `ends`: `points` is a number of
    remaining visits instead of points."""

    sources: tuple[Key, ...]
    targets: tuple[Key, ...]
    points: float
    ends: bool
    reason: Reason
    this_pass: bool = False
    """With `ends`: whether only the visits of the present pass count. Otherwise all visits until
    the end of the job count."""


class Balance(msgspec.Struct, frozen=True):
    """The decision. `reason`: why points move, or why no points move."""

    moves: tuple[Move, ...]
    reason: Reason


def decide(
    paces: Sequence[Pace], remaining_s: float | None, chunk: float, round_s: float
) -> Balance:
    """Decide which points move, so that all workers make equal passes and finish the job together.
    `remaining_s`: the time until the job ends; None if it is not known. `chunk`: the mean number of
    points in a chunk. `round_s`: the time of a round; a move takes about two rounds."""
    groups = group(pace for pace in paces if pace.points)
    if len(groups) < 2:
        return Balance((), Reason("balance-alike", {"count": len(paces)}))
    pass_s = sum(pace.points for pace in paces) / sum(1 / pace.seconds for pace in paces)
    """How long a full pass takes if all members finish it together."""
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
    """Move points so that all workers have made equally many passes at the end of the next part of
    the remaining time."""
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
    """Whether two super-workers already differ in passes, or certainly will. A difference that is
    usual between equal machines does not count."""
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
    """When less than a pass is left, move points so that all workers finish the job at the same
    time."""
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


def finish_pass(
    paces: Sequence[Pace],
    chunk: float,
    round_s: float,
    may_give: Callable[[Key, Key], bool] = lambda source, target: True,
) -> Balance:
    """Move chunks so that all workers finish the present pass, and then the next one, at about the
    same time. Otherwise some chunks would have two visits more than others.

    In `paces`, `left` is the number of visits that a worker has left in this pass, and `left_next`
    the number in this pass and the next one together. `chunk` is the mean number of points in a
    chunk. `may_give` says whether chunks of one worker may move to another. Workers are not grouped
    here, because similar workers may have reached different parts of the pass.
    """
    ranked = sorted(paces, key=lambda pace: (-pace.finish_s, pace.key))
    worst = ranked[0].finish_s - ranked[-1].finish_s
    moves = []
    for slow, fast in (
        _pairs(ranked, may_give) if ranked[0].finish_s > _MOVE_ROUNDS * round_s else ()
    ):
        count = _chunks_for_pass(slow, fast, chunk, round_s)
        if count:
            ends = merged([slow]), merged([fast])
            moves.append(_move(_PASS, *ends, count * chunk, slow.finish_s - fast.finish_s))
    return _decided(moves, worst)


def _pairs(
    ranked: Sequence[Pace], may_give: Callable[[Key, Key], bool]
) -> Iterator[tuple[Pace, Pace]]:
    """Pair the worker that finishes last with the one that finishes first, the second last with the
    second, and so on. If chunks may not move between the two workers of a pair, the slow worker is
    paired with the next worker that finishes early."""
    paired: set[Key] = set()
    for at, slow in enumerate(ranked):
        for fast in reversed(ranked[at + 1 :] if slow.key not in paired else ()):
            if fast.key not in paired and may_give(slow.key, fast.key):
                paired |= {slow.key, fast.key}
                yield slow, fast
                break


def _chunks_for_pass(slow: Pace, fast: Pace, chunk: float, round_s: float) -> int:
    """How many chunks `slow` should give to `fast`, because `slow` would finish the pass later.
    Only chunks that `slow` has not visited in this pass can be given.

    *A worker that is early may begin the next pass while a late worker is still in this one. From
    the moment at which the early worker visits its first chunk again until the late worker has
    finished, some chunks have two visits more than others. A move of chunks can shorten this time
    at the end of this pass, and also at the end of the next one. Each moved chunk must shorten the
    sum of the two times by at least half a round. The next pass counts too, because the target then
    has one chunk more. Without it, the chunk would often have to move back.*
    """
    apart_s, next_s = slow.finish_s - fast.finish_s, slow.finish_next_s - fast.finish_next_s
    noise = math.hypot(*(each.finish_s * each.error / each.seconds for each in (slow, fast)))
    if apart_s <= max(chunk * fast.seconds, _LIKELY * noise):
        return 0
    slow_s, fast_s = chunk * slow.seconds, chunk * fast.seconds
    follows = any((each.left or 0.0) < each.left_next for each in (slow, fast))

    def uneven_s(apart_s: float) -> float:
        """How long some chunks have two visits more than others, if `slow` finishes `apart_s`
        seconds later than `fast`."""
        return max(0.0, apart_s - fast_s, -apart_s - slow_s)

    def cost_s(count: int) -> float:
        moved_s = count * (slow_s + fast_s)
        uneven = uneven_s(apart_s - moved_s)
        if follows:
            uneven += uneven_s(next_s - 2 * moved_s)
        return uneven + count * _LEAST_GAIN * round_s

    return min(range(_MOST_CHUNKS + 1), key=cost_s)


def _move(code: str, slow: SuperWorker, fast: SuperWorker, points: float, seconds: float) -> Move:
    """Build a move with its reason. The fields `passes` and `target_passes` of the reason are the
    predicted passes after `seconds` if no points move."""
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

"""Super-workers, their predicted passes, their pairs, and how many points move within a pair.

The symbols are those of FSP §4.2: N points per worker, V seconds per point, P passes, beta slow
workers per fast worker, tau the time for which passes are predicted.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = tuple[int, int]
"""A worker and its incarnation."""
ALIKE = 0.1
"""Workers form one super-worker if their points, speeds and passes differ by at most this share.
Speeds may also differ by the standard error of their difference."""
EPSILON = 0.5
"""By how many passes a super-worker may differ from the mean (FSP Eq. 8)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One worker: the points of its chunks, its seconds per point with their standard error, its
    passes, and how many visits of its points are left until the last pass (None: no last pass).
    `walk_s`: see `speeds.Speed`."""

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
        """How long the remaining visits of the worker take, if no points move."""
        return (self.left or 0.0) * self.seconds

    @property
    def finish_next_s(self) -> float:
        """How long the visits of the worker in this pass and the next one take, if no points
        move."""
        return self.left_next * self.seconds


@dataclass(frozen=True, slots=True)
class SuperWorker:
    """Workers that are alike. Every number is a mean over them."""

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
    """Leave out stuck workers, which can neither give points nor take any. The points of a stuck worker
    may not move, and its passes take longer than the passes of all workers whose points may move.
    `can_give` says whether points of a worker may move."""
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
    """Group workers that are alike. Every worker is compared with the fastest of a group, so the
    result does not depend on the order in which workers are given."""
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
    """The super-worker of these workers."""
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
    `ranked`: the super-workers in ascending order of what is to be balanced."""
    return [(ranked[at], ranked[-1 - at]) for at in range(len(ranked) // 2)]


def points_by_passes(slow: SuperWorker, fast: SuperWorker, tau_s: float) -> float:
    """How many points each slow worker gives away, so that both super-workers have made the same number
    of passes after `tau_s` (FSP Eq. 9, which is linear in the points). A fast worker visits moved points
    first, until they have as many passes as its own points. If `tau_s` is too short for that, the points
    are divided in another way: a pass over the points that stay takes a slow worker as long as a pass
    over the moved points takes a fast one."""
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
    """How many of its remaining visits each slow worker gives away, so that both super-workers finish
    at the same time."""
    beta = len(slow.keys) / len(fast.keys)
    found = (slow.finish_s - fast.finish_s) / (slow.seconds + beta * fast.seconds)
    return min(max(0.0, found), slow.left)

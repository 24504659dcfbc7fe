"""Balances the passes of the members at folds: measures their speeds, and moves leases of chunks
from slow members to fast ones."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from polyrhythm.core.lead.data.balance.decision import (
    Balance,
    Move,
    Pace,
    decide,
    finish_pass,
    without_stuck,
)
from polyrhythm.core.lead.data.balance.speeds import ENOUGH, Speed, Speeds
from polyrhythm.core.lead.data.chunks import Holder, WantedMove, visits_left
from polyrhythm.core.lead.data.migration import Migration
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.machine import Reason


class HeldChunk(msgspec.Struct, frozen=True):
    """A chunk of the worker. The higher `visited` is, the later the chunk was visited."""

    index: int
    points: int
    passes: int
    cursor: int
    visited: int
    copied: bool = False
    """Whether a worker that may get the chunk has a copy of its points."""


def choose(
    held: Sequence[HeldChunk], amount: float, last_pass: int | None, *, ends: bool
) -> list[int]:
    """Choose chunks of one worker that have about `amount` points together. `last_pass`: the number
    of passes after which the job ends; None if it has no such goal. `ends`: all members shall
    finish the job at the same time, so `amount` counts remaining visits instead of points.

    *Chunks of which the target has a copy go first, because their points need not be sent. Then
    come the chunks that the worker has visited in this pass, the most recent one first, because
    they need no visit until the next pass. Chunks without a visit in this pass come last. The
    worker keeps the chunk that it is visiting, and at least one chunk.*
    """
    this_pass = min((chunk.passes for chunk in held), default=0)
    chosen: list[int] = []
    for chunk in sorted(
        held, key=lambda chunk: (not chunk.copied, chunk.passes == this_pass, -chunk.visited)
    ):
        left = None if last_pass is None else chunk.points * (last_pass - chunk.passes)
        if chunk.cursor or (left is not None and left <= 0):
            continue
        size = left if ends and left is not None else chunk.points
        if len(chosen) + 1 >= len(held) or amount < size / 2:
            break
        chosen.append(chunk.index)
        amount -= size
    return chosen


def choose_moves(
    plan: DataPlan,
    sources: Iterable[Holder],
    targets: Iterable[Holder],
    amount: float,
    *,
    ends: bool,
    this_pass: bool = False,
    copies: Mapping[Holder, Collection[int]] | None = None,
) -> list[WantedMove]:
    """Choose chunks with about `amount` points from each worker in `sources`, and divide them
    evenly among `targets`. `ends`: `amount` counts remaining visits instead of points: those in the
    whole job, or with `this_pass` those in the present pass. `copies`: per member, the chunks of
    which it has an inactive copy. Chunks whose target already has the points move first."""
    there = {target: (copies or {}).get(target, ()) for target in targets}
    received = dict.fromkeys(sorted(there), 0)
    last = plan.passes + 1 if this_pass else plan.epochs
    owns, found = plan.ownership, []
    for source in sorted(sources) if received else ():
        held, ways = [], {}
        for index in plan.held_by(source):
            chunk = plan.chunks[index]
            near = {t: index in there[t] or owns.reads(t, index) for t in received}
            may = {t for t in received if owns.may_move(index, source, t, sent=not near[t])}
            if may:
                numbers = (index, chunk.points, chunk.passes, chunk.cursor, chunk.visited)
                held.append(HeldChunk(*numbers, any(near[t] for t in may)))
                ways[index] = {t: not near[t] for t in may}
        for index in choose(held, amount, last, ends=ends):
            far = ways[index]
            target = min(sorted(far), key=lambda each: (far[each], received[each]))
            received[target] += plan.chunks[index].points
            found.append((index, source, target))
    return found


_EVERY = 2
"""The number of folds between two decisions about the end of a pass. It is small, because a pass
may have only a few rounds."""


class Moved(msgspec.Struct, frozen=True):
    """A move that has begun: the number of its chunks and of their points, and the reason for
    it."""

    chunks: int
    points: int
    reason: Reason


class BalancingState(msgspec.Struct):
    speeds: Speeds = msgspec.field(default_factory=Speeds)
    moved: bool = False
    """Whether points have moved in this job; between equal machines none do. *Once points have
    moved, the lead balances passes until the job ends. Otherwise a slow worker that becomes fast
    again would keep too few points and stay behind in passes.*"""
    wait: int = ENOUGH
    """The number of folds before the next decision."""


class Balancing:
    """Decides at folds which chunks move, and orders their moves.

    *A decision is made only when the last moves are complete, and every member has been measured in
    a few rounds after these moves. Decisions about the end of a pass are made more often.*
    """

    def __init__(self, state: BalancingState, plan: DataPlan, migration: Migration) -> None:
        """*If the migration evens passes (`migration.evens_passes`), chunks also move so that all
        members finish every pass at the same time. This begins with the first move.*"""
        self._state = state
        self._plan = plan
        self._migration = migration
        self.speeds = state.speeds

    def on_folded(
        self,
        members: Iterable[tuple[Holder, bool]],
        remaining_s: float | None,
        now_ns: int,
    ) -> list[Moved]:
        """Decide after a fold which chunks move. `members`: every member, and whether it had no
        points to visit. Returns the moves that are ordered now."""
        plan, present = self._plan, dict(members)
        self.speeds.on_folded(present.items(), now_ns)
        self._state.wait -= 1
        if self._state.wait > 0 or plan.moves:
            return []
        self._state.wait = ENOUGH
        paces = self._paces(present)
        if paces is not None:
            paces = without_stuck(paces, plan.ownership.can_give)
        if paces is None or len(paces) < 2:
            return []
        chunk = plan.mean_chunk
        decided: Balance = decide(paces, remaining_s, chunk, self.speeds.round_s)
        if not decided.moves and self._migration.evens_passes and self._state.moved:
            self._state.wait = _EVERY
            paces = with_left(paces, plan, present)
            decided = finish_pass(paces, chunk, self.speeds.round_s, self._may_give)
        moved: list[Moved] = []
        for move in decided.moves:
            ordered = self._order(move)
            if ordered:
                self._state.moved = True
                points = sum(plan.chunks[index].points for index, _, _ in ordered)
                moved.append(Moved(len(ordered), points, _about(plan, move)))
                if not move.this_pass:
                    self.speeds.on_moved()
        return moved

    def _paces(self, members: Collection[Holder]) -> list[Pace] | None:
        """The paces of the members that have points; None if the speed of one of them is not known
        yet. *A member that finished all passes before it was measured can still help the others. It
        counts as fast as the others are on average.*"""
        held_points = self._plan.held_points(members)
        held_by = {key: held for key, held in held_points.items() if held.points}
        speeds = {key: speed for key in held_by if (speed := self.speeds.of(key)) is not None}
        if not speeds:
            return None
        mean = sum(speed.seconds for speed in speeds.values()) / len(speeds)
        paces = []
        for key, held in held_by.items():
            speed = speeds.get(key)
            if speed is None and held.left != 0:
                return None
            speed = speed or Speed(mean, error=mean)
            passes = held.visits / held.points
            measured = (speed.seconds, speed.error, passes)
            paces.append(Pace(key, held.points, *measured, held.left, speed.walk_s))
        return paces

    def _may_give(self, source: Holder, target: Holder) -> bool:
        """Whether any chunk of `source` may move to `target`."""
        plan, migration = self._plan, self._migration
        if not migration.reaches(source, target):
            return False
        there = migration.copies.get(target, ())
        for index in plan.held_by(source):
            sent = index not in there and not plan.ownership.reads(target, index)
            if plan.ownership.may_move(index, source, target, sent=sent):
                return True
        return False

    def _order(self, move: Move) -> list[WantedMove]:
        """Choose chunks for this decision, and order their moves. Returns the moves."""
        wanted = choose_moves(
            self._plan,
            move.sources,
            self._migration.receivers(move.targets),
            move.points,
            ends=move.ends,
            this_pass=move.this_pass,
            copies=self._migration.copies,
        )
        return self._migration.order(wanted)


def with_left(paces: Iterable[Pace], plan: DataPlan, members: Collection[Holder]) -> list[Pace]:
    """The pace of each worker, completed with the number of visits that the worker has left: in the
    present pass, and in the present and the next pass together (if there is a next pass)."""
    now = plan.passes + 1
    then = now + 1 if plan.epochs is None else min(now + 1, plan.epochs)
    this, both = (visits_left(last, plan.due_chunks(), members) for last in (now, then))
    return [replace(pace, left=this[pace.key], left_next=both[pace.key]) for pace in paces]


def _about(plan: DataPlan, move: Move) -> Reason:
    """The reason for a move. It names only those source workers whose points may move."""
    workers: list[int] = [source[0] for source in move.sources if plan.ownership.can_give(source)]
    if len(workers) == len(move.sources):
        return move.reason
    return Reason(move.reason.code, {**move.reason.fields, "workers": workers})

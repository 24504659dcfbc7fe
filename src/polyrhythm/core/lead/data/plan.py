"""The data plan: how the data set is divided into chunks, which member has a lease of which chunk,
and how many full passes were made.

A permutation with the job's seed distributes the points over chunks, and each chunk is leased to a
member. With kind statistics a chunk is a range of the data set, and the chunks are permuted instead
of the points.

*The trailer of a contribution reports how far its chunks were visited. This progress counts when
the contribution counts.* Therefore a chunk moves to another member only when no contribution with
its points can be in flight: its holder has contributed under a lease without the chunk, or every
server knows that the holder was removed. `moves.py` has the phases of a move.

*Every change of a lease gives the lease a new number and marks its member as changed. The handler
of the event then sends the new leases* (`leasing.py`).

*A contribution that becomes complete after a fold was ordered belongs to the next fold. The version
of the ordered fold may lack its visits, so neither a checkpoint of this version nor the end of the
job may count them* (`Ahead`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias

import msgspec

from polyrhythm.core.lead.data.chunks import (
    Chunk,
    HeldPoints,
    Holder,
    WantedMove,
    chunk_edges,
    dealt,
    missing_points,
    quotas,
)
from polyrhythm.core.lead.data.moves import ChunkMove, How, MovePhase
from polyrhythm.core.machine import Reason
from polyrhythm.core.minimum_tracker import MinimumTracker
from polyrhythm.core.record import Record, RecordedChunk
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import ChunkLease, ChunkProgress, Leased

Place: TypeAlias = tuple[int, int]
"""The passes over a chunk, and the cursor in the present pass."""


class Ahead(msgspec.Struct):
    """Keeps the progress that contributions to the next fold have reported apart from the fold
    under way."""

    _before: dict[int, Place] = {}
    """Per chunk with such progress: its passes and cursor before that progress."""

    def note(self, index: int, before: Place) -> None:
        """Remember the progress of a chunk at the last fold, before a contribution to the next fold
        advances it. `before`: the chunk's passes and cursor."""
        self._before.setdefault(index, before)

    def folded(self, index: int, place: Place) -> Place:
        """The progress of a chunk in the last folded version. `place`: the progress to return if
        that has not changed since."""
        return self._before.get(index, place)

    def passes(self, least: int) -> int:
        """The number of full passes in the last folded version. `least`: the number of full passes
        now, which includes progress for the next fold."""
        return min([least, *(passes for passes, _ in self._before.values())])

    def settle(self) -> None:
        """Forget the earlier values at the end of a fold: the next fold contains the noted
        progress."""
        self._before.clear()


CHUNKS_PER_WORKER = 16
CHUNKS_TO_BALANCE = 100
"""The fewest chunks of a job that balances passes. One chunk is then at most 1% of a pass."""
_MOST_PASSES = 10_000
"""The most passes over a chunk that one contribution may report."""


class Ownership(Protocol):
    """Says which members have the points of a chunk: `CommonData` if all have them, or
    `private.PrivateData`."""

    distributes: bool
    """Whether the chunks are distributed over all members."""

    @property
    def passes(self) -> int:
        """The number of full passes."""

    def reads(self, member: Holder, index: int) -> bool:
        """Whether the member can always read the points of this chunk, so that they need not be
        sent to it."""

    def may_move(self, index: int, source: Holder, target: Holder, *, sent: bool) -> bool:
        """Whether a chunk may move from one member to another. `sent`: its points must be sent."""

    def can_give(self, holder: Holder) -> bool:
        """Whether any chunks of this member may move."""

    def points_of(self, holder: Holder) -> int | None:
        """The number of points of this member's private data set; None if it has none."""

    def shift(self, holder: Holder, index: int) -> int:
        """What to add to the number of a chunk's point in a lease of this member."""

    def recorded_name(self, index: int, holder: str) -> str | None:
        """The worker that gets the chunk when the job resumes; None if checkpoints do not record
        the chunk. `holder`: the name of its present holder."""

    def on_released(
        self,
        lost: Sequence[tuple[int, Holder]],
        gone: Collection[Holder],
        copies: Mapping[Holder, Collection[int]],
        passes: int,
    ) -> None:
        """Handle the removal of the members in `gone`, which had the chunks in `lost`. `copies`:
        see `DataPlan.release`. `passes`: the number of full passes before the removal."""

    def check(self, changed: Collection[int]) -> None:
        """Check the chunks in `changed`."""


class CommonData:
    """Every member can read the whole data set. Implements `Ownership`."""

    distributes = True

    def __init__(self, plan: "DataPlan") -> None:
        self._plan = plan

    @property
    def passes(self) -> int:
        return self._plan.counted.least

    def reads(self, member: Holder, index: int) -> bool:
        """Every member can read the points, but the answer is always False. So a chunk moves in the
        same steps as one whose points must be sent (`migration.Concurrent` with `sends=False`)."""
        return False

    def may_move(self, index: int, source: Holder, target: Holder, *, sent: bool) -> bool:
        return True

    def can_give(self, holder: Holder) -> bool:
        return True

    def points_of(self, holder: Holder) -> int | None:
        return None

    def shift(self, holder: Holder, index: int) -> int:
        return 0

    def recorded_name(self, index: int, holder: str) -> str | None:
        return holder

    def on_released(
        self,
        lost: Sequence[tuple[int, Holder]],
        gone: Collection[Holder],
        copies: Mapping[Holder, Collection[int]],
        passes: int,
    ) -> None:
        """Do nothing: the chunks are distributed over the other members."""

    def check(self, changed: Collection[int]) -> None:
        chunks = self._plan.chunks
        if chunks[-1].last != self._plan.points or chunks[0].first != 0:
            raise InvariantBroken("the chunks do not cover the points")
        if any(index and chunks[index].first != chunks[index - 1].last for index in changed):
            raise InvariantBroken("the chunks overlap or leave a gap")


class PlanState(msgspec.Struct):
    seed: int
    points: int = 0
    """The number of points in the chunks that the passes include; 0 until a member has announced a
    data set."""
    members: list[Holder] = []
    """The members among which the chunks were distributed."""
    chunks: list[Chunk] = []
    order: list[int] = []
    """The chunks in the order in which members get them. Empty: by their numbers."""
    numbers: dict[Holder, int] = {}
    changed: set[Holder] = set()
    """The members whose leases have changed since leases were last sent."""
    held: dict[Holder, set[int]] = {}
    moves: dict[int, ChunkMove] = {}
    ended: list[ChunkMove] = []
    """The moves that have ended, until `migration.py` has counted them."""
    begun: int = 0
    """How many moves have begun so far."""
    counted: MinimumTracker[int] = msgspec.field(default_factory=MinimumTracker)
    reports: int = 0
    """The number of reports of progress over all chunks. Each report gets the next number."""
    ahead: Ahead = msgspec.field(default_factory=Ahead)


class DataPlan:
    def __init__(self, state: PlanState, epochs: int | None, *, forgets: bool = False) -> None:
        """`forgets`: whether a holder that gives up a chunk forgets what the chunk's points have
        added. It does with kind statistics, unless it sends this memory to the next holder together
        with the points."""
        self._state = state
        self.epochs = epochs
        self.forgets = forgets
        self.ownership: Ownership = CommonData(self)
        self.chunks = state.chunks
        self.numbers = state.numbers
        """The number of the last lease of each member."""
        self.held = state.held
        """The chunks of each member, including those that are moving."""
        self.moves = state.moves
        """The move of each chunk that moves or is queued. Moves are in the order in which they
        began, queued ones in the order in which they were queued."""
        self.counted = state.counted
        """The passes of each chunk that counts."""
        self._ahead = state.ahead
        self._unchecked = set(range(len(self.chunks)))
        """The chunks that have changed since the last `check`."""

    # -- the first data set is announced -------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether a member has announced a data set. Until then the plan has no chunks."""
        return bool(self.chunks)

    def begin(
        self,
        points: int,
        workers: int,
        least: int = 1,
        fewest: int = 1,
        groups: Sequence[int] = (),
        *,
        permuted: bool = False,
    ) -> None:
        """Cut a data set with this many points into chunks. `least`: the fewest points of a chunk,
        so that each chunk has enough points for a batch. `fewest`: the fewest chunks, if there are
        enough points for them. `groups`: see `chunk_edges`. `permuted`: whether members get chunks
        in the order of `dealt`."""
        self.points = points
        count = max(1, min(points // least, max(fewest, CHUNKS_PER_WORKER * workers)))
        edges = chunk_edges(points, count, least, workers, groups)
        self.add_chunks(Chunk(first, last) for first, last in pairwise(edges))
        self._count_all(groups, permuted=permuted)

    def resume(
        self,
        record: Record,
        members: Mapping[str, Holder],
        groups: Sequence[int] = (),
        *,
        permuted: bool = False,
    ) -> None:
        """Take over the chunks of a checkpoint. `members`: the present members by name. A member
        gets the chunks again that it held at the time of the cut, up to its share."""
        self.points = record.points
        self.add_chunks(Chunk(each.first, each.last) for each in record.chunks)
        self._count_all(groups, permuted=permuted)
        wanted: dict[Holder, list[int]] = {}
        for index, chunk in enumerate(record.chunks):
            if chunk.holder in members:
                wanted.setdefault(members[chunk.holder], []).append(index)
        for member, quota in quotas(len(self.chunks), wanted, members.values()).items():
            for index in wanted.get(member, [])[:quota]:
                self.hand(index, member, remembered=False)
        self.share(list(members.values()))
        # passes are set last, because a new holder may begin a pass again
        for index, each in enumerate(record.chunks):
            self.chunks[index].passes, self.chunks[index].cursor = each.passes, each.cursor
            self.counted.put(index, each.passes)
        self.begin_again()

    def add_chunks(self, chunks: Iterable[Chunk]) -> range:
        """Add these chunks to the plan. Returns their numbers."""
        first = len(self.chunks)
        self.chunks += chunks
        added = range(first, len(self.chunks))
        self._unchecked.update(added)
        return added

    def _count_all(self, groups: Sequence[int], *, permuted: bool) -> None:
        for index, chunk in enumerate(self.chunks):
            self.counted.put(index, chunk.passes)
        if permuted:
            firsts = [chunk.first for chunk in self.chunks]
            self._state.order = dealt(firsts, groups, self.seed)

    def share(self, members: list[Holder]) -> None:
        """Distribute all chunks evenly over `members`, in the given order, with as few moves as
        possible. If a member must give up a chunk, the new holder gets it only when the old holder
        has confirmed."""
        if not members or not self.ownership.distributes:
            return
        held: dict[Holder, list[int]] = {member: [] for member in members}
        loose = []
        for index in self._state.order or range(len(self.chunks)):
            due = self.due(index)
            if due in held and due is not None:
                held[due].append(index)
            else:
                loose.append(index)
        shares = quotas(len(self.chunks), held, members)
        for member, quota in shares.items():
            while len(held[member]) > quota:
                loose.append(held[member].pop())
        found = iter(loose)
        wanted = [
            (next(found), member)
            for member, quota in shares.items()
            for _ in range(quota - len(held[member]))
        ]
        self._begin(wanted, How.SHARED)

    # -- queries -------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The seed of the permutation of points: that of the job, or of the checkpoint from which the
        job resumes."""
        return self._state.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._state.seed = seed

    @property
    def points(self) -> int:
        """The number of points in the chunks that the passes include; 0 until a member has announced
        a data set."""
        return self._state.points

    @points.setter
    def points(self, points: int) -> None:
        self._state.points = points

    @property
    def members(self) -> list[Holder]:
        """The members among which the chunks were distributed."""
        return self._state.members

    @members.setter
    def members(self, members: list[Holder]) -> None:
        self._state.members = members

    def missing_points(self, members: Collection[Holder]) -> int:
        """Kind statistics: how many points a sum over the rows of these members lacks."""
        return missing_points(self.chunks, members)

    def passes_of(self) -> dict[int, float]:
        """The passes of each worker over its points."""
        held = self.held_points(self.members)
        return {key[0]: each.visits / each.points for key, each in held.items() if each.points}

    def moving(self, index: int) -> ChunkMove | None:
        """The move of this chunk, if it has begun."""
        move = self.moves.get(index)
        return move if move is not None and move.begun else None

    def due(self, index: int) -> Holder | None:
        """The member that will hold the chunk when the move under way is complete, or its present
        holder if the chunk is not moving."""
        move = self.moving(index)
        return self.chunks[index].holder if move is None else move.target

    def due_chunks(self) -> Iterator[tuple[Chunk, Holder | None]]:
        """Each chunk, with the member that will hold it once all moves are complete."""
        if not self.moves:
            return ((chunk, chunk.holder) for chunk in self.chunks)
        return ((chunk, self.due(index)) for index, chunk in enumerate(self.chunks))

    def held_points(self, members: Iterable[Holder]) -> dict[Holder, HeldPoints]:
        """The points of each member, in the chunks that it will hold once all moves are
        complete."""
        return HeldPoints.of_each(self.due_chunks(), members, self.epochs)

    def held_by(self, holder: Holder) -> list[int]:
        """The chunks that this member holds and that are not moving."""
        held = self.held.get(holder, ())
        return sorted(index for index in held if self.moving(index) is None)

    def leaving(self, holder: Holder) -> list[int]:
        """The chunks of this member that are moving to other members."""
        held = self.held.get(holder, ())
        return sorted(index for index in held if self.moving(index) is not None)

    @property
    def mean_chunk(self) -> float:
        """The mean number of points in a chunk that counts."""
        return self.points / max(1, len(self.counted))

    def numbered(self, holder: Holder, index: int) -> tuple[int, int]:
        """The points of a chunk, as the lease of this member numbers them."""
        chunk, shift = self.chunks[index], self.ownership.shift(holder, index)
        return chunk.first + shift, chunk.last + shift

    # -- moves ---------------------------------------------------------------------------------

    def begin_moves(self, wanted: Iterable[WantedMove], how: How, delivery: int = 0) -> None:
        """Begin these moves. `delivery`: the number of the delivery, if the points must be sent."""
        self._begin([(index, target) for index, _, target in wanted], how, delivery)

    def _begin(self, wanted: Iterable[tuple[int, Holder]], how: How, delivery: int = 0) -> None:
        """Begin to move each chunk to its new member. The lead asks the present holders to give the
        chunks up."""
        self.renew({self._move(index, member, how, delivery) for index, member in wanted})
        for move in self.moves.values():
            if move.begun and not move.asked:
                move.asked = self.numbers[move.source]

    def _move(self, index: int, member: Holder, how: How, delivery: int) -> Holder:
        """Begin to move the chunk to `member`. Returns the member whose lease this changes now."""
        chunk = self.chunks[index]
        if chunk.holder is None:
            self.hand(index, member, remembered=False)
            return member
        if chunk.holder == member:
            self._keep(index)
            return member
        self._end(index, MovePhase.KEPT)
        move = self.moves.pop(index, None) or ChunkMove(index, chunk.holder, member, how)
        self._state.begun += 1
        move.how, move.delivery, move.began = how, delivery, self._state.begun
        move.enter(MovePhase.ASKED)
        self.moves[index] = move
        self._unchecked.add(index)
        return chunk.holder

    def _end(self, index: int, phase: MovePhase) -> None:
        """End the move of this chunk, if it is moving."""
        if (move := self.moving(index)) is not None:
            move.enter(phase)
            self.note_ended(self.moves.pop(index))

    def queue(self, move: ChunkMove) -> None:
        """Keep a move that begins later."""
        if move.chunk in self.moves:
            raise InvariantBroken(f"chunk {move.chunk} would move twice at a time")
        self.moves[move.chunk] = move

    def remove_queued(self, move: ChunkMove, reason: Reason) -> None:
        """Give up a move that has not begun."""
        move.enter(MovePhase.KEPT)
        move.reason = reason
        self.note_ended(self.moves.pop(move.chunk))

    def note_ended(self, move: ChunkMove) -> None:
        """Keep a move that has ended, until `migration.py` counts it."""
        self._state.ended.append(move)

    @property
    def ended(self) -> Sequence[ChunkMove]:
        """The moves that have ended since the last `take_ended`."""
        return self._state.ended

    def take_ended(self) -> Sequence[ChunkMove]:
        """The moves that have ended since the last call."""
        ended, self._state.ended = self._state.ended, []
        return ended

    def take_back(self, chunks: Iterable[int], reason: Reason) -> None:
        """End the moves of these chunks for this reason. The chunks stay with their holders."""
        changed = set()
        for index in chunks:
            if (move := self.moving(index)) is not None:
                move.reason = reason
                self._keep(index)
                changed.add(move.source)
        self.renew(changed)

    def on_arrived(self, index: int) -> None:
        """Note that the target of the chunk has all its points. *Kind statistics: the holder must
        confirm a lease that is sent from now on, and not only the lease that locked the chunk.*"""
        move = self.moves[index]
        if move.phase is MovePhase.ARRIVED:
            return
        given_up = move.phase is MovePhase.GIVEN_UP
        move.enter(MovePhase.ARRIVED)
        if self.forgets:
            self.renew([move.source])
            move.asked = self.numbers[move.source]
        elif given_up:
            self._complete([move])

    def on_confirmed(self, holder: Holder, number: int) -> None:
        """Note that `holder` has contributed or abstained under lease `number`. The chunks that it
        gave up with this lease now move to their new holders, if these have the points."""
        given_up = []
        for index in sorted(self.moves):
            move = self.moves[index]
            if move.source == holder and 0 < move.asked <= number:
                if move.points_there:
                    given_up.append(move)
                elif move.phase is MovePhase.ASKED:
                    move.enter(MovePhase.GIVEN_UP)
        self._complete(given_up)

    def _complete(self, moves: Iterable[ChunkMove]) -> None:
        changed = set()
        for move in moves:
            changed.add(move.target)
            self.hand(move.chunk, move.target, remembered=move.phase is MovePhase.ARRIVED)
        self.renew(changed)

    def _keep(self, index: int) -> None:
        """Let the chunk stay with its holder. *The holder may have forgotten the points, because
        its last lease lacks them. Then it gets the chunk again once it has confirmed that lease: by
        then it has certainly forgotten the points, and no visit is in flight.*"""
        move = self.moving(index)
        if self.forgets and move is not None and move.points_there:
            self._move_back(move)
        else:
            self.hand(index, self.chunks[index].holder, remembered=True)

    def _move_back(self, move: ChunkMove) -> None:
        """Replace this move by one that brings the chunk back to its source."""
        self._end(move.chunk, MovePhase.KEPT)
        back = ChunkMove(move.chunk, move.source, move.source, How.REGAINED, asked=move.asked)
        back.enter(MovePhase.ASKED)
        self.moves[move.chunk] = back
        self._unchecked.add(move.chunk)

    def hand(self, index: int, member: Holder | None, *, remembered: bool) -> None:
        """Lease the chunk to `member`. If the chunk was moving, its move ends. `remembered`: whether
        `member` knows what the points have added."""
        chunk, move = self.chunks[index], self.moving(index)
        if not remembered:
            self._forget(index)
        if chunk.holder is not None:
            self.held[chunk.holder].discard(index)
        if member is not None:
            self.held.setdefault(member, set()).add(index)
        chunk.holder = member
        if move is not None:
            self._end(index, MovePhase.COMPLETE if member == move.target else MovePhase.KEPT)
        self._unchecked.add(index)

    def _forget(self, index: int) -> None:
        """Record that no member knows what the points of this chunk have added."""
        if self.forgets:
            self.chunks[index].begin_again(self.epochs)
            if index in self.counted:
                self.counted.put(index, self.chunks[index].passes)
            self._unchecked.add(index)

    def lose(self, gone: Collection[Holder]) -> None:
        """Let members visit the points of these members again: their rows are missing from the last
        version, and with them what these points had added."""
        for index in {index for holder in gone for index in self.held.get(holder, ())}:
            move = self.moving(index)
            if move is None or move.phase is not MovePhase.ARRIVED or move.target in gone:
                self._forget(index)

    def begin_again(self) -> None:
        """Record that no member knows what any point has added: the job resumes from a
        checkpoint."""
        for index in () if self.done else range(len(self.chunks)):
            self._forget(index)

    def release(
        self, gone: Iterable[Holder], copies: Mapping[Holder, Collection[int]] | None = None
    ) -> None:
        """Give the chunks of removed members to others; none of their contributions can arrive any
        more. A chunk goes to the target of its move if the target has the points. A chunk that was
        moving to a removed member stays with its present holder. `copies`: per member, the chunks
        of which it has a copy; used with private data only."""
        leavers, passes = set(gone), self.passes
        lost = [(index, holder) for holder in leavers for index in self.held.get(holder, ())]
        self.lose(leavers)
        changed: set[Holder] = set()
        for index in sorted(self.moves):
            move = self.moving(index)
            if move is not None and move.target in leavers:
                changed.add(move.source)
                self._keep(index)
        for holder in leavers:
            for index in sorted(self.held.get(holder, ())):
                target, remembered = None, False
                if (move := self.moving(index)) is not None:
                    remembered = move.phase is MovePhase.ARRIVED
                    target = move.target if move.points_there else None
                target = None if target in leavers else target
                if target is not None:
                    changed.add(target)
                self.hand(index, target, remembered=remembered)
            self.held.pop(holder, None)
            self.numbers.pop(holder, None)
        self.renew(changed - leavers)
        self.ownership.on_released(lost, leavers, copies or {}, passes)

    # -- leases --------------------------------------------------------------------------------

    def renew(self, holders: Collection[Holder]) -> None:
        """Give the changed leases of these members new numbers. The handler of the event sends
        them."""
        for holder in holders:
            self.numbers[holder] = self.numbers.get(holder, 0) + 1
        self._state.changed.update(holders)

    def renew_existing(self, holders: Iterable[Holder]) -> None:
        """Renew the leases of these members, if they have one."""
        self.renew({holder for holder in holders if holder in self.numbers})

    def take_changed(self) -> set[Holder]:
        """The members whose leases have changed since the last call."""
        changed, self._state.changed = self._state.changed, set()
        return changed

    def on_leased(self, holder: Holder) -> None:
        """Note that the lead sends the member its present lease."""
        self._state.changed.discard(holder)

    def lease(self, holder: Holder) -> Leased:
        chunks = tuple(
            ChunkLease(index, *self.numbered(holder, index), chunk.passes, chunk.cursor)
            for index in self.held_by(holder)
            for chunk in (self.chunks[index],)
        )
        own = self.ownership.points_of(holder)
        return Leased(
            worker=holder[0],
            incarnation=holder[1],
            points=self.points if own is None else own,
            seed=self.seed,
            chunks=chunks,
            epochs=self.epochs,
            number=self.numbers.get(holder, 0),
        )

    # -- progress ------------------------------------------------------------------------------

    def commit(
        self, holder: Holder, progress: tuple[ChunkProgress, ...], ahead: bool = False
    ) -> int:
        """Record the progress that a contribution reports; returns the number of points visited.
        Impossible progress is ignored, and so is progress on a chunk that the member does not hold.
        `ahead`: the contribution belongs to the next fold instead of the one under way."""
        visited, chunks = 0, self.chunks
        for step in progress:
            index, passes, cursor = step.chunk, step.passes, step.cursor
            if not 0 <= index < len(chunks):
                continue
            chunk = chunks[index]
            points = chunk.last - chunk.first
            if chunk.holder != holder or not 0 <= cursor < max(1, points):
                continue
            if self.forgets:
                passes, cursor = self._remembered(index, passes, cursor)
            done = cursor - chunk.cursor + (further := passes - chunk.passes) * points
            if done <= 0 or further > _MOST_PASSES:
                continue
            if ahead:
                self._ahead.note(index, (chunk.passes, chunk.cursor))
            if further:
                self.counted.put(index, passes)
            self._unchecked.add(index)
            self._state.reports += 1
            chunk.advance(passes, cursor, done, self._state.reports)
            visited += done
        return visited

    def _remembered(self, index: int, passes: int, cursor: int) -> tuple[int, int]:
        """Kind statistics: the pass and the cursor up to which a report of progress counts.
        *Normally the whole report counts. One exception: the report ends the last pass, but the
        holder was told to give up the chunk without sending the memory of its points.* The holder
        then subtracts these points again, perhaps in the same contribution. So the report counts
        only up to the beginning of the last pass, where the next holder begins."""
        move = self.moving(index)
        forgotten = move is not None and not move.in_flight
        if forgotten and self.epochs is not None and passes >= self.epochs:
            return self.epochs - 1, 0
        return passes, cursor

    def settle(self) -> None:
        """End the fold. Progress that was recorded as `ahead` belongs to the next fold."""
        self._ahead.settle()

    def recorded(self, names: Mapping[Holder, str]) -> tuple[RecordedChunk, ...]:
        """The chunks for a checkpoint of the last fold. `names`: the names of the members."""
        found = []
        for index, chunk in enumerate(self.chunks):
            holder = "" if chunk.holder is None else names.get(chunk.holder, "")
            name = self.ownership.recorded_name(index, holder)
            if name is not None:
                place = self._ahead.folded(index, (chunk.passes, chunk.cursor))
                found.append(RecordedChunk(chunk.first, chunk.last, *place, name))
        return tuple(found)

    @property
    def passes(self) -> int:
        """The number of full passes over all points."""
        return self.ownership.passes

    @property
    def folded_passes(self) -> int:
        """The full passes in the last folded version. Call this before `settle`."""
        return self._ahead.passes(self.passes)

    @property
    def done(self) -> bool:
        return self.epochs is not None and self.passes >= self.epochs

    def check(self) -> None:
        """Check the chunks that have changed since the last check, and those that move."""
        for index in self._unchecked | self.moves.keys():
            chunk, move = self.chunks[index], self.moves.get(index)
            if chunk.cursor and not 0 <= chunk.cursor < chunk.points:
                raise InvariantBroken("a cursor is outside its chunk")
            if chunk.holder is not None and index not in self.held[chunk.holder]:
                raise InvariantBroken("a chunk is missing in the chunks of its holder")
            if move is not None:
                move.check()
                if move.begun and chunk.holder != move.source:
                    raise InvariantBroken("a chunk moves away from a member that does not hold it")
        if self._unchecked:
            self.ownership.check(self._unchecked)
            self._unchecked.clear()

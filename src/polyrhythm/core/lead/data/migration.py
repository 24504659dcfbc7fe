"""Decides when moves of chunks begin, how the points travel to the target, and what the journal
says about it.

*A move that the balance has ordered waits for its turn, and the source visits the chunk meanwhile.*
`moves.py` has the phases of a move, and `plan.py` the leases that change with them. There are two
strategies for what workers do while chunks move: with `--migrate lease` and `full` they continue
(`Concurrent`), with `blocking` they wait (`Synchronous`).

A worker that gives a chunk away keeps an inactive copy of its points (FSP §4.3, virtual migration),
so that the chunk can come back without being sent. The lead limits the size of these copies. *No
member keeps a copy of private points that their owner no longer shares.*
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from polyrhythm.core.lead.data.chunks import Holder, WantedMove
from polyrhythm.core.lead.data.moves import (
    JOB_ENDS,
    ORDERED,
    POINTS_THERE,
    ChunkMove,
    EndedCounts,
    EndedMoves,
    How,
    MovePhase,
    member_left,
    pair,
    shared_again,
)
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.machine import Reason
from polyrhythm.core.migration import BLOCKING, DELIVERING, OFF, MigrationChoice
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Address, ChunkSend, Leased

WINDOW_CHUNKS = 4
"""The most chunks of one worker that are in flight at a time."""


class Travel(Protocol):
    """How chunks get to their targets, and what workers do meanwhile."""

    @property
    def sends(self) -> bool:
        """Whether points are sent from worker to worker."""

    @property
    def evens_passes(self) -> bool:
        """Whether chunks also move so that all members finish every pass at the same time."""

    @property
    def window(self) -> int | None:
        """The most chunks of one source that are in flight at a time; None: any number."""

    def may_begin(self, in_flight: Collection[ChunkMove]) -> bool:
        """Whether more moves may begin while these are in flight."""

    def waiting(self, in_flight: Iterable[ChunkMove]) -> set[Holder]:
        """The members that visit no points until these moves are complete."""

    def stops(self, settled: bool) -> bool:
        """Whether rounds may be empty because members wait for points. `settled`: no points move."""


class Concurrent(msgspec.Struct, frozen=True):
    """`--migrate lease` and `full`: a few chunks of each source are in flight at a time. The source
    visits its other chunks meanwhile, and the target visits its own."""

    sends: bool = True
    evens_passes: bool = True
    window: int | None = WINDOW_CHUNKS

    def may_begin(self, in_flight: Collection[ChunkMove]) -> bool:
        return True

    def waiting(self, in_flight: Iterable[ChunkMove]) -> set[Holder]:
        return set()

    def stops(self, settled: bool) -> bool:
        return False


class Synchronous(msgspec.Struct, frozen=True):
    """`--migrate blocking`, the synchronous migration of the paper: all chunks are in flight at once.
    Until they have arrived, their sources and targets visit no points."""

    sends: bool = True
    evens_passes: bool = False
    window: int | None = None

    def may_begin(self, in_flight: Collection[ChunkMove]) -> bool:
        return not in_flight

    def waiting(self, in_flight: Iterable[ChunkMove]) -> set[Holder]:
        return {member for move in in_flight for member in (move.source, move.target)}

    def stops(self, settled: bool) -> bool:
        return not settled


def _travel_of(choice: MigrationChoice, *, forgets: bool) -> Travel:
    """Choose the strategy for this value of `--migrate`. `forgets`: see `DataPlan`."""
    if choice.mode == BLOCKING:
        return Synchronous()
    if choice.mode in DELIVERING:
        return Concurrent()
    # with kind statistics, the points of a moved lease would be missing from the sum until they are
    # visited
    return Concurrent(sends=False, evens_passes=not forgets)


class CopiesState(msgspec.Struct):
    held: dict[Holder, dict[int, None]] = {}
    """Per member, the chunks of which it has a copy, the oldest one first."""
    share_points: int = 0
    """The number of points in a worker's first share."""
    point_nbytes: float = 0.0
    """The mean size of a point; 0 until a delivery has arrived."""


class InactiveCopies:
    def __init__(self, state: CopiesState, plan: DataPlan, most_nbytes: int | None) -> None:
        """`most_nbytes`: how many bytes the copies of one worker may have. None: they may have as
        many points as a worker's first share."""
        self._state = state
        self._held = state.held
        self._plan = plan
        self._most_nbytes = most_nbytes

    @property
    def held(self) -> Mapping[Holder, Collection[int]]:
        """Per member, the chunks of which it has a copy."""
        return self._held

    def bound(self, members: int) -> None:
        """Let the copies of one member have as many points as a share of the data set. There are as
        many shares as members."""
        self._state.share_points = -(-self._plan.points // max(1, members))

    def measure(self, chunk: int, nbytes: int) -> None:
        """Measure the size of a point: the points of this chunk have arrived, and have this many
        bytes."""
        self._state.point_nbytes = nbytes / max(1, self._plan.chunks[chunk].points)

    @property
    def most_points(self) -> int:
        """How many points the copies of one member may have altogether."""
        if self._most_nbytes is None or not self._state.point_nbytes:
            return self._state.share_points
        return int(self._most_nbytes / self._state.point_nbytes)

    def of(self, holder: Holder) -> tuple[int, ...]:
        return tuple(self._held.get(holder, ()))

    def has(self, holder: Holder, chunk: int) -> bool:
        return chunk in self._held.get(holder, ())

    def keep(self, chunk: int, source: Holder, target: Holder) -> None:
        """Note that `source` has given the chunk to `target`. `source` keeps a copy if the chunk
        may come back. If it has too many copies, it drops the oldest ones, unless their chunks are
        active again."""
        plan = self._plan
        may_return = plan.ownership.may_move(chunk, target, source, sent=False)
        if not may_return or plan.ownership.reads(source, chunk):
            return
        copies = self._held.setdefault(source, {})
        copies.pop(chunk, None)
        copies[chunk] = None
        points = sum(plan.chunks[index].points for index in copies)
        for index in list(copies):
            if points <= self.most_points:
                break
            if plan.due(index) != source:
                del copies[index]
                points -= plan.chunks[index].points

    def activate(self, holder: Holder, chunk: int) -> None:
        """Make the copy of this chunk active, because the member holds the chunk again."""
        self._held.get(holder, {}).pop(chunk, None)

    def activate_held(self) -> None:
        """Make those copies active whose chunks their members hold again after a new
        distribution."""
        for holder, copies in self._held.items():
            for index in [each for each in copies if self._plan.chunks[each].holder == holder]:
                del copies[index]

    def drop_unshared(self, owner: Holder) -> set[Holder]:
        """Drop the copies of points that `owner` does not share any more. Returns the members that had
        such copies."""
        found, may_move = set(), self._plan.ownership.may_move
        for holder, copies in self._held.items():
            for index in list(copies):
                if not may_move(index, owner, holder, sent=False):
                    del copies[index]
                    found.add(holder)
        return found

    def forget(self, member: Holder) -> None:
        """Forget the copies of a member that was removed."""
        self._held.pop(member, None)

    def check(self) -> None:
        for holder, copies in self._held.items():
            for index in copies:
                if self._plan.chunks[index].holder == holder:
                    raise InvariantBroken(
                        "a member has an inactive copy of a chunk that is leased to it"
                    )
                if not self._plan.ownership.may_move(index, holder, holder, sent=False):
                    raise InvariantBroken(
                        "a member has a copy of points that their owner does not share"
                    )


class PointsReceiver(msgspec.Struct, frozen=True):
    """A member that can receive points: its name, its address, and the number of the last delivery
    before it could."""

    name: str
    address: Address
    earlier: int


class MigrationState(msgspec.Struct):
    copies: CopiesState = msgspec.field(default_factory=CopiesState)
    deliveries: int = 0
    """The number of deliveries that have begun. Each delivery gets the next number."""
    barred: set[tuple[Holder, Holder]] = set()
    """Pairs of a source and a target between which points cannot be sent."""
    receivers: dict[Holder, PointsReceiver] = {}
    """The members that can receive points."""
    without_memory: set[Holder] = set()
    """The members that have reported that they have no memory for further points."""
    unadded: dict[int, int] = {}
    """Kind statistics: the chunks that have moved together with the memory of their points, and
    that may be missing from the sum. The old holder has subtracted their points, and the new holder
    adds them when it receives a lease with the chunk. *So the sum contains the points once the new
    holder has contributed under such a lease.* The value is the number of the first such lease; 0
    if none was sent yet."""
    counts: EndedCounts = msgspec.field(default_factory=EndedCounts)
    over: bool = False
    """Whether the job is over. Then all moves are in the journal already."""


class Migration:
    def __init__(
        self,
        state: MigrationState,
        plan: DataPlan,
        choice: MigrationChoice,
        copies_nbytes: int | None = None,
    ) -> None:
        """`choice`: how chunks move. `copies_nbytes`: the most bytes of a worker's inactive copies.
        None: the copies may have as many points as a worker's first share. *With kind statistics
        there are no copies, because the memory of the points must always be sent.*"""
        self._state = state
        self._plan = plan
        self.choice = choice
        self._travel = _travel_of(choice, forgets=plan.forgets)
        self._copies = InactiveCopies(state.copies, plan, copies_nbytes)
        self._receivers = state.receivers
        self._without_memory = state.without_memory
        self._unadded = state.unadded
        self._counts = state.counts

    # -- queries -------------------------------------------------------------------------------

    @property
    def balances(self) -> bool:
        """Whether chunks move from slow members to fast ones."""
        return self.choice.mode != OFF

    @property
    def copies(self) -> Mapping[Holder, Collection[int]]:
        """Per member, the chunks of which it has an inactive copy."""
        return self._copies.held

    @property
    def most_points(self) -> int:
        """The most points of the inactive copies of one member."""
        return self._copies.most_points

    @property
    def evens_passes(self) -> bool:
        return self._travel.evens_passes

    @property
    def settled(self) -> bool:
        """Kind statistics: whether the sum includes all points that move."""
        return not self._unadded and not any(move.in_flight for move in self._plan.moves.values())

    @property
    def unconfirmed(self) -> bool:
        """Whether a chunk is moving, or has moved and may still be missing from the sum."""
        return bool(self._plan.moves or self._unadded)

    @property
    def stops(self) -> bool:
        """Whether rounds may be empty because members wait for points that move."""
        return self._travel.stops(self.settled)

    def waits(self, holder: Holder) -> bool:
        """Whether the member has no points to visit until the points that move have arrived."""
        return holder in self._travel.waiting(self._in_flight().values())

    def receivers(self, among: Iterable[Holder]) -> list[Holder]:
        """The members in `among` that can receive chunks."""
        if not self._travel.sends:
            return list(among)
        full = self._without_memory
        return [each for each in among if each in self._receivers and each not in full]

    def reaches(self, source: Holder, target: Holder) -> bool:
        """Whether chunks can move from `source` to `target`."""
        return bool(self.receivers((target,))) and (source, target) not in self._state.barred

    def _in_flight(self) -> dict[int, ChunkMove]:
        """The moves whose points are sent, in the order in which they began."""
        return {index: move for index, move in self._plan.moves.items() if move.in_flight}

    def _queued(self) -> list[ChunkMove]:
        """The moves that have not begun, in the order in which they were ordered."""
        return [move for move in self._plan.moves.values() if not move.begun]

    def _has_points(self, holder: Holder, chunk: int) -> bool:
        """Whether the points of this chunk need not be sent to the member."""
        return self._copies.has(holder, chunk) or self._plan.ownership.reads(holder, chunk)

    # -- members -------------------------------------------------------------------------------

    def bound_copies(self, members: int) -> None:
        """Let the copies of one member have as many points as a share of the data set. There are as
        many shares as members."""
        self._copies.bound(members)

    def on_listening(self, holder: Holder, name: str, address: Address) -> None:
        """Note that the member receives points at this address."""
        earlier = self._state.deliveries
        if (before := self._receivers.get(holder)) is not None:
            earlier = before.earlier
        self._receivers[holder] = PointsReceiver(name, address, earlier)

    def forget(self, gone: Iterable[Holder]) -> None:
        """Drop the queued moves of members that were removed, and forget their copies."""
        left = set(gone)
        for move in self._queued():
            if left & {move.source, move.target}:
                self._plan.remove_queued(move, member_left(move.source, move.target))
        for member in left:
            self._copies.forget(member)
            self._without_memory.discard(member)
            self._receivers.pop(member, None)
        barred = self._state.barred
        self._state.barred = {pair for pair in barred if not left & set(pair)}
        for chunk in [each for each in self._unadded if self._plan.chunks[each].holder is None]:
            del self._unadded[chunk]

    def activate_copies(self) -> None:
        """Make copies active after a new distribution of the chunks."""
        self._copies.activate_held()

    # -- moves begin ---------------------------------------------------------------------------

    def order(self, wanted: Sequence[WantedMove]) -> list[WantedMove]:
        """Begin or queue these moves, which the balance has chosen. Returns the moves whose source
        can send points to the target."""
        if not self._travel.sends:
            self._plan.begin_moves(wanted, How.LEASE)
            return list(wanted)
        found = [each for each in wanted if each[1:] not in self._state.barred]
        for index, source, target in found:
            self._plan.queue(ChunkMove(index, source, target, How.SENT))
        self._begin_queued()
        return found

    def _begin_queued(self) -> None:
        """Begin the queued moves whose turn has come. Only a few chunks are in flight at a time."""
        plan, window = self._plan, self._travel.window
        in_flight = self._in_flight().values()
        if not self._travel.may_begin(in_flight):
            return
        of_source: dict[Holder, int] = {}
        for move in in_flight:
            of_source[move.source] = of_source.get(move.source, 0) + 1
        for move in self._queued():
            index, source, target = wanted = move.chunk, move.source, move.target
            chunk, there = plan.chunks[index], self._has_points(target, index)
            if chunk.holder != source or chunk.cursor:
                plan.remove_queued(move, Reason("move-visited"))
            elif not plan.ownership.may_move(index, source, target, sent=not there):
                plan.remove_queued(move, Reason("move-not-shared", pair(source, target)))
            elif there:
                plan.begin_moves([wanted], How.COPY)
            elif window is None or of_source.get(source, 0) < window:
                self._state.deliveries += 1
                of_source[source] = of_source.get(source, 0) + 1
                plan.begin_moves([wanted], How.SENT, self._state.deliveries)
        plan.renew_existing(self._travel.waiting(self._in_flight().values()))

    # -- moves go on and end -------------------------------------------------------------------

    def on_arrived(self, sender: Holder, chunk: int, number: int, nbytes: int) -> None:
        """Handle a worker's report that it has all points of a chunk."""
        move = self._in_flight().get(chunk)
        if move is None or move.delivery != number or move.target != sender:
            return
        self._copies.measure(chunk, nbytes)
        self._plan.on_arrived(chunk)

    def on_failed(self, sender: Holder, chunk: int, number: int, fault: Reason) -> None:
        """Handle a worker's report that it cannot send or receive a chunk."""
        move = self._in_flight().get(chunk)
        if move is None or move.delivery != number:
            return
        if sender == move.target:
            self._without_memory.add(sender)
        elif sender == move.source:
            self._state.barred.add((sender, move.target))
        else:
            return
        stay = {
            index
            for index, other in self._in_flight().items()
            if other.target == sender or (other.source, other.target) in self._state.barred
        }
        about = pair(move.source, move.target)
        self._stop(stay, Reason(fault.code, {**fault.fields, **about}))

    def on_confirmed(self, holder: Holder, number: int) -> None:
        """Note that a member has contributed or abstained under this lease. Now the sum contains
        the chunks that it got with the lease."""
        self._plan.on_confirmed(holder, number)
        for chunk, first in list(self._unadded.items()):
            if self._plan.chunks[chunk].holder == holder and 0 < first <= number:
                del self._unadded[chunk]

    def settle(self) -> None:
        """End the moves that are complete, and begin the next ones. Call this when leases were
        confirmed, points have arrived, or members have left."""
        ended = [move for move in self._plan.ended if move.how is How.SENT and move.reason is None]
        before = self._travel.waiting([*self._in_flight().values(), *ended])
        self._count_ended()
        self._begin_queued()
        now = self._travel.waiting(self._in_flight().values())
        self._plan.renew_existing(before - now)

    def cancel(self, reason: Reason) -> None:
        """End all moves, because the members change and the chunks will be distributed again."""
        moves = self._plan.moves
        there = [index for index, move in moves.items() if move.how in POINTS_THERE]
        self._plan.take_back(there, reason)
        self._stop(set(self._in_flight()), reason, queued=True)

    def call_off(self) -> None:
        """Begin no further moves, and end the moves whose points have not arrived, because the job
        ends."""
        stay = {
            index
            for index, move in self._in_flight().items()
            if move.phase is not MovePhase.ARRIVED
        }
        if stay or self._queued():
            self._stop(stay, JOB_ENDS, queued=True)

    def _stop(self, chunks: Collection[int], reason: Reason, *, queued: bool = False) -> None:
        """End the moves of these chunks, whose points are being sent or have arrived. `queued`: end
        all queued moves too. *The leases of the targets change too, so that they drop the
        points.*"""
        in_flight = self._in_flight()
        renewed = self._travel.waiting(in_flight.values())
        renewed |= {in_flight[index].target for index in chunks}
        self._plan.take_back(chunks, reason)
        for move in self._queued():
            barred = (move.source, move.target) in self._state.barred
            if queued or barred or move.target in self._without_memory:
                self._plan.remove_queued(move, reason)
        self._plan.renew_existing(renewed)

    def withdraw(self, chunks: Collection[int], owner: Holder) -> None:
        """Bring the points of a member back that does not share them. `chunks`: its chunks that other
        members hold. End the moves of its points, including those of earlier data sets, and let
        others drop their copies."""
        plan, reason = self._plan, Reason("move-withdrawn", {"targets": [owner[0]]})

        def ends(move: ChunkMove) -> bool:
            may_move = plan.ownership.may_move
            route = (move.chunk, move.source, move.target)
            return move.chunk in chunks or not may_move(*route, sent=False)

        for move in self._queued():
            if ends(move):
                plan.remove_queued(move, reason)
        self._stop([index for index, move in self._in_flight().items() if ends(move)], reason)
        there = [move for move in plan.moves.values() if move.how in POINTS_THERE and ends(move)]
        plan.take_back([move.chunk for move in there if move.chunk not in chunks], reason)
        plan.renew_existing(self._copies.drop_unshared(owner))
        returned = []
        for index in chunks:
            present, holder = plan.moving(index), plan.chunks[index].holder
            if holder is not None and (present is None or present.target != owner):
                returned.append((index, holder, owner))
                if present is not None:
                    present.reason = reason
        plan.begin_moves(returned, How.RETURNED)

    # -- the journal ---------------------------------------------------------------------------

    def take_ended(self, *, last: bool) -> list[EndedMoves]:
        """The moves that have ended since the last call, for the journal. Complete moves are
        returned only when no chunk is moving. `last`: the job is over, so moves that are not
        complete have ended too. *After a call with `last`, no moves are returned, because moves
        during the saving of the model do not matter.*"""
        self._count_ended()
        if self._state.over:
            return []
        self._state.over = last
        moves = self._plan.moves.values()
        for move in sorted(moves, key=_order_at_end) if last else ():
            self._count(move, JOB_ENDS)
        busy = any(move.how in ORDERED for move in moves)
        return self._counts.take(complete=last or not busy)

    def _count_ended(self) -> None:
        """Count the moves that have ended, and update the copies and the memory of their
        members."""
        ended = self._plan.take_ended()
        for move in ended:
            if move.phase is MovePhase.COMPLETE:
                self._on_complete(move)
        for move in sorted(ended, key=_order_of_ended):
            if move.phase is MovePhase.COMPLETE:
                self._count(move, None)
            else:
                self._count(move, move.reason or _why_kept(move, self._plan.members))

    def _on_complete(self, move: ChunkMove) -> None:
        self._copies.activate(move.target, move.chunk)
        if not self._travel.sends:
            return
        if self._plan.forgets:
            self._unadded[move.chunk] = 0
        elif move.source in self._receivers:  # a source that has left keeps no copy
            self._copies.keep(move.chunk, move.source, move.target)

    def _count(self, move: ChunkMove, reason: Reason | None) -> None:
        """Count the move for the journal. `reason`: None if it is complete."""
        unreported = How.LEASE if reason is None else How.RETURNED
        if move.how in ORDERED and move.how is not unreported:
            self._counts.count(move, self._plan.chunks[move.chunk].points, reason)

    # -- leases --------------------------------------------------------------------------------

    def lease(self, holder: Holder) -> Leased:
        """The lease of a member, with the chunks that it sends and the copies that it keeps."""
        plan, lease = self._plan, self._plan.lease(holder)
        if not self._travel.sends:
            return lease
        in_flight = self._in_flight().values()
        sends = [self._send(move) for move in in_flight if self._is_sent_by(holder, move)]
        chunks, copies = lease.chunks, self._copies.of(holder)
        if not plan.forgets:
            # The holder keeps a chunk that moves without its points, because the chunk may still
            # come back to it.
            sent = {send.chunk for send in sends}
            copies += tuple(index for index in plan.leaving(holder) if index not in sent)
        if holder in self._travel.waiting(in_flight):
            # A member that waits for points visits none of its chunks, but keeps their points in
            # memory.
            copies += tuple(chunk.chunk for chunk in lease.chunks)
            chunks = ()
        receiver = self._receivers.get(holder)
        return msgspec.structs.replace(
            lease,
            chunks=chunks,
            sends=tuple(sends),
            copies=copies,
            arriving=tuple(move.chunk for move in in_flight if move.target == holder),
            delivery=self._state.deliveries,
            earlier=self._state.deliveries if receiver is None else receiver.earlier,
        )

    def _is_sent_by(self, holder: Holder, move: ChunkMove) -> bool:
        """Whether this member sends the points of a move. *Kind statistics: when the points have
        arrived, the source gets a lease without the order to send them, and subtracts them.*"""
        subtracts = self._plan.forgets and move.phase is MovePhase.ARRIVED
        return move.source == holder and not subtracts

    def _send(self, move: ChunkMove) -> ChunkSend:
        """The order to send the points of a chunk."""
        receiver = self._receivers[move.target]
        points = self._plan.numbered(move.source, move.chunk)
        return ChunkSend(
            move.delivery, move.chunk, *points, *move.target, receiver.name, receiver.address
        )

    def on_leased(self, lease: Leased) -> None:
        """Note that this lease is sent to its member, which may be the new holder of moved chunks.
        *A member that waits for points visits no chunk, so its chunks are not in the sum yet.*"""
        if not self._unadded:
            return
        active = {each.chunk for each in lease.chunks} | {each.chunk for each in lease.sends}
        for chunk, number in self._unadded.items():
            if self._plan.chunks[chunk].holder == (lease.worker, lease.incarnation):
                self._unadded[chunk] = (number or lease.number) if chunk in active else 0

    def check(self) -> None:
        self._copies.check()


def _order_of_ended(move: ChunkMove) -> tuple[int, int]:
    """The order in which ended moves are counted: those that the lead has ended come first."""
    if move.reason is not None:
        return 0, 0
    return (1 if move.how is How.SENT else 2), move.began


def _order_at_end(move: ChunkMove) -> tuple[bool, bool]:
    """The order in which the journal counts moves that were interrupted by the end of the job."""
    return not move.begun, move.how is How.SENT


def _why_kept(move: ChunkMove, members: Collection[Holder]) -> Reason:
    """Why a chunk has stayed with its source although the lead did not decide that."""
    if move.how is How.LEASE and move.source in members and move.target in members:
        return shared_again(len(members))
    return member_left(move.source, move.target)

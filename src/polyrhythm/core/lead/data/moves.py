"""Moves of chunks whose points travel from worker to worker (`--migrate full` and `blocking`).

*A chunk in flight is locked: it is in no lease, and its holder sends its points to the target. The move
is complete as soon as the holder has contributed under a lease without the chunk and the target has
reported all points. Until then the chunk belongs to its holder, and it stays there if the target dies,
leaves or cannot take the points. Only a few chunks of a worker are in flight at a time; the others wait,
and are visited meanwhile.*

A worker keeps an inactive copy of the points of a chunk that it gave away (`moves.py`).

The inactive copies that members keep of points that they have given away (FSP §4.3, virtual
migration), so that a chunk can come back without being sent. The lead bounds these copies.

*A member keeps no copy of private points that their owner does not share any more.*

Kind statistics: the chunks that were moved together with the memory of their points, and that may
be missing from the sum.

*The old holder has subtracted the points of such a chunk. The new holder adds them when it takes a
lease with the chunk. So the points are in the sum when the new holder has contributed under such a
lease.*

Counts the moves of chunks that have ended, until the journal gets them.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from polyrhythm.core.lead.data.chunks import Gift, Holder
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.machine import Reason
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Address, ChunkSend, Leased
from polyrhythm.wire.messages.reasons import Field


class InactiveCopies:
    def __init__(self, most_nbytes: int | None) -> None:
        """`most_nbytes`: how many bytes the copies of one worker may have. If None, they may have as
        many points as a worker's first share."""
        self._most_nbytes = most_nbytes
        self._held: dict[Holder, dict[int, None]] = {}
        """Per member, the chunks of which it has a copy, the oldest one first."""
        self._share_points = 0
        self.point_nbytes = 0.0
        """The mean size of a point; 0 until a delivery has arrived."""

    @property
    def held(self) -> Mapping[Holder, Collection[int]]:
        """Per member, the chunks of which it has a copy."""
        return self._held

    def begin(self, points: int, members: int) -> None:
        """The data plan is made: it has this many points, for this many members."""
        self._share_points = -(-points // max(1, members))

    @property
    def most_points(self) -> int:
        """How many points the copies of one member may have in all."""
        if self._most_nbytes is None or not self.point_nbytes:
            return self._share_points
        return int(self._most_nbytes / self.point_nbytes)

    def of(self, holder: Holder) -> tuple[int, ...]:
        return tuple(self._held.get(holder, ()))

    def has(self, holder: Holder, chunk: int) -> bool:
        return chunk in self._held.get(holder, ())

    def moved(self, plan: DataPlan, chunk: int, source: Holder, target: Holder) -> None:
        """The member `source` has given the chunk to `target`: `source` keeps a copy if the chunk may
        come back, and drops its oldest copies if it has too many. A copy that becomes active again is
        not dropped."""
        may_return = plan.may_move(chunk, target, source, sent=False)
        if not may_return or plan.reads(source, chunk):
            return
        copies = self._held.setdefault(source, {})
        copies.pop(chunk, None)
        copies[chunk] = None
        points = sum(plan.chunks[index].points for index in copies)
        for index in list(copies):
            if points <= self.most_points:
                break
            if plan.chunks[index].heir != source:
                del copies[index]
                points -= plan.chunks[index].points

    def activate(self, holder: Holder, chunk: int) -> None:
        """The member holds the chunk again."""
        self._held.get(holder, {}).pop(chunk, None)

    def shared(self, plan: DataPlan) -> None:
        """The chunks were shared anew: copies of chunks that a member holds again are active."""
        for holder, copies in self._held.items():
            for index in [index for index in copies if plan.chunks[index].holder == holder]:
                del copies[index]

    def withdraw(self, plan: DataPlan, owner: Holder) -> set[Holder]:
        """Drop the copies of points that `owner` does not share any more. Returns the members that had
        such copies."""
        found = set()
        for holder, copies in self._held.items():
            for index in list(copies):
                if not plan.may_move(index, owner, holder, sent=False):
                    del copies[index]
                    found.add(holder)
        return found

    def forget(self, member: Holder) -> None:
        """This member was removed."""
        self._held.pop(member, None)

    def check(self, plan: DataPlan) -> None:
        chunks = plan.chunks
        for holder, copies in self._held.items():
            for index in copies:
                if chunks[index].holder == holder:
                    raise InvariantBroken(
                        "a member has an inactive copy of a chunk that is leased to it"
                    )
                if not plan.may_move(index, holder, holder, sent=False):
                    raise InvariantBroken(
                        "a member has a copy of points that their owner does not share"
                    )


class Adoptions:
    def __init__(self) -> None:
        self._chunks: dict[int, tuple[Holder, int]] = {}
        """Per chunk: its new holder, and the number of the first lease with this chunk that was
        sent to this holder (0 if none was sent yet)."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def moved(self, chunk: int, holder: Holder) -> None:
        """The move of a chunk is complete, and this member holds the chunk now."""
        self._chunks[chunk] = (holder, 0)

    def leased(self, lease: Leased) -> None:
        """This lease is sent to its member, which may be the new holder of moved chunks."""
        if not self._chunks:
            return
        active = {each.chunk for each in lease.chunks} | {each.chunk for each in lease.sends}
        for chunk, (holder, number) in self._chunks.items():
            if holder == (lease.worker, lease.incarnation):
                # With `--migrate blocking`, a member that waits for points visits no chunk, so it
                # adds nothing to the sum yet.
                first = (number or lease.number) if chunk in active else 0
                self._chunks[chunk] = (holder, first)

    def confirmed(self, holder: Holder, number: int) -> None:
        """A member has contributed under this lease, so the chunks that it got with the lease are
        in the sum."""
        self._chunks = {
            chunk: (other, first)
            for chunk, (other, first) in self._chunks.items()
            if other != holder or not 0 < first <= number
        }

    def forget(self, gone: Collection[Holder]) -> None:
        """These members were removed: forget the chunks that moved to them."""
        self._chunks = {chunk: each for chunk, each in self._chunks.items() if each[0] not in gone}


JOB_ENDS = Reason("move-job-ends")


def pair(source: Holder, target: Holder) -> dict[str, Field]:
    """The fields of a reason that name the two workers of a move."""
    return {"workers": [source[0]], "targets": [target[0]]}


def member_left(source: Holder, target: Holder) -> Reason:
    return Reason("move-member-left", pair(source, target))


def shared_anew(members: int) -> Reason:
    return Reason("move-shared-anew", {"members": members})


@dataclass(slots=True)
class EndedMoves:
    """Moves that have ended. `reason`: None if they are complete; otherwise why the chunks stay
    where they are. `free`: how many of the chunks moved without sending their points."""

    source: int
    target: int
    reason: Reason | None
    chunks: int = 0
    points: int = 0
    free: int = 0


class EndedCounts:
    def __init__(self) -> None:
        self._ended: dict[tuple[int, int, str], EndedMoves] = {}

    def count(
        self, source: Holder, target: Holder, points: int, reason: Reason | None, free: int = 0
    ) -> None:
        """The move of a chunk with this many points has ended."""
        key = source[0], target[0], "" if reason is None else reason.code
        ended = self._ended.setdefault(key, EndedMoves(source[0], target[0], reason))
        ended.chunks += 1
        ended.points += points
        ended.free += free

    def take(self, *, complete: bool) -> list[EndedMoves]:
        """The moves that have ended since the last call. `complete`: include complete moves."""
        due = [key for key, ended in self._ended.items() if ended.reason or complete]
        return [self._ended.pop(key) for key in due]


WINDOW_CHUNKS = 4
"""The most chunks of one worker that are in flight at a time."""


@dataclass(frozen=True, slots=True)
class Delivery:
    number: int
    chunk: int
    source: Holder
    target: Holder


class Migration:
    def __init__(
        self, copies_nbytes: int | None = None, *, blocking: bool = False, rows: bool = False
    ) -> None:
        """`copies_nbytes`: the most bytes of a worker's inactive copies (None: as many points as a
        worker's first share has). `blocking`: all chunks of a move are in flight at once, and until they
        have arrived, their old and new holders visit no points. `rows`: kind statistics. What the points
        have added stays in the row of the holder until the points have arrived. Then the holder
        subtracts it, and after that the new holder adds it. No copies are kept, because the memory of
        the points must always be sent."""
        self._rows = rows
        self._copies = InactiveCopies(copies_nbytes)
        self._blocking = blocking
        self._queue: deque[Gift] = deque()
        """The chunks that are to move but are not in flight yet."""
        self._flying: dict[int, Delivery] = {}
        """The deliveries on their way: per chunk, the delivery of its points."""
        self._free: dict[int, tuple[Holder, Holder]] = {}
        """The chunks that move without their points, because the target has a copy: per chunk, its
        source and its target."""
        self._back: set[int] = set()
        """The chunks in `_free` that go back to an owner which does not share them any more. The journal
        has no line for the beginning of such a move, so it gets no line either if the move is given
        up."""
        self._numbers = 0
        self._barred: set[tuple[Holder, Holder]] = set()
        """Pairs of a source and a target between which points cannot be sent."""
        self._listening: dict[Holder, tuple[str, Address]] = {}
        """Per member that can receive points, its name and the address at which it receives them."""
        self._earlier: dict[Holder, int] = {}
        """Per member that can receive points, the highest number of a delivery before it could."""
        self._full: set[Holder] = set()
        """The members that have reported that they have no memory for further points."""
        self.adoptions = Adoptions()
        self._ended = EndedCounts()

    @property
    def copies(self) -> Mapping[Holder, Collection[int]]:
        """Per member, the chunks of which it has an inactive copy."""
        return self._copies.held

    @property
    def stops(self) -> bool:
        """Whether the members of a move have no points to visit until the move is complete
        (`blocking`)."""
        return self._blocking

    @property
    def busy(self) -> bool:
        """Whether chunks are moving, or wait to be moved."""
        return bool(self._queue or self._flying or self._free)

    @property
    def settled(self) -> bool:
        """Kind statistics: whether the sum includes all points that move."""
        return not self._flying and not self.adoptions

    def begin(self, plan: DataPlan, members: int) -> None:
        """The data plan exists now. `members`: the number of members for which it was made."""
        self._copies.begin(plan.points, members)

    def listening(self, holder: Holder, name: str, address: Address) -> None:
        """The member receives points at this address."""
        self._listening[holder] = (name, address)
        self._earlier.setdefault(holder, self._numbers)

    def targets(self, among: Iterable[Holder]) -> list[Holder]:
        """The members of `among` that can receive points."""
        return [each for each in among if each in self._listening and each not in self._full]

    def reaches(self, source: Holder, target: Holder) -> bool:
        """Whether points can be sent from `source` to `target`."""
        return bool(self.targets((target,))) and (source, target) not in self._barred

    def waits(self, holder: Holder) -> bool:
        """Whether the member has no points to visit until the points that move have arrived."""
        return self._blocking and holder in self._involved()

    def _there(self, plan: DataPlan, holder: Holder, chunk: int) -> bool:
        """Whether the member has the points of this chunk already, so that they need not be sent."""
        return self._copies.has(holder, chunk) or plan.reads(holder, chunk)

    # -- moves ---------------------------------------------------------------------------------

    def queue(self, gifts: Sequence[Gift]) -> list[Gift]:
        """Queue these moves; only a few chunks are in flight at a time. Returns the moves whose source
        can send points to the target."""
        found = [gift for gift in gifts if gift[1:] not in self._barred]
        self._queue.extend(found)
        return found

    def slide(self, plan: DataPlan) -> set[Holder]:
        """Begin the next moves. Returns the members whose leases changed."""
        changed: set[Holder] = set()
        if self._blocking and self._flying:
            return changed
        busy: dict[Holder, int] = {}
        for delivery in self._flying.values():
            busy[delivery.source] = busy.get(delivery.source, 0) + 1
        waiting: deque[Gift] = deque()
        for gift in self._queue:
            index, source, target = gift
            chunk = plan.chunks[index]
            if chunk.holder != source or chunk.heir is not None or chunk.cursor:
                self._count(plan, source, target, index, Reason("move-visited"))
                continue
            there = self._there(plan, target, index)
            if not plan.may_move(index, source, target, sent=not there):
                self._count(
                    plan, source, target, index, Reason("move-not-shared", pair(source, target))
                )
            elif there:
                changed |= plan.give([gift])
                self._free[index] = (source, target)
            elif self._blocking or busy.get(source, 0) < WINDOW_CHUNKS:
                self._numbers += 1
                busy[source] = busy.get(source, 0) + 1
                self._flying[index] = Delivery(self._numbers, index, source, target)
                changed |= plan.give([gift], self._numbers)
            else:
                waiting.append(gift)
        self._queue = waiting
        return changed | plan.renumber(self._involved() if self._blocking else ())

    def delivered(
        self, plan: DataPlan, sender: Holder, chunk: int, number: int, nbytes: int
    ) -> set[Holder]:
        """A worker reports that it has all points of a chunk. Returns the members whose leases
        changed."""
        delivery = self._flying.get(chunk)
        if delivery is None or delivery.number != number or delivery.target != sender:
            return set()
        self._copies.point_nbytes = nbytes / max(1, plan.chunks[chunk].points)
        return plan.delivered(chunk, number, again=self._rows)

    def failed(
        self, plan: DataPlan, sender: Holder, chunk: int, number: int, fault: Reason
    ) -> set[Holder]:
        """A worker reports that it cannot send or receive a chunk. Returns the members whose leases
        changed."""
        delivery = self._flying.get(chunk)
        if delivery is None or delivery.number != number:
            return set()
        if sender == delivery.target:
            self._full.add(sender)
        elif sender == delivery.source:
            self._barred.add((sender, delivery.target))
        else:
            return set()
        stays = {
            index
            for index, other in self._flying.items()
            if other.target == sender or (other.source, other.target) in self._barred
        }
        about = pair(delivery.source, delivery.target)
        return self._cancel(plan, stays, Reason(fault.code, {**fault.fields, **about}))

    def settle(self, plan: DataPlan) -> set[Holder]:
        """Leases were confirmed, points arrived, or members left: note which moves are complete, and
        begin the next ones. Returns the members whose leases changed."""
        before = self._involved()
        for index, source, target in plan.handed:
            self._copies.activate(target, index)
            if self._rows:
                self.adoptions.moved(index, target)
            elif source in self._listening:  # a source that has left keeps no copy
                self._copies.moved(plan, index, source, target)
        plan.handed.clear()
        for index, delivery in list(self._flying.items()):
            chunk = plan.chunks[index]
            if chunk.delivery == delivery.number:
                continue
            del self._flying[index]
            complete = chunk.holder == delivery.target
            reason = None if complete else member_left(delivery.source, delivery.target)
            self._count(plan, delivery.source, delivery.target, index, reason)
        for index, (source, target) in list(self._free.items()):
            chunk = plan.chunks[index]
            if (chunk.holder, chunk.heir) != (source, target):
                del self._free[index]
                complete = chunk.holder == target
                reason = None if complete else member_left(source, target)
                self._count(plan, source, target, index, reason, free=int(complete))
                self._back.discard(index)
        changed = self.slide(plan)
        if self._blocking:
            changed |= plan.renumber(before - self._involved())
        return changed

    def cancel(self, plan: DataPlan, reason: Reason) -> set[Holder]:
        """The members change: end all moves, because the chunks are shared anew. Returns the members
        whose leases changed."""
        for index, (source, target) in self._free.items():
            self._count(plan, source, target, index, reason)
        free, self._free = self._free, {}
        return self._cancel(plan, set(self._flying), reason, waiting=True) | plan.take_back(free)

    def call_off(self, plan: DataPlan) -> set[Holder]:
        """The job ends: begin no further moves, and end the moves whose points have not arrived.
        Returns the members whose leases changed."""
        stay = {index for index in self._flying if not plan.chunks[index].delivered}
        if not stay and not self._queue:
            return set()
        return self._cancel(plan, stay, JOB_ENDS, waiting=True)

    def _cancel(
        self, plan: DataPlan, chunks: Collection[int], reason: Reason, *, waiting: bool = False
    ) -> set[Holder]:
        """End the moves of these chunks, whose points are on their way or have arrived. *The leases of
        the targets change too, so that they drop the points.*"""
        renewed = self._involved() if self._blocking else set()
        for index in chunks:
            delivery = self._flying.pop(index)
            renewed.add(delivery.target)
            self._count(plan, delivery.source, delivery.target, index, reason)
        kept: deque[Gift] = deque()
        for gift in self._queue:
            index, source, target = gift
            if waiting or target in self._full or (source, target) in self._barred:
                self._count(plan, source, target, index, reason)
            else:
                kept.append(gift)
        self._queue = kept
        return plan.take_back(chunks) | plan.renumber(renewed)

    def withdraw(self, plan: DataPlan, chunks: Collection[int], owner: Holder) -> set[Holder]:
        """This member does not share its points. `chunks`: its chunks that other members hold. End the
        moves of its points, also of earlier data sets, let the chunks go back to it, and let others drop
        their copies. Returns the members whose leases changed."""
        reason = Reason("move-withdrawn", {"targets": [owner[0]]})

        def ends(index: int, source: Holder, target: Holder) -> bool:
            return index in chunks or not plan.may_move(index, source, target, sent=False)

        for gift in [gift for gift in self._queue if ends(*gift)]:
            self._queue.remove(gift)
            self._count(plan, gift[1], gift[2], gift[0], reason)
        flying = [(each.chunk, each.source, each.target) for each in self._flying.values()]
        changed = self._cancel(plan, [each[0] for each in flying if ends(*each)], reason)
        free = [each for each, ends_of in self._free.items() if ends(each, *ends_of)]
        free = [each for each in free if each not in chunks]
        for index in free:
            self._count(plan, *self._free.pop(index), index, reason)
        changed |= plan.take_back(free) | plan.renumber(self._copies.withdraw(plan, owner))
        for index in chunks:
            if (ended := self._free.pop(index, None)) is None or ended[1] != owner:
                if ended is not None:
                    self._count(plan, *ended, index, reason)
                self._back.add(index)
            if (holder := plan.chunks[index].holder) is not None:
                self._free[index] = (holder, owner)
        return changed | plan.give([(each, *self._free[each]) for each in chunks])

    def forget(self, plan: DataPlan, gone: Iterable[Holder]) -> None:
        """These members were removed: drop their waiting moves, and forget their copies."""
        left = set(gone)
        for index, source, target in self._queue:
            if left & {source, target}:
                self._count(plan, source, target, index, member_left(source, target))
        self._queue = deque(gift for gift in self._queue if not left & set(gift[1:]))
        for member in left:
            self._copies.forget(member)
            self._full.discard(member)
            self._listening.pop(member, None)
            self._earlier.pop(member, None)
        self._barred = {pair for pair in self._barred if not left & set(pair)}
        self.adoptions.forget(left)

    def shared(self, plan: DataPlan) -> None:
        """The chunks were shared anew."""
        self._copies.shared(plan)

    @property
    def most_points(self) -> int:
        """The most points of the inactive copies of one member."""
        return self._copies.most_points

    # -- leases and reports --------------------------------------------------------------------

    def lease(self, plan: DataPlan, holder: Holder) -> Leased:
        """The lease of a member, with the chunks that it sends and the copies that it keeps."""
        lease, sends, arriving = plan.lease(holder), [], []
        for delivery in self._flying.values():
            if delivery.target == holder:
                arriving.append(delivery.chunk)
            given = self._rows and plan.chunks[delivery.chunk].delivered
            if delivery.source == holder and not given:
                name, address = self._listening[delivery.target]
                points = (delivery.chunk, *plan.numbered(holder, delivery.chunk))
                sends.append(ChunkSend(delivery.number, *points, *delivery.target, name, address))
        chunks, copies = lease.chunks, self._copies.of(holder)
        if not self._rows:
            # The holder keeps a chunk that moves without its points, because the chunk may still
            # come back to it.
            sent = {send.chunk for send in sends}
            copies += tuple(index for index in plan.leaving(holder) if index not in sent)
        if self.waits(holder):
            # A member that waits for points visits none of its chunks. It keeps them, with the
            # memory of their points.
            copies += tuple(chunk.chunk for chunk in lease.chunks)
            chunks = ()
        return msgspec.structs.replace(
            lease,
            chunks=chunks,
            sends=tuple(sends),
            copies=copies,
            arriving=tuple(arriving),
            delivery=self._numbers,
            earlier=self._earlier.get(holder, self._numbers),
        )

    def _involved(self) -> set[Holder]:
        """The sources and targets of the deliveries that are on their way."""
        return {
            each
            for delivery in self._flying.values()
            for each in (delivery.source, delivery.target)
        }

    def _count(
        self,
        plan: DataPlan,
        source: Holder,
        target: Holder,
        chunk: int,
        reason: Reason | None,
        free: int = 0,
    ) -> None:
        if reason is None or chunk not in self._back:
            self._ended.count(source, target, plan.chunks[chunk].points, reason, free)

    def ended(self, plan: DataPlan, *, last: bool = False) -> list[EndedMoves]:
        """The moves that have ended since the last call. Complete moves are reported when nothing
        moves any more. `last`: the job is over, so no further move becomes complete."""
        if last:
            begun = [(index, *ends) for index, ends in self._free.items()]
            begun += [(each.chunk, each.source, each.target) for each in self._flying.values()]
            for index, source, target in [*begun, *self._queue]:
                self._count(plan, source, target, index, JOB_ENDS)
        return self._ended.take(complete=last or not self.busy)

    def check(self, plan: DataPlan) -> None:
        for index, delivery in self._flying.items():
            chunk = plan.chunks[index]
            if chunk.delivery and (chunk.holder, chunk.heir) != (delivery.source, delivery.target):
                raise InvariantBroken(f"chunk {index} and its delivery name different members")
        self._copies.check(plan)

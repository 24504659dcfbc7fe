"""The data plan of a job in which every worker has its own data set (`--data-private`).

*Only the worker with the name of its owner visits the points of a data set, unless the owner shares
them (`--share-data`). When the owner is gone, the chunks that others hold stay with them, and the
other chunks are excluded from the passes. When the owner comes back with the same data set, these
chunks count again: visits that counted are not repeated, and passes that the others have completed
meanwhile are not made up.* The chunks of a worker that joins late begin with the present pass. So the
number of passes never falls.

A chunk always belongs to the same data set. When the holder of the chunk is gone, the chunk goes back
to its owner. If the owner is gone too, the chunk goes to a member with an inactive copy of its
points.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from polyrhythm.core.fingerprints import alike
from polyrhythm.core.lead.data.chunks import Chunk, Holder
from polyrhythm.core.lead.data.plan import CHUNKS_PER_WORKER, CHUNKS_TO_BALANCE, DataPlan
from polyrhythm.core.machine import Reason
from polyrhythm.core.minimum_tracker import MinimumTracker
from polyrhythm.core.record import Record, RecordedChunk
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Leased
from polyrhythm.wire.messages.reasons import Field


@dataclass(slots=True, eq=False)
class _DataSet:
    """The data set of one worker. `base`: the number of its first point, counted over all data
    sets."""

    name: str
    base: int
    points: int
    chunks: list[int]
    worker: int = -1
    """The owner's worker number, which is the same in all its incarnations; -1 until it is
    known."""
    holder: Holder | None = None
    """The member that owns the data set; None while the owner is gone."""
    shares: bool = False
    """Whether the owner allows that other members get the points."""
    fingerprint: str = ""
    """The fingerprint of the data set; empty if it is not known."""


class PrivatePlan(DataPlan):
    def __init__(self, seed: int, epochs: int | None) -> None:
        super().__init__(0, 1, seed, epochs)
        self.chunks = []
        self._passes = MinimumTracker()
        self._sets: dict[str, _DataSet] = {}
        """Per name of a worker, its data set."""
        self._set_of: list[_DataSet] = []
        """Per chunk, the data set that it belongs to. The owner may have come back later with
        another data set."""
        self._mine: dict[Holder, _DataSet] = {}
        """Per member, its data set."""
        self._floor = 0
        self._expected: set[_DataSet] = set()
        """The data sets of the checkpoint whose workers may still announce them. Until then, or until
        `stop_waiting`, their passes count: otherwise a worker that comes back first, and has made more
        passes than the others, would end the passes of the others."""
        self._checked = 0
        """The number of points in all chunks when `check` was last called."""
        self.news: list[Reason] = []
        """Reasons that describe what has happened to data sets, for the journal. The caller empties
        the list."""

    @classmethod
    def recovered(cls, record: Record, epochs: int | None) -> "PrivatePlan":
        """The data plan of a checkpoint. Its workers have yet to come back with their data sets."""
        plan = cls(record.seed, epochs)
        plan._floor = record.passes
        for each in record.chunks:
            new = _DataSet(each.holder, each.first, 0, [])
            found = plan._sets.setdefault(each.holder, new)
            found.chunks.append(len(plan.chunks))
            found.points += each.last - each.first
            plan.chunks.append(Chunk(each.first, each.last, passes=each.passes, cursor=each.cursor))
            plan._set_of.append(found)
        plan._expected = set(plan._sets.values())
        return plan

    def expect(self, names: Collection[str]) -> None:
        """Of the data sets of a checkpoint, only those of workers with these names come back in
        time."""
        if self._expected:
            self._expected = {each for each in self._expected if each.name in names}

    def stop_waiting(self) -> None:
        """The time in which workers may announce the data sets of a checkpoint is over. A worker that
        announces its data set later continues with the present pass."""
        for each in sorted(self._expected, key=lambda each: each.name):
            self._tell("data-not-back", each.name, each.points, self.points)
        self._expected = set()

    def enrol(
        self,
        name: str,
        holder: Holder,
        points: int,
        least: int,
        fingerprint: str = "",
        *,
        shares: bool = False,
    ) -> None:
        """A member has a data set of this many points. `least`: the fewest points of a chunk. The
        member does not get the chunks of its earlier incarnation yet, as long as contributions of
        that incarnation may still count."""
        found = self._sets.get(name)
        if found is None or found.points != points or self._other(found, holder, fingerprint):
            if found is not None:
                self._tell_replaced(found, points, shares=shares)
            found = self._sets[name] = self._add(name, points, least, shares=shares)
        elif found.holder is None and (loose := self._loose(found)):
            back = sum(self.chunks[index].points for index in loose)
            total = self.points + back
            if back < points:  # other workers hold the rest
                self._tell("data-partly-back", name, back, total, all=points)
            else:
                self._tell("data-back", name, back, total)
        if found.holder is not None:
            self._mine.pop(found.holder, None)
        found.worker, found.holder, found.shares = holder[0], holder, shares
        found.fingerprint = fingerprint or found.fingerprint
        if not shares:  # the earlier data sets of this worker are not shared any more either
            for each in self._set_of:
                each.shares = each.shares and each.name != name
        self._mine[holder] = found
        if self._lend(found, self.passes):
            self._number({holder})
        self._expected = {each for each in self._expected if each.name != name}

    @staticmethod
    def _other(found: _DataSet, holder: Holder, fingerprint: str) -> bool:
        """Whether a member that comes back certainly has another data set than before. A member
        that has not left is allowed to change the values of its points, so its data set counts as
        the same."""
        if found.holder == holder or not fingerprint:
            return False
        return not alike(found.fingerprint, fingerprint)

    @property
    def data_sets(self) -> Collection[str]:
        """The names of the workers that have, or had, a data set."""
        return self._sets.keys()

    def points_of(self, holder: Holder) -> int | None:
        """The number of points of this member's data set; None if it has not enrolled one."""
        found = self._mine.get(holder)
        return None if found is None else found.points

    def _tell(self, code: str, name: str, points: int, total: int, **more: Field) -> None:
        self.news.append(Reason(code, {"name": name, "points": points, "total": total, **more}))

    def _tell_replaced(self, old: _DataSet, points: int, *, shares: bool) -> None:
        """Report that a worker has come back with another data set. If it does not share that one,
        other workers drop the old points (`drop_unshared`)."""
        if old.holder is not None:
            self._mine.pop(old.holder, None)
        kept = sum(self.chunks[index].points for index in self._away(old)) if shares else 0
        code = "data-replaced-partly" if kept else "data-replaced"
        fields: dict[str, Field] = {"name": old.name, "points": points, "before": old.points}
        self.news.append(Reason(code, {**fields, "kept": kept} if kept else fields))
        old.holder = None

    def _add(self, name: str, points: int, least: int, *, shares: bool) -> _DataSet:
        base = self.chunks[-1].last if self.chunks else 0
        most = CHUNKS_TO_BALANCE if shares else CHUNKS_PER_WORKER
        count = max(1, min(points // least, most))
        first = len(self.chunks)
        found = _DataSet(name, base, points, list(range(first, first + count)))
        self.chunks += [
            Chunk(base + points * index // count, base + points * (index + 1) // count)
            for index in range(count)
        ]
        self._set_of += [found] * count
        return found

    def _loose(self, found: _DataSet) -> list[int]:
        """The chunks of a data set that no member holds."""
        return [index for index in found.chunks if self.chunks[index].holder is None]

    def _away(self, found: _DataSet) -> list[int]:
        """The chunks of a data set that other workers hold."""
        holders = ((index, self.chunks[index].holder) for index in found.chunks)
        return [index for index, at in holders if at is not None and at[0] != found.worker]

    def _lend(self, found: _DataSet, passes: int) -> bool:
        """Lease the chunks of a data set to its owner, unless another member has them. `passes`: the
        present pass. Returns whether the lease of the owner changed."""
        loose = self._loose(found)
        if found.holder is None or not loose:
            return False
        for index in loose:
            chunk = self.chunks[index]
            if chunk.passes < passes:
                chunk.passes, chunk.cursor = passes, 0
            self._passes.put(index, chunk.passes)
            self._hand(index, found.holder, remembered=False)
            self.points += chunk.points
        return True

    # -- moves ---------------------------------------------------------------------------------

    def reads(self, member: Holder, index: int) -> bool:
        """Whether the chunk belongs to the data set of this member."""
        return self._set_of[index].holder == member

    def may_move(self, index: int, source: Holder, target: Holder, *, sent: bool) -> bool:
        """A chunk may always go back to its owner. It may go to other members if the owner shares
        its data set. If the points must be sent, the member that sends them must share its own data
        set too."""
        found, sender = self._set_of[index], self._mine.get(source)
        if found.holder == target:
            return True
        return found.shares and (not sent or (sender is not None and sender.shares))

    def can_give(self, holder: Holder) -> bool:
        mine = self._mine.get(holder)
        if mine is not None and mine.shares:
            return True
        return any(self._set_of[index] is not mine for index in self._held.get(holder, ()))

    def withdrawn(self, owner: Holder) -> list[int]:
        """The chunks of a member that other members hold, although it does not share them any more."""
        mine = self._mine.get(owner)
        return [] if mine is None or mine.shares else self._away(mine)

    def drop_unshared(self, owner: Holder) -> set[Holder]:
        """If this member does not share its points, drop the chunks of its earlier data sets: it has
        these points no more, and others may not visit them. Call this when no such chunk moves.
        Returns the members whose leases changed."""
        mine, changed = self._mine.get(owner), set[Holder]()
        if mine is None or mine.shares:
            return changed
        self._floor = self.passes
        for index, found in enumerate(self._set_of):
            holder = self.chunks[index].holder
            if found.name == mine.name and found is not mine and holder and holder[0] != owner[0]:
                changed.add(holder)
                self._passes.drop(index)
                self.points -= self.chunks[index].points
                self._hand(index, None, remembered=True)
        self._number(changed)
        return changed

    @property
    def mean_chunk(self) -> float:
        return self.points / max(1, len(self._passes))

    def share(self, members: list[Holder]) -> set[Holder]:
        """Nothing to do: every member has its own data set."""
        return set()

    def release(
        self, gone: Iterable[Holder], copies: Mapping[Holder, Collection[int]] | None = None
    ) -> set[Holder]:
        """These members were removed, and none of their contributions can arrive any more. Each
        chunk that they held goes to its heir, if the heir has the points, or else to its owner. A
        chunk whose owner is gone too goes to a member with a copy of its points. `copies`: per
        member, the chunks of which it has a copy. All other chunks are excluded from the passes.
        Returns the members whose leases grew."""
        leavers = set(gone)
        self._floor = passes = self.passes
        held = [(index, holder) for holder in leavers for index in self._held.get(holder, ())]
        changed = super().release(leavers)
        grown = self._rescue(held, leavers, copies or {})
        loose: dict[_DataSet, list[tuple[int, int]]] = {}
        """Per data set, the chunks that no member holds now, and the numbers of their last holders."""
        for index, (worker, _) in sorted(held):
            if self.chunks[index].holder is None:
                self._passes.drop(index)
                self.points -= self.chunks[index].points
                loose.setdefault(self._set_of[index], []).append((index, worker))
        left = {found for holder in leavers if (found := self._mine.pop(holder, None)) is not None}
        for found in left:
            found.holder = None
        grown |= {
            found.holder
            for found in loose
            if found.holder is not None and self._lend(found, passes)
        }
        self._number(grown)
        for found in sorted({*left, *loose}, key=lambda each: (each.name, each.base)):
            self._tell_released(found, loose.get(found, []), owner_left=found in left)
        return changed | grown

    def _rescue(
        self,
        held: Iterable[tuple[int, Holder]],
        leavers: Collection[Holder],
        copies: Mapping[Holder, Collection[int]],
    ) -> set[Holder]:
        """Some chunks have lost both their holder and their owner. Hand each of them to a member
        with a copy of its points, unless the owner had stopped sharing its points. Returns the
        members that get chunks."""
        found: set[Holder] = set()
        for index, last in sorted(held):
            owner = self._set_of[index]
            orphaned = owner.holder is None or owner.holder in leavers
            if self.chunks[index].holder is not None or not (orphaned and owner.shares):
                continue
            having = [each for each in copies if each not in leavers and index in copies[each]]
            if having:
                heir = min(having, key=lambda each: len(self._held.get(each, ())))
                self._hand(index, heir, remembered=False)
                self.handed.append((index, last, heir))
                found.add(heir)
        return found

    def _tell_released(
        self, found: _DataSet, loose: list[tuple[int, int]], *, owner_left: bool
    ) -> None:
        """Report what the removal of members means for this data set. `loose`: its chunks that lost
        their holders, with the numbers of these workers. `owner_left`: its owner was removed."""
        by_others = [index for index, worker in loose if worker != found.worker]
        points = sum(self.chunks[index].points for index, _ in loose)
        kept = sum(self.chunks[index].points for index in self._away(found))
        if owner_left and kept:
            self._tell("data-partly-lost", found.name, points, self.points, kept=kept)
        elif owner_left:
            self._tell("data-lost", found.name, points, self.points)
        elif by_others and found.holder is None:
            self._tell("data-lost-later", found.name, points, self.points)
        elif by_others:
            back = sum(self.chunks[index].points for index in by_others)
            self._tell("data-returned", found.name, back, self.points)

    def numbered(self, holder: Holder, index: int) -> tuple[int, int]:
        """In a lease, the points of a member's own data set have the numbers that they have in the
        data set. Points of other data sets get higher numbers, and no two points get the same
        number."""
        chunk, mine = self.chunks[index], self._mine.get(holder)
        if mine is None:
            return chunk.first, chunk.last
        by = -mine.base if self._set_of[index] is mine else mine.points
        return chunk.first + by, chunk.last + by

    def lease(self, holder: Holder) -> Leased:
        lease, mine = super().lease(holder), self._mine.get(holder)
        return lease if mine is None else msgspec.structs.replace(lease, points=mine.points)

    def recorded(self, names: Mapping[Holder, str]) -> tuple[RecordedChunk, ...]:
        """The chunks for a checkpoint, each with its owner: when a job resumes, only the owner of a
        chunk has its points."""
        return tuple(
            msgspec.structs.replace(chunk, holder=found.name)
            for chunk, found in zip(super().recorded(names), self._set_of, strict=True)
            if self._sets[found.name] is found
        )

    @property
    def passes(self) -> int:
        """The number of full passes over the points of the members."""
        found = [self.chunks[index].passes for each in self._expected for index in each.chunks]
        if len(self._passes):
            found.append(self._passes.least)
        return max(self._floor, min(found)) if found else self._floor

    def check(self) -> None:
        """Check the chunks that were changed since the last check, and those that move."""
        for index in self._changed | self.moving:
            chunk, found = self.chunks[index], self._set_of[index]
            if chunk.cursor and not 0 <= chunk.cursor < chunk.points:
                raise InvariantBroken("a cursor is outside its chunk")
            if (chunk.heir is not None) != (index in self.moving):
                raise InvariantBroken("a chunk has an heir, but is not moving")
            if (chunk.holder is not None) != (index in self._passes):
                raise InvariantBroken(
                    "a chunk without a holder counts, or a chunk with a holder does not count"
                )
            if chunk.heir is not None and (chunk.holder is None or not chunk.asked):
                raise InvariantBroken("a chunk moves, but its holder was not asked to give it up")
            if chunk.delivery and not found.shares:
                raise InvariantBroken("points leave a data set that its owner does not share")
            if chunk.holder is not None and index not in self._held[chunk.holder]:
                raise InvariantBroken("a chunk is missing in the chunks of its holder")
        self._changed.clear()
        if self.points != self._checked:
            held = (self.chunks[index].points for index in self._passes.all_keys())
            if self.points != sum(held):
                raise InvariantBroken(
                    "the number of points is not the sum over all chunks with a holder"
                )
            self._checked = self.points

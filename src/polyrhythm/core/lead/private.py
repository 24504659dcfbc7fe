"""The data plan of a job in which every worker has its own data set (`--data-private`).

*The points of a data set are visited by the worker with the name of its owner only. When this worker
is gone, its points are excluded from the passes. When it comes back with a data set of the same length,
its points count again: visits that counted are not repeated, and passes that the others have completed
meanwhile are not made up.* The chunks of a worker that joins late begin with the present pass, for the
same reason. So the number of passes never falls.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from polyrhythm.core.lead.chunks import Chunk, Holder
from polyrhythm.core.lead.data import CHUNKS_PER_WORKER, DataPlan
from polyrhythm.core.machine import Reason
from polyrhythm.core.minimum_tracker import MinimumTracker
from polyrhythm.core.record import Record, RecordedChunk
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Leased
from polyrhythm.wire.messages.reasons import Field


@dataclass(slots=True)
class _DataSet:
    """The data set of one worker. `base`: the number of its first point among those of all."""

    base: int
    points: int
    chunks: list[int]
    holder: Holder | None = None
    """The member that has the data set; None if it is gone."""


class PrivatePlan(DataPlan):
    def __init__(self, seed: int, epochs: int | None) -> None:
        super().__init__(0, 1, seed, epochs)
        self.chunks = []
        self._passes = MinimumTracker()
        self._sets: dict[str, _DataSet] = {}
        """Per name of a worker, its data set."""
        self._floor = 0
        self.news: list[Reason] = []
        """What has happened to data sets. The caller empties the list."""

    @classmethod
    def recovered(cls, record: Record, epochs: int | None) -> "PrivatePlan":
        """The data plan of a checkpoint. Its workers have yet to come back with their data sets."""
        plan = cls(record.seed, epochs)
        plan._floor = record.passes
        for each in record.chunks:
            found = plan._sets.setdefault(each.holder, _DataSet(each.first, 0, []))
            found.chunks.append(len(plan.chunks))
            found.points += each.last - each.first
            plan.chunks.append(Chunk(each.first, each.last, passes=each.passes, cursor=each.cursor))
        return plan

    def enrol(self, name: str, holder: Holder, points: int, least: int) -> None:
        """A member has a data set of this many points. `least`: the fewest points of a chunk. While
        chunks of an earlier incarnation may still count, the member does not get them yet."""
        found = self._sets.get(name)
        if found is None or found.points != points:
            found = self._sets[name] = self._add(points, least)
        elif found.holder is None:
            fields: dict[str, Field] = {
                "name": name,
                "points": points,
                "total": self.points + points,
            }
            self.news.append(Reason("data-back", fields))
        found.holder = holder
        if self._lend(found):
            self._number({holder})

    def points_of(self, holder: Holder) -> int | None:
        """The number of points of this member's data set; None if it has not enrolled one."""
        found = self._of(holder)
        return None if found is None else found.points

    def _of(self, holder: Holder) -> _DataSet | None:
        return next((each for each in self._sets.values() if each.holder == holder), None)

    def _add(self, points: int, least: int) -> _DataSet:
        base = self.chunks[-1].last if self.chunks else 0
        count = max(1, min(points // least, CHUNKS_PER_WORKER))
        first = len(self.chunks)
        self.chunks += [
            Chunk(base + points * index // count, base + points * (index + 1) // count)
            for index in range(count)
        ]
        return _DataSet(base, points, list(range(first, first + count)))

    def _lend(self, found: _DataSet) -> bool:
        """Lease the chunks of a data set to its holder, unless an earlier incarnation has them.
        Returns whether its lease changed."""
        loose = [index for index in found.chunks if self.chunks[index].holder is None]
        if found.holder is None or not loose:
            return False
        passes = self.passes
        for index in loose:
            chunk = self.chunks[index]
            if chunk.passes < passes:
                chunk.passes, chunk.cursor = passes, 0
            self._passes.put(index, chunk.passes)
            self._hand(index, found.holder)
            self.points += chunk.points
        return True

    def share(self, members: list[Holder]) -> set[Holder]:
        """Nothing to do: every member has its own data set."""
        return set()

    def release(self, gone: Iterable[Holder]) -> set[Holder]:
        """These members were removed, and none of their contributions can arrive any more: exclude
        their points, unless their workers have come back. Returns the members whose leases grew."""
        leavers = set(gone)
        self._floor = self.passes
        loose = [index for holder in leavers for index in self._held.get(holder, ())]
        super().release(leavers)
        for index in loose:
            self._passes.drop(index)
            self.points -= self.chunks[index].points
        changed, lost = set(), []
        for name, found in sorted(self._sets.items()):
            if found.holder in leavers:
                found.holder = None
                lost.append((name, found.points))
            elif found.holder is not None and self._lend(found):
                changed.add(found.holder)
        self._number(changed)
        for name, points in lost:
            self.news.append(
                Reason("data-lost", {"name": name, "points": points, "total": self.points})
            )
        return changed

    def lease(self, holder: Holder) -> Leased:
        """The lease of a member numbers the points as its own data set does."""
        lease = super().lease(holder)
        found = self._of(holder)
        if found is None:
            return lease
        chunks = tuple(
            msgspec.structs.replace(
                chunk, first=chunk.first - found.base, last=chunk.last - found.base
            )
            for chunk in lease.chunks
        )
        return msgspec.structs.replace(lease, points=found.points, chunks=chunks)

    def recorded(self, names: Mapping[Holder, str]) -> tuple[RecordedChunk, ...]:
        """The chunks for a checkpoint, each with its owner."""
        owners = {index: name for name, found in self._sets.items() for index in found.chunks}
        every = super().recorded(names)
        return tuple(
            msgspec.structs.replace(chunk, holder=owners[index])
            for index, chunk in enumerate(every)
            if index in owners
        )

    @property
    def passes(self) -> int:
        """The number of full passes over the points of the members."""
        return max(self._floor, self._passes.least) if len(self._passes) else self._floor

    def check(self) -> None:
        points = 0
        for index, chunk in enumerate(self.chunks):
            if chunk.cursor and not 0 <= chunk.cursor < chunk.points:
                raise InvariantBroken("a cursor is outside its chunk")
            if chunk.heir is not None:
                raise InvariantBroken("a chunk of a private data set moves")
            if (chunk.holder is not None) != (index in self._passes):
                raise InvariantBroken("a chunk counts, but has no holder, or the other way round")
            if chunk.holder is not None:
                points += chunk.points
                if index not in self._held[chunk.holder]:
                    raise InvariantBroken("a chunk is missing in the chunks of its holder")
        if points != self.points:
            raise InvariantBroken("the number of points is not that of the chunks with a holder")

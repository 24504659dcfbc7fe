"""Private data: every worker has its own data set (`--data-private`).

*Only the worker that owns a data set visits its points, unless it shares them (`--share-data`).
When the owner leaves, other members keep the chunks that they hold, and the passes exclude the
rest. When the owner comes back with the same data set, these chunks count again. Counted visits are
not repeated, and the owner does not make up for passes that the others completed meanwhile.* The
chunks of a worker that joins late begin with the present pass, so the number of full passes never
falls.

*Passes wait for the members of round 1 until they have announced their data sets. Otherwise fast
workers could reach the goal of a job before a slow one has announced its points.*

A chunk always belongs to the same data set. When its holder leaves, the chunk goes back to its
owner. If the owner has left too, it goes to a member with an inactive copy of its points.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from polyrhythm.core.fingerprints import alike
from polyrhythm.core.lead.data.chunks import Chunk, Holder
from polyrhythm.core.lead.data.moves import ChunkMove, How, MovePhase
from polyrhythm.core.lead.data.plan import CHUNKS_PER_WORKER, CHUNKS_TO_BALANCE, DataPlan
from polyrhythm.core.machine import Reason
from polyrhythm.core.record import Record
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages.reasons import Field


class PrivateDataSet(msgspec.Struct, eq=False):
    """The private data set of one worker. `base`: the number of its first point when the points of
    all data sets are numbered consecutively."""

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
    expected: bool = False
    """Whether the data set is in the checkpoint, and its worker may still announce it. Until then,
    or until `stop_waiting`, its passes count. Otherwise the first worker that comes back could end
    the job too early, if it has made more passes than the others."""


class PrivateState(msgspec.Struct):
    sets: list[PrivateDataSet] = []
    """All data sets, in the order in which they were announced. If workers with the same name
    announced several, the last one is the present one."""
    floor: int = 0
    awaited: dict[Holder, str] = {}
    """The members of round 1 that have not announced their data sets, and their names."""
    news: list[Reason] = []


class PrivateData:
    """Implements `plan.Ownership`."""

    distributes = False

    def __init__(self, state: PrivateState, plan: DataPlan) -> None:
        self._state = state
        self.plan = plan
        self._sets = {each.name: each for each in state.sets}
        """Per name of a worker, its data set."""
        owners = {index: each for each in state.sets for index in each.chunks}
        self._set_of = [owners[index] for index in range(len(plan.chunks))]
        """Per chunk, the data set that it belongs to. The owner may have come back later with
        another data set."""
        self._mine = {each.holder: each for each in state.sets if each.holder is not None}
        """Per member, its data set."""
        self._expected = [each for each in state.sets if each.expected]
        self._checked = 0
        """The number of points in all chunks when `check` was last called."""

    def take_news(self) -> list[Reason]:
        """What has happened to data sets since the last call. The lead writes it to the journal."""
        news, self._state.news = self._state.news, []
        return news

    def resume(self, record: Record) -> None:
        """Take over the chunks of a checkpoint. Their workers have yet to come back with their data
        sets."""
        self._state.floor = record.passes
        for each in record.chunks:
            found = self._sets.get(each.holder)
            if found is None:
                found = self._add_set(PrivateDataSet(each.holder, each.first, 0, [], expected=True))
            chunk = Chunk(each.first, each.last, passes=each.passes, cursor=each.cursor)
            self._append(found, [chunk])
            found.points += each.last - each.first
        self._expected = list(self._sets.values())

    def _add_set(self, found: PrivateDataSet) -> PrivateDataSet:
        self._state.sets.append(found)
        self._sets[found.name] = found
        return found

    def _append(self, found: PrivateDataSet, chunks: Sequence[Chunk]) -> None:
        """Add these chunks to the plan. They belong to this data set."""
        found.chunks += self.plan.add_chunks(chunks)
        self._set_of += [found] * len(chunks)

    def _expect_only(self, expected: Iterable[PrivateDataSet]) -> None:
        """Of all data sets in the checkpoint, wait only for these."""
        found = set(expected)
        for each in self._expected:
            each.expected = each in found
        self._expected = [each for each in self._expected if each.expected]

    def expect(self, names: Collection[str]) -> None:
        """Of all data sets in the checkpoint, wait only for those of workers with these names."""
        for each in sorted(self._expected, key=lambda each: each.name):
            if each.name not in names:
                self._tell("data-absent", each.name, each.points, self.plan.points)
        if self._expected:
            self._expect_only(each for each in self._expected if each.name in names)

    def wait_for(self, members: Mapping[Holder, str]) -> None:
        """Let passes wait until these members, with these names, have announced their data sets."""
        self._state.awaited.update(members)

    def on_contributed(self, holder: Holder) -> None:
        """Do not wait for a member that contributes without a data set."""
        self._state.awaited.pop(holder, None)

    def stop_waiting(self) -> None:
        """Stop waiting for workers to announce their data sets. A worker that announces its data set
        later continues with the present pass."""
        awaited, self._state.awaited = self._state.awaited, {}
        for name in sorted(awaited.values()) if self._sets else ():
            if all(each.name != name for each in self._expected):
                fields: dict[str, Field] = {"name": name, "total": self.plan.points}
                self._state.news.append(Reason("data-unannounced", fields))
        for each in sorted(self._expected, key=lambda each: each.name):
            self._tell("data-not-back", each.name, each.points, self.plan.points)
        self._expect_only(())

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
        """Add the data set of a member, which has this many points. `least`: the fewest points of a
        chunk. While contributions of its earlier incarnation may still count, the member does not
        get the chunks of that incarnation."""
        found = self._sets.get(name)
        if found is None or found.points != points or self._other(found, holder, fingerprint):
            if found is not None:
                self._tell_replaced(found, points, shares=shares)
            found = self._add(name, points, least, shares=shares)
        elif found.holder is None and (loose := self._loose(found)):
            back = sum(self.plan.chunks[index].points for index in loose)
            total = self.plan.points + back
            if back < points:  # other workers hold the rest of the chunks
                self._tell("data-partly-back", name, back, total, all=points)
            else:
                self._tell("data-back", name, back, total)
        if found.holder is not None:
            self._mine.pop(found.holder, None)
        found.worker, found.holder, found.shares = holder[0], holder, shares
        found.fingerprint = fingerprint or found.fingerprint
        if not shares:  # the worker no longer shares its earlier data sets either
            for each in self._set_of:
                each.shares = each.shares and each.name != name
        self._mine[holder] = found
        if self._lend(found, self.passes):
            self.plan.renew({holder})
        self._state.awaited.pop(holder, None)
        if self._expected:
            self._expect_only(each for each in self._expected if each.name != name)

    @staticmethod
    def _other(found: PrivateDataSet, holder: Holder, fingerprint: str) -> bool:
        """Whether a member that comes back certainly has another data set than before. A member
        that was never away may change the values of its points: its data set counts as the same."""
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
        fields: dict[str, Field] = {"name": name, "points": points, "total": total, **more}
        self._state.news.append(Reason(code, fields))

    def _tell_replaced(self, old: PrivateDataSet, points: int, *, shares: bool) -> None:
        """Note, for the journal, that a worker has come back with another data set. If the worker
        does not share it, other workers drop the points of the old one (`drop_unshared`)."""
        if old.holder is not None:
            self._mine.pop(old.holder, None)
        kept = sum(self.plan.chunks[index].points for index in self._away(old)) if shares else 0
        code = "data-replaced-partly" if kept else "data-replaced"
        fields: dict[str, Field] = {"name": old.name, "points": points, "before": old.points}
        self._state.news.append(Reason(code, {**fields, "kept": kept} if kept else fields))
        old.holder = None

    def _add(self, name: str, points: int, least: int, *, shares: bool) -> PrivateDataSet:
        base = self.plan.chunks[-1].last if self.plan.chunks else 0
        most = CHUNKS_TO_BALANCE if shares else CHUNKS_PER_WORKER
        count = max(1, min(points // least, most))
        found = self._add_set(PrivateDataSet(name, base, points, []))
        edges = [base + points * index // count for index in range(count + 1)]
        self._append(found, [Chunk(first, last) for first, last in pairwise(edges)])
        return found

    def _loose(self, found: PrivateDataSet) -> list[int]:
        """The chunks of a data set that have no holder."""
        return [index for index in found.chunks if self.plan.chunks[index].holder is None]

    def _away(self, found: PrivateDataSet) -> list[int]:
        """The chunks of a data set that other workers hold."""
        holders = ((index, self.plan.chunks[index].holder) for index in found.chunks)
        return [index for index, at in holders if at is not None and at[0] != found.worker]

    def _lend(self, found: PrivateDataSet, passes: int) -> bool:
        """Lease the chunks of a data set to its owner, except those that another member holds.
        `passes`: the number of the present pass. Returns whether the lease of the owner has
        changed."""
        loose = self._loose(found)
        if found.holder is None or not loose:
            return False
        for index in loose:
            chunk = self.plan.chunks[index]
            if chunk.passes < passes:
                chunk.passes, chunk.cursor = passes, 0
            self.plan.counted.put(index, chunk.passes)
            self.plan.hand(index, found.holder, remembered=False)
            self.plan.points += chunk.points
        return True

    # -- which chunks may move -----------------------------------------------------------------

    def reads(self, member: Holder, index: int) -> bool:
        """Whether the chunk belongs to the data set of this member."""
        return self._set_of[index].holder == member

    def may_move(self, index: int, source: Holder, target: Holder, *, sent: bool) -> bool:
        """Whether a chunk may move to this member. It may always go back to its owner, and to other
        members if the owner shares its data set. A member that must send the points must share its
        own data set too."""
        found, sender = self._set_of[index], self._mine.get(source)
        if found.holder == target:
            return True
        return found.shares and (not sent or (sender is not None and sender.shares))

    def can_give(self, holder: Holder) -> bool:
        mine = self._mine.get(holder)
        if mine is not None and mine.shares:
            return True
        held = self.plan.held.get(holder, ())
        return any(self._set_of[index] is not mine for index in held)

    def withdrawn(self, owner: Holder) -> list[int]:
        """The chunks of a member that other members hold, although the member no longer shares
        them."""
        mine = self._mine.get(owner)
        return [] if mine is None or mine.shares else self._away(mine)

    def drop_unshared(self, owner: Holder) -> None:
        """If this member does not share its points, drop the chunks of its earlier data sets: it no
        longer has these points, and others may not visit them. Call this when no such chunk
        moves."""
        mine, changed = self._mine.get(owner), set[Holder]()
        if mine is None or mine.shares:
            return
        self._state.floor = self.passes
        for index, found in enumerate(self._set_of):
            holder = self.plan.chunks[index].holder
            if found.name == mine.name and found is not mine and holder and holder[0] != owner[0]:
                changed.add(holder)
                self._exclude(index)
                self.plan.hand(index, None, remembered=True)
        self.plan.renew(changed)

    def _exclude(self, index: int) -> None:
        """Exclude this chunk from the passes."""
        self.plan.counted.drop(index)
        self.plan.points -= self.plan.chunks[index].points

    def on_released(
        self,
        lost: Sequence[tuple[int, Holder]],
        gone: Collection[Holder],
        copies: Mapping[Holder, Collection[int]],
        passes: int,
    ) -> None:
        """Find new holders for the chunks of the members in `gone`, except for chunks that a move
        has already brought to another member. Each chunk goes back to its owner. If the owner has
        left too, it goes to a member with a copy of its points. Without such a member, the passes
        exclude it."""
        self._state.floor = passes
        for holder in gone:
            self._state.awaited.pop(holder, None)
        changed = self._rescue(lost, gone, copies)
        loose: dict[PrivateDataSet, list[tuple[int, int]]] = {}
        """Per data set, the chunks that no member holds now, and the numbers of their last holders."""
        for index, (worker, _) in sorted(lost):
            if self.plan.chunks[index].holder is None:
                self._exclude(index)
                loose.setdefault(self._set_of[index], []).append((index, worker))
        left = {found for holder in gone if (found := self._mine.pop(holder, None)) is not None}
        for found in left:
            found.holder = None
        changed |= {
            found.holder
            for found in loose
            if found.holder is not None and self._lend(found, passes)
        }
        self.plan.renew(changed)
        for found in sorted({*left, *loose}, key=lambda each: (each.name, each.base)):
            self._tell_released(found, loose.get(found, []), owner_left=found in left)

    def _rescue(
        self,
        lost: Iterable[tuple[int, Holder]],
        gone: Collection[Holder],
        copies: Mapping[Holder, Collection[int]],
    ) -> set[Holder]:
        """Give chunks that have lost both their holder and their owner to members with copies of
        their points, unless the owner had stopped sharing. Returns the members that get chunks."""
        found: set[Holder] = set()
        for index, last in sorted(lost):
            owner = self._set_of[index]
            orphaned = owner.holder is None or owner.holder in gone
            if self.plan.chunks[index].holder is not None or not (orphaned and owner.shares):
                continue
            having = [each for each in copies if each not in gone and index in copies[each]]
            if having:
                target = min(having, key=lambda each: len(self.plan.held.get(each, ())))
                self.plan.hand(index, target, remembered=False)
                complete = ChunkMove(index, last, target, How.SHARED, MovePhase.COMPLETE)
                self.plan.note_ended(complete)
                found.add(target)
        return found

    def _tell_released(
        self, found: PrivateDataSet, loose: list[tuple[int, int]], *, owner_left: bool
    ) -> None:
        """Note, for the journal, what the removal of members means for this data set. `loose`: its
        chunks without a holder, with the numbers of their last holders. `owner_left`: its owner was
        removed."""
        by_others = [index for index, worker in loose if worker != found.worker]
        points = sum(self.plan.chunks[index].points for index, _ in loose)
        kept = sum(self.plan.chunks[index].points for index in self._away(found))
        if owner_left and kept:
            self._tell("data-partly-lost", found.name, points, self.plan.points, kept=kept)
        elif owner_left:
            self._tell("data-lost", found.name, points, self.plan.points)
        elif by_others and found.holder is None:
            self._tell("data-lost-later", found.name, points, self.plan.points)
        elif by_others:
            back = sum(self.plan.chunks[index].points for index in by_others)
            self._tell("data-returned", found.name, back, self.plan.points)

    # -- leases, passes and checkpoints --------------------------------------------------------

    def shift(self, holder: Holder, index: int) -> int:
        """What to add to the number of a chunk's point in a lease. A member's own points keep their
        numbers. The points of other data sets get higher numbers, so that no two points have the
        same one."""
        mine = self._mine.get(holder)
        if mine is None:
            return 0
        return -mine.base if self._set_of[index] is mine else mine.points

    def recorded_name(self, index: int, holder: str) -> str | None:
        """The member that a checkpoint records for a chunk: its owner, the only one that has its
        points when the job resumes."""
        found = self._set_of[index]
        return found.name if self._sets[found.name] is found else None

    @property
    def passes(self) -> int:
        """The number of full passes over the points of the members."""
        if self._state.awaited:
            return self._state.floor
        chunks, counted = self.plan.chunks, self.plan.counted
        found = [chunks[index].passes for each in self._expected for index in each.chunks]
        if len(counted):
            found.append(counted.least)
        return max(self._state.floor, min(found)) if found else self._state.floor

    def check(self, changed: Collection[int]) -> None:
        plan = self.plan
        for index in changed:
            if (plan.chunks[index].holder is not None) != (index in plan.counted):
                raise InvariantBroken(
                    "a chunk without a holder counts, or a chunk with a holder does not count"
                )
            move = plan.moving(index)
            if move is not None and move.in_flight and not self._set_of[index].shares:
                raise InvariantBroken("points leave a data set that its owner does not share")
        if plan.points != self._checked:
            held = (plan.chunks[index].points for index in plan.counted.all_keys())
            if plan.points != sum(held):
                raise InvariantBroken(
                    "the number of points is not the sum over all chunks with a holder"
                )
            self._checked = plan.points

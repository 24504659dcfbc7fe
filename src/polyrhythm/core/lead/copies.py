"""The inactive copies that members keep of points that they have given away (FSP §4.3, virtual
migration), so that a chunk can come back without being sent. The lead bounds these copies.

*A member keeps no copy of private points that their owner does not share any more.*
"""

from collections.abc import Collection, Mapping

from polyrhythm.core.lead.chunks import Holder
from polyrhythm.core.lead.data import DataPlan
from polyrhythm.errors import InvariantBroken


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

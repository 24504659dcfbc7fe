"""The move of a chunk from one member to another: one record with its phase, and how the move
ended.

*A chunk whose move has begun is locked: it is in no lease. It belongs to its source until the
source has contributed under a lease without the chunk, and the target has the points. If the target
dies, leaves or cannot take the points, the chunk stays with its source.*

`plan.py` keeps all moves in one dictionary. `migration.py` decides when queued moves begin, and
counts ended moves for the journal.
"""

from enum import Enum, StrEnum

import msgspec

from polyrhythm.core.lead.data.chunks import Holder
from polyrhythm.core.machine import Reason
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages.reasons import Field


class How(Enum):
    """Why a chunk moves, and how the target gets its points."""

    SHARED = "shared"
    """The chunks are distributed over the members again. The journal does not mention such a
    move."""
    LEASE = "lease"
    """The balance moves the lease. Every member can read the points."""
    SENT = "sent"
    """The balance moves the chunk, and its source sends the points."""
    COPY = "copy"
    """The balance moves the chunk to a member that has the points, as a copy or in its own data
    set."""
    RETURNED = "returned"
    """The chunk goes back to an owner that no longer shares its points. The journal mentions
    neither the beginning nor the failure of such a move."""
    REGAINED = "regained"
    """Kind statistics: the chunk stays with its holder, which was told to give it up and may have
    forgotten its points. Once the holder has confirmed that order, it gets the chunk again."""


ORDERED = (How.LEASE, How.SENT, How.COPY, How.RETURNED)
"""The moves that the balance or the owner of the points has ordered."""
POINTS_THERE = (How.COPY, How.RETURNED)
"""The moves whose target has the points before the move begins."""


class MovePhase(StrEnum):
    QUEUED = "queued"
    """The move waits until fewer chunks of its source are in flight. The source visits the chunk."""
    ASKED = "asked"
    """The source was told to give up the chunk, and has not confirmed that."""
    GIVEN_UP = "given up"
    """The source has confirmed a lease without the chunk, and sends the points."""
    ARRIVED = "arrived"
    """The target has all points, and the source has not confirmed yet. With kind statistics the
    source now subtracts the points, and then confirms."""
    COMPLETE = "complete"
    """The target holds the chunk."""
    KEPT = "kept"
    """The move has ended without being complete."""


TRANSITIONS: dict[MovePhase, tuple[MovePhase, ...]] = {
    MovePhase.QUEUED: (MovePhase.ASKED, MovePhase.KEPT),
    MovePhase.ASKED: (MovePhase.GIVEN_UP, MovePhase.ARRIVED, MovePhase.COMPLETE, MovePhase.KEPT),
    MovePhase.GIVEN_UP: (MovePhase.ARRIVED, MovePhase.KEPT),
    MovePhase.ARRIVED: (MovePhase.COMPLETE, MovePhase.KEPT),
    MovePhase.COMPLETE: (),
    MovePhase.KEPT: (),
}
"""Per phase, the phases that may follow. A move whose points are sent is complete only after they have
arrived."""


class ChunkMove(msgspec.Struct):
    chunk: int
    source: Holder
    target: Holder
    how: How
    phase: MovePhase = MovePhase.QUEUED
    began: int = 0
    """Moves are numbered in the order in which they begin; 0 if the move has not begun."""
    delivery: int = 0
    """The number of the delivery of the points; 0 if no points are sent."""
    asked: int = 0
    """The source gives the chunk up when it confirms the lease with this number."""
    reason: Reason | None = None
    """Why the lead has ended the move before it was complete; None if the lead has not ended it."""

    def enter(self, phase: MovePhase) -> None:
        """Set the phase of the move. Raises an error if `TRANSITIONS` forbids that."""
        early = phase is MovePhase.COMPLETE and not self.points_there
        if early or phase not in TRANSITIONS[self.phase]:
            raise InvariantBroken(f"the move of chunk {self.chunk}: {self.phase} to {phase}")
        self.phase = phase

    @property
    def begun(self) -> bool:
        return self.phase is not MovePhase.QUEUED

    @property
    def in_flight(self) -> bool:
        """Whether the points are being sent, or have arrived but do not belong to the target yet."""
        return self.how is How.SENT and self.begun

    @property
    def points_there(self) -> bool:
        """Whether the target has the points."""
        return self.how is not How.SENT or self.phase is MovePhase.ARRIVED

    def check(self) -> None:
        if not TRANSITIONS[self.phase]:
            raise InvariantBroken(f"the move of chunk {self.chunk} has ended: {self.phase}")
        if self.phase in (MovePhase.GIVEN_UP, MovePhase.ARRIVED) and self.how is not How.SENT:
            raise InvariantBroken(f"no points of chunk {self.chunk} are sent: {self.phase}")
        if bool(self.delivery) != self.in_flight:
            raise InvariantBroken(f"the delivery of chunk {self.chunk} does not fit its move")
        if bool(self.asked) != self.begun:
            raise InvariantBroken(f"chunk {self.chunk} moves, but its holder was not asked for it")


# -- how moves ended -------------------------------------------------------------------------------

JOB_ENDS = Reason("move-job-ends")


def pair(source: Holder, target: Holder) -> dict[str, Field]:
    """The fields of a reason that name the two workers of a move."""
    return {"workers": [source[0]], "targets": [target[0]]}


def member_left(source: Holder, target: Holder) -> Reason:
    return Reason("move-member-left", pair(source, target))


def shared_again(members: int) -> Reason:
    return Reason("move-shared-anew", {"members": members})


class EndedMoves(msgspec.Struct):
    """Moves that have ended. `reason`: why the chunks stay where they are; None if the moves are
    complete. `free`: how many of the chunks moved without a transfer of points."""

    source: int
    target: int
    reason: Reason | None
    chunks: int = 0
    points: int = 0
    free: int = 0


class EndedCounts(msgspec.Struct):
    """Counts the moves that have ended, until the lead writes them to the journal."""

    _ended: dict[tuple[int, int, str], EndedMoves] = {}
    """The counts. The key is the source, the target, and the code of the reason."""

    def count(self, move: ChunkMove, points: int, reason: Reason | None) -> None:
        """Count the move of a chunk with this many points, which is complete (`reason` is None), or
        has ended for this reason."""
        source, target = move.source[0], move.target[0]
        key = source, target, "" if reason is None else reason.code
        ended = self._ended.setdefault(key, EndedMoves(source, target, reason))
        ended.chunks += 1
        ended.points += points
        ended.free += reason is None and move.how in POINTS_THERE

    def take(self, *, complete: bool) -> list[EndedMoves]:
        """The moves that have ended since the last call. `complete`: include complete moves."""
        due = [key for key, ended in self._ended.items() if ended.reason or complete]
        return [self._ended.pop(key) for key in due]

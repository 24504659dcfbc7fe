"""Counts the moves of chunks that have ended, until the journal gets them."""

from dataclasses import dataclass

from polyrhythm.core.lead.chunks import Holder
from polyrhythm.core.machine import Reason
from polyrhythm.wire.messages.reasons import Field

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

"""Chooses the chunks that a slow worker gives away.

*Chunks whose points need not be sent, because the target has a copy, go first. Then come the chunks
that the worker has visited in this pass, the most recent one first: these chunks need no visit until the
next pass. Chunks that are not begun come last. The chunk that the worker is visiting is not given away,
and the worker keeps at least one chunk.*
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldChunk:
    """A chunk of the worker. The chunk that was visited last has the highest `visited`."""

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
    """Choose chunks with about `amount` points in all. `last_pass`: the number of passes after
    which the job ends; None if no number of passes ends it. `ends`: `amount` is a number of
    remaining visits, and not of points."""
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

"""How the model's buffers are folded: a buffer gets the mean over the workers that changed it, or
the value that the evaluator sends (`core/placement/slices.py`).

A *part* of a slice is one buffer in it, or the piece of a buffer that is in this slice. A worker
sends only the parts that it has changed. *A part that no worker has changed keeps its bits, so a
mask of minus infinity or a placeholder of NaN does no harm. The mean of a part uses the weights of
the workers that changed it.* `settle` divides the aggregate by these weights; replicas get the
result.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.tensors.absent import NO_GRADIENT
from polyrhythm.tensors.held import Held, State
from polyrhythm.tensors.held import Parts as Parts
from polyrhythm.tensors.rows import Incoming
from polyrhythm.tensors.updater import without_rows
from polyrhythm.wire.messages import SliceStep


def parts_length(slice_: Slice, parts: tuple[int, ...]) -> int | None:
    """Return how many elements these parts have together. None if the numbers are not ascending, or
    are not numbers of parts of the slice."""
    known = slice_.parts
    if any(not 0 <= part < len(known) for part in parts) or sorted(set(parts)) != list(parts):
        return None
    return sum(known[part][1] - known[part][0] for part in parts)


def pieces_of(
    slice_: Slice, incoming: torch.Tensor, parts: Parts
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each part of `incoming` with its number."""
    if parts is None:
        for part, (first, end) in enumerate(slice_.parts):
            yield part, incoming[first:end]
        return
    at = 0
    for part in parts:
        first, end = slice_.parts[part]
        yield part, incoming[at : at + end - first]
        at += end - first


class Buffers:
    """The updater of buffers. Floating-point buffers change by the weighted mean of the workers'
    changes. Integer buffers, such as BatchNorm's count of batches, get the largest value that a
    worker sent. The buffers in `Slice.values` get the value that was sent last: only the evaluator
    sends them."""

    takes_parts: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = False
    by_name: ClassVar[bool] = False
    writes_on_aggregate: ClassVar[bool] = False
    most_tensors: ClassVar[int] = 0
    enter = without_rows

    def add(self, held: Held, incoming: Incoming, weight: float, parts: Parts = None) -> None:
        assert isinstance(incoming, torch.Tensor)
        for part, piece in pieces_of(held.slice, incoming, parts):
            first, end = held.slice.parts[part]
            aggregate, begun = held.aggregate[first:end], part in held.part_weights
            if part in held.slice.values:
                aggregate.copy_(piece)
            elif not aggregate.is_floating_point():
                aggregate.copy_(torch.maximum(aggregate, piece) if begun else piece)
            elif begun:
                aggregate.add_(piece, alpha=weight)
            else:
                torch.mul(piece, weight, out=aggregate)
            held.part_weights[part] = held.part_weights.get(part, 0.0) + weight

    def settle(
        self,
        held: Held,
        scales: Mapping[int, float] | None = None,
        *,
        forwarded: bool = False,
    ) -> None:
        """Divide each part of the aggregate by its own weight, once. `scales`: without rounds, the
        fraction of a full step for each part."""
        if not held.part_weights:
            return
        floating = held.aggregate.is_floating_point()
        for part, (first, end) in enumerate(held.slice.parts):
            averaged = floating and part not in held.slice.values
            weight = held.part_weights.get(part)
            aggregate = held.aggregate[first:end]
            if weight is None and averaged:
                # no worker has changed this part: adding -0.0 leaves its bits as they are
                aggregate.fill_(NO_GRADIENT)
            elif weight is None:
                aggregate.copy_(held.parameters[first:end])
            elif averaged:
                aggregate.mul_((scales or {}).get(part, 1.0) / weight)
        held.part_weights.clear()
        held.weight = 1.0

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        """Fold each slice. `settle` has divided the parts by their weights, so the weight of a step
        only says whether there is anything to add."""
        for held, place, step in zip(slices, target, steps, strict=True):
            self.settle(held)
            if not step.weight:
                if place.data_ptr() != held.parameters.data_ptr():
                    place.copy_(held.parameters)
            elif place.is_floating_point():
                torch.add(held.parameters, held.aggregate, out=place)
                for part in held.slice.values:
                    first, end = held.slice.parts[part]
                    place[first:end].copy_(held.aggregate[first:end])
            else:
                place.copy_(held.aggregate)

    def export(self, held: Held) -> State:
        return {}

    def adopt(self, held: Held, state: State) -> None:
        pass

    def absorb(self, other: "Buffers") -> None:
        pass

    def drop(self, held: Held) -> None:
        pass


class Changers:
    """Without rounds: counts the workers that change each part.

    If P workers change a buffer, each contribution moves it by 1/P of its change, so that together
    they move it by their mean change. A worker whose last contribution did not change the part is
    not counted in P. A worker that has not contributed yet is counted."""

    def __init__(self) -> None:
        self._idle: dict[tuple[int, int], set[int]] = {}
        """Per slice and part, the workers whose last contribution did not change the part."""

    def forget(self, slice_: Slice) -> None:
        """Forget a slice that has moved to another server."""
        for part in range(len(slice_.parts)):
            self._idle.pop((slice_.id, part), None)

    def scales(
        self, held: Held, worker: int, parts: Parts, members: frozenset[int]
    ) -> dict[int, float]:
        """Note which parts this worker's contribution changes. Return, for each of these parts, the
        fraction of the change that is applied (1/P)."""
        count = len(held.slice.parts)
        changed = range(count) if parts is None else parts
        found = {}
        for part in range(count):
            idle = self._idle.setdefault((held.slice.id, part), set())
            if part in changed:
                idle.discard(worker)
                found[part] = 1 / max(1, len(members - idle))
            else:
                idle.add(worker)
        return found

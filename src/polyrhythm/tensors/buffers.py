"""How buffers are folded: each over the workers that changed it.

A worker sends only the parts of a slice (the buffers in it, or their ends) that it has changed. *A
part that no worker changed keeps its bits, so that a mask of minus infinity or a placeholder of NaN
does no harm; the mean of a part is taken over the weight of its own changes.* `settle` turns an
aggregate into the step of the fold, which replicas make too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.tensors.absent import NO_GRADIENT
from polyrhythm.tensors.held import Held, State
from polyrhythm.wire.messages import SliceStep

Parts = tuple[int, ...] | None
"""The numbers of a slice's parts that a contribution has, side by side; None: it has the whole
slice."""


def parts_length(slice_: Slice, parts: tuple[int, ...]) -> int | None:
    """Return how many elements these parts have; None if they are not parts of the slice in
    order."""
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
    """Floating-point buffers take the weighted mean of the changes. Integer buffers, such as
    BatchNorm's count of batches, take the largest value that a worker sent."""

    takes_parts: ClassVar[bool] = True
    writes_on_aggregate: ClassVar[bool] = False

    def add(self, held: Held, incoming: torch.Tensor, weight: float, parts: Parts = None) -> None:
        for part, piece in pieces_of(held.slice, incoming, parts):
            first, end = held.slice.parts[part]
            aggregate, begun = held.aggregate[first:end], part in held.part_weights
            if not aggregate.is_floating_point():
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
        """Divide each part by its own weight, once. `scales`: for each part, the share of a full
        step if contributions are folded one by one."""
        if not held.part_weights:
            return
        averaged = held.aggregate.is_floating_point()
        for part, (first, end) in enumerate(held.slice.parts):
            weight = held.part_weights.get(part)
            aggregate = held.aggregate[first:end]
            if weight is None and averaged:
                aggregate.fill_(NO_GRADIENT)  # x + -0.0 is x, for every x
            elif weight is None:
                aggregate.copy_(held.parameters[first:end])
            elif averaged:
                aggregate.mul_((scales or {}).get(part, 1.0) / weight)
        held.part_weights.clear()
        held.weight = 1.0

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        """Fold each slice. `settle` has scaled the parts, so the weight of a step only says whether
        there is a step."""
        for held, place, step in zip(slices, target, steps, strict=True):
            self.settle(held)
            if not step.weight:
                if place.data_ptr() != held.parameters.data_ptr():
                    place.copy_(held.parameters)
            elif place.is_floating_point():
                torch.add(held.parameters, held.aggregate, out=place)
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
    """Which workers change each part, where contributions are folded one by one.

    P workers that all change a buffer move it by 1/P of a change each, so that together they move it
    once. A worker whose last contribution left the part as it was is not one of the P; a worker that
    has not contributed yet is."""

    def __init__(self) -> None:
        self._idle: dict[tuple[int, int], set[int]] = {}
        """Per slice and part, the workers whose last contribution did not change it."""

    def forget(self, slice_: Slice) -> None:
        """Forget a slice that has moved to another server."""
        for part in range(len(slice_.parts)):
            self._idle.pop((slice_.id, part), None)

    def scales(
        self, held: Held, worker: int, parts: Parts, members: frozenset[int]
    ) -> dict[int, float]:
        """Note which parts this worker's contribution changes, and return the scale of each of
        them."""
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

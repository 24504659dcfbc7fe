"""The memory of slices that move between servers: a slot has at most one segment per slice, however
often slices move."""

import random

import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.server.slots import Slots

SLICES = 6
SLOTS = 3


def slice_of(number: int) -> Slice:
    return Slice(id=number, space=0, group=0, offset=8 * number, length=8)


def test_moves_add_no_segments_beyond_one_per_slice_and_slot() -> None:
    rng = random.Random(0)
    made: list[Segment] = []

    def allocate(nbytes: int) -> Segment:
        made.append(Segment(nbytes, shared=True))
        return made[-1]

    held = [slice_of(0), slice_of(1)]
    slots = Slots(held, [torch.float32] * len(held), allocate)
    for number in range(SLOTS):
        slots.at(number)
    for _ in range(200):
        held = [slice_of(n) for n in sorted(rng.sample(range(SLICES), rng.randint(1, SLICES)))]
        freed = slots.change(held, [torch.float32] * len(held), {})
        assert all(segment.fd is None for segment in freed)
        open_now = {segment.id for segment in made if segment.fd is not None}
        used = {segment.id for number in range(SLOTS) for segment in slots.at(number).segments}
        assert open_now == used, "a segment is neither used nor closed"
        assert len(used) <= SLOTS * len(held)
    slots.close()
    assert all(segment.fd is None for segment in made)

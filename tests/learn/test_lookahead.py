"""Batches that a process of a loader loads ahead. If such a batch does not fit any more, its points are
loaded again later."""

import random
from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch.utils.data import TensorDataset

from polyrhythm.learn.batches import Lookahead
from polyrhythm.learn.loading import loading_of
from polyrhythm.learn.points import Points
from tests.core.lead.data.plans import plan_of

POINTS = 200
EPOCHS = 3


def test_no_point_is_lost_or_visited_twice_when_sizes_and_leases_change() -> None:
    rng = random.Random(0)
    plan = plan_of(POINTS, 1, 3, EPOCHS)
    plan.share([(0, 1)])
    lease = plan.lease((0, 1))
    points = Points(lease, 1)
    sizes = [7]
    flushed = 0

    def size_of(ahead: Sequence[int]) -> int:
        return sizes[-1]

    loading = loading_of(TensorDataset(torch.arange(POINTS)), 7, num_workers=1)
    ahead = Lookahead(points, loading, 0, size_of, lambda asked: asked == sizes[-1])
    visited: list[list[int]] = []
    try:
        while (found := ahead.next(keep=1)) is not None:
            drawn, (batch,) = found
            assert len(batch) == drawn.points <= sizes[-1]
            visited.append(batch.tolist())
            match rng.randrange(8):
                case 0:
                    sizes.append(rng.randrange(3, 12))
                case 1:
                    lease = replace(lease, number=lease.number + 1)
                    assert not ahead.take(lease)
                case 2:
                    ahead.put_back(1)
                    flushed += 1
                    visited.pop()
    finally:
        ahead.close()
    assert len(sizes) > 2 and flushed > 2
    found_points = [point for batch in visited for point in batch]
    for first in range(0, EPOCHS * POINTS, POINTS):
        assert sorted(found_points[first : first + POINTS]) == list(range(POINTS))

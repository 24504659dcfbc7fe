"""Aware: the implemented parts of the paper. Each test quotes the sentence that it checks.

Implemented: slices of a given granularity, and a fair initial distribution. Not implemented, so not
tested: the optimal granularity (Eq. 4), forecast and probe messages that measure throughput (§3.2),
load that follows the measured throughput (Eqs. 8 to 14, Algorithm 1), the assignment of slices with
probe slices (Algorithm 2), and the systems that the paper compares itself with.
"""

from collections import Counter

import pytest

from polyrhythm.core.placement.ring import Ring
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.wire import messages as m


def model(*shapes: tuple[int, ...]) -> m.ModelSpec:
    tensors = tuple(
        m.TensorSpec(f"t{index}", shape, "float32", 0, (1,) * len(shape))
        for index, shape in enumerate(shapes)
    )
    return m.ModelSpec(tensors, m.OptimizerSpec("SGD", ({"lr": 0.1},)))


@pytest.mark.parametrize("granularity", [1024, 4096, 65536])
def test_data_is_segmented_by_the_granularity(granularity: int) -> None:
    """ "First of all, the data are segmented according to the established slice granularity." No
    slice is longer than the granularity, there are about size / granularity slices, and together
    they cover the model exactly once."""
    layout = lay_out(model((100, 300), (7,), (5000,)), 1, granularity)
    (space,) = layout.spaces
    assert all(0 < slice_.length * 4 <= granularity for slice_ in layout.slices)
    assert len(layout.slices) == -(-space.nbytes // granularity)
    covered = [at for s in layout.slices for at in range(s.offset, s.offset + s.length)]
    assert covered == list(range(space.length))


@pytest.mark.parametrize("nodes", [2, 3, 7])
def test_load_is_distributed_fairly_in_advance(nodes: int) -> None:
    """ "The first line of Algorithm 1 distributes the communication load of each node according to the
    principle of fairness in advance." Before training, the primaries are distributed evenly: no server
    has more than one slice more than another."""
    loads = Counter(route.primary for route in Ring(range(nodes)).place(100))
    assert sum(loads.values()) == 100 and len(loads) == nodes
    assert max(loads.values()) - min(loads.values()) <= 1

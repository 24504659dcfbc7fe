"""The point-wise interface: statistics and parameters as flat buffers, and algorithms with and
without memory."""

from collections.abc import Mapping

import numpy as np
import pytest

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Check, Memory, has_memory
from polyrhythm.learn.pointwise.layout import ArrayLayout, Arrays, Shape
from polyrhythm.learn.pointwise.local import fit_local


class Mean(Algorithm):
    """The mean of all points: an algorithm without memory that is final after one pass."""

    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        return {"mean": np.zeros(sample.x.shape[1])}

    def statistics(self, parameter: Arrays) -> Mapping[str, Shape]:
        return {"sum": parameter["mean"].shape, "count": ()}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        return {"sum": batch.x.sum(0), "count": np.asarray(float(len(batch)))}

    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        return {"mean": statistics["sum"] / statistics["count"]}

    def terminated(self, check: Check) -> bool:
        return bool(np.array_equal(check.old["mean"], check.new["mean"]))


class CountedOnce(Mean):
    """The mean of all points, by an algorithm with memory: a point adds its summand at its first visit
    only."""

    def memory(self, count: int) -> Memory:
        return {"counted": np.zeros(count, np.bool_)}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        fresh = batch.part(~memory["counted"])
        memory["counted"][...] = True
        return super().update_points(fresh, parameter, memory)


@pytest.mark.parametrize("algorithm", [Mean(), CountedOnce()])
def test_the_sum_contains_every_point_once_with_and_without_memory(algorithm: Algorithm) -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    found = fit_local(algorithm, Batch(x), rng=np.random.default_rng(1), max_passes=9)
    assert np.allclose(found.parameter["mean"], x.mean(0))
    assert found.terminated
    assert found.passes == 2
    assert has_memory(algorithm) == isinstance(algorithm, CountedOnce)


def test_a_layout_gives_back_what_was_made_flat() -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.asarray(7.0), "c": np.arange(2.0)}
    layout = ArrayLayout.of(arrays)
    assert layout.size == 9
    buffer = layout.flat(arrays)
    assert buffer.dtype == np.float64
    found = layout.views(buffer)
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
    found["a"][0, 0] = 5.0
    assert buffer[0] == 5.0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"sum": np.zeros(2)}, "must be 'sum', 'count', but the algorithm returned 'sum'"),
        ({"sum": np.zeros(3), "count": np.zeros(())}, "'sum' of the statistics has the shape"),
        ({"sum": np.zeros((2, 1)), "count": np.zeros(())}, r"shape \(2, 1\), but must have \(2,\)"),
        ({"sum": np.array([1.0, np.nan]), "count": np.zeros(())}, "'sum' of the .* not finite"),
    ],
)
def test_statistics_of_a_wrong_name_shape_or_value_are_named(arrays: Arrays, message: str) -> None:
    layout = ArrayLayout.of_shapes({"sum": (2,), "count": ()})
    with pytest.raises(UsageError, match=message):
        layout.flat(arrays)


def test_a_part_of_a_batch_has_its_labels_and_weights() -> None:
    batch = Batch(np.arange(8.0).reshape(4, 2), np.arange(4), np.arange(4.0))
    part = batch.part(slice(1, 3))
    assert part.y is not None
    assert part.weight is not None
    assert (len(part), part.y.tolist(), part.weight.tolist()) == (2, [1, 2], [1.0, 2.0])
    assert np.shares_memory(part.x, batch.x)


def test_the_gain_of_a_check_is_how_far_the_objective_has_fallen() -> None:
    parameter = {"mean": np.zeros(1)}
    assert Check(2, parameter, parameter, 5.0, 7.0).gain == 2.0
    assert Check(3, parameter, parameter, 5.0, None).gain == np.inf
    assert Check(3, parameter, parameter, None, None).gain == np.inf

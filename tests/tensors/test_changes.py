"""The buffers of a worker: what is sent of them, and what a new version does to them."""

import math

import pytest
import torch

from polyrhythm.core.placement.slices import FIRST, LOCAL, MEAN, lay_out
from polyrhythm.tensors.changes import BufferChanges
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec, TensorSpec


class Buffers:
    """One buffer of a worker. `own`: the tensor of the user's model, if the buffer is not averaged."""

    def __init__(
        self,
        values: list[float],
        dtype: torch.dtype = torch.float32,
        *,
        sharing: str = MEAN,
        aside: bool = False,
        evaluates: bool = False,
    ) -> None:
        self.evaluates = evaluates
        first = torch.tensor(values, dtype=dtype)
        name = str(dtype).removeprefix("torch.")
        spec = TensorSpec("buffer", (len(values),), name, -1, (1,), sharing=sharing)
        weight = TensorSpec("weight", (1,), "float32", 0, (1,))
        self.layout = lay_out(
            ModelSpec((weight, spec), OptimizerSpec("SGD", ({"lr": 0.1},))), 1, 4096
        )
        sizes = [(space.length, getattr(torch, space.dtype)) for space in self.layout.spaces]
        self.flat = [torch.zeros(size, dtype=kind) for size, kind in sizes]
        self.here = [torch.zeros_like(each) for each in self.flat] if aside else self.flat
        self.push = [torch.zeros_like(each) for each in self.flat]
        self.place = self.layout.places[1]
        self.own = first.clone()
        for spaces in (self.flat, self.here):
            self.of(spaces).copy_(first)
        self.changes = BufferChanges(
            self.layout,
            self.flat,
            self.here,
            aside=aside,
            own={} if sharing == MEAN else {1: self.own},
            evaluates=lambda: self.evaluates,
        )
        self.changes.adopt()

    def of(self, spaces: list[torch.Tensor]) -> torch.Tensor:
        return spaces[self.place.space][self.place.offset : self.place.offset + self.place.length]

    @property
    def sent(self) -> list[float]:
        """What is sent now; empty if the buffer has not changed."""
        self.changes.fill(self.push)
        changed = any(self.changes.changed.values())
        return self.of(self.push).tolist() if changed else []


def test_an_element_that_stays_infinite_has_the_change_zero() -> None:
    buffers = Buffers([-math.inf, 1.0, math.inf])
    buffers.of(buffers.flat)[1] = 3.0
    assert buffers.sent == [0.0, 2.0, 0.0]


@pytest.mark.parametrize(("mine", "arrived"), [(12, 40), (40, 12)])
def test_a_count_that_has_changed_here_and_on_the_servers_is_the_larger_one(
    mine: int, arrived: int
) -> None:
    """With a policy that trains through, the version arrives while the worker counts on."""
    buffers = Buffers([10], torch.int64, aside=True)
    assert buffers.sent == []
    buffers.of(buffers.flat).fill_(mine)
    buffers.of(buffers.here).fill_(arrived)
    buffers.changes.rebase()
    assert buffers.of(buffers.flat).tolist() == [40]


def test_what_has_changed_since_the_last_contribution_is_added_to_a_new_version() -> None:
    buffers = Buffers([1.0, 1.0], aside=True)
    buffers.of(buffers.flat)[0] = 2.0
    assert buffers.sent == [1.0, 0.0]
    buffers.of(buffers.flat)[1] = 5.0
    buffers.of(buffers.here).copy_(torch.tensor([1.5, 1.25]))
    buffers.changes.rebase()
    assert buffers.of(buffers.flat).tolist() == [1.5, 5.25]
    assert buffers.sent == [0.0, 4.0]


def test_a_change_whose_contribution_is_in_flight_is_not_sent_again() -> None:
    buffers = Buffers([1.0, 1.0], aside=True)
    buffers.of(buffers.flat)[0] = 2.0
    assert buffers.sent == [1.0, 0.0]
    buffers.of(buffers.flat)[1] = 5.0
    buffers.changes.set_apart()
    assert buffers.sent == [0.0, 4.0]


def test_a_buffer_of_its_own_that_is_not_finite_gets_its_last_values_again() -> None:
    buffers = Buffers([1.0, 2.0], sharing=LOCAL)
    buffers.own[0] = math.nan
    buffers.changes.restore()
    assert buffers.own.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("sharing", [FIRST, LOCAL])
def test_the_evaluator_keeps_its_own_values_and_others_take_those_of_first(
    sharing: str, evaluates: bool
) -> None:
    """The version that arrives may be older than what the evaluator has computed since."""
    buffers = Buffers([1.0], sharing=sharing, evaluates=evaluates)
    buffers.own.fill_(7.0)
    buffers.of(buffers.here).fill_(3.0)
    buffers.changes.adopt()
    assert buffers.own.tolist() == ([3.0] if sharing == FIRST and not evaluates else [7.0])


def test_an_element_that_stays_nan_has_the_change_zero() -> None:
    """NaN does not equal itself; an element that holds a place is often NaN."""
    buffers = Buffers([math.nan, 1.0])
    buffers.of(buffers.flat)[1] = 3.0
    assert buffers.sent == [0.0, 2.0]


def test_a_buffer_that_lies_otherwise_in_memory_is_sent_in_the_order_of_its_elements() -> None:
    buffers = Buffers([1.0, 2.0], sharing=LOCAL, evaluates=True)
    buffers.own.data = torch.tensor([5.0, 0.0, 6.0, 0.0])[::2]
    assert buffers.sent == [5.0, 6.0]


def test_what_was_left_out_of_a_contribution_is_taken_back_by_the_next_version() -> None:
    """No worker has sent this buffer, so the version does not contain it."""
    buffers = Buffers([1.0])
    buffers.of(buffers.flat).fill_(9.0)
    (slice_,) = [s for s in buffers.layout.slices if buffers.layout.spaces[s.space].buffers]
    buffers.changes.land(slice_, (), memoryview(b""))
    assert buffers.of(buffers.flat).tolist() == [1.0]


def test_a_buffer_of_its_own_that_was_sent_is_not_sent_again_after_a_version_without_it() -> None:
    """The version names no part of the slice, because no buffer has changed since."""
    buffers = Buffers([1.0], sharing=LOCAL, evaluates=True)
    buffers.own.fill_(7.0)
    assert buffers.sent == [7.0]
    (slice_,) = [s for s in buffers.layout.slices if buffers.layout.spaces[s.space].buffers]
    buffers.changes.land(slice_, (), memoryview(b""))
    assert buffers.sent == []


def test_an_infinite_element_stays_infinite_when_a_version_arrives() -> None:
    """The difference of two infinities would be NaN."""
    buffers = Buffers([math.inf, 1.0], aside=True)
    assert buffers.sent == []
    buffers.of(buffers.flat)[1] = 3.0
    buffers.of(buffers.here)[1] = 1.5
    buffers.changes.rebase()
    assert buffers.of(buffers.flat).tolist() == [math.inf, 3.5]

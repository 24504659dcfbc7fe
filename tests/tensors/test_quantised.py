"""Quantised slices: the numbers that a server decodes are close to those of the worker, and the
worker keeps the difference."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.kinds import BLOCK, may_be_quantised, quantised_nbytes, quantised_slices
from polyrhythm.core.placement.slices import Slice, lay_out
from polyrhythm.errors import LinkError
from polyrhythm.tensors.quantised import Quantiser, read_quantised
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec, Route, TensorSpec

FLOATS = ["float32", "float64", "bfloat16", "float16"]


def spec_of(*tensors: TensorSpec) -> ModelSpec:
    return ModelSpec(tensors, OptimizerSpec("SGD", ({"lr": 0.1},)))


def slice_of(length: int, *ends: int) -> Slice:
    """A slice of this length with tensors that end at `ends`."""
    firsts = (0, *ends[:-1]) if ends else ()
    parts = tuple(zip(firsts, ends, strict=True)) if ends else ((0, length),)
    return Slice(7, 0, 0, 0, length, parts)


def payload_for(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    item = 8 if dtype == torch.float64 else 4
    return torch.zeros(-(-length // BLOCK) * item + length, dtype=torch.uint8)


def bytes_of(payload: torch.Tensor) -> memoryview:
    return memoryview(payload.numpy().tobytes())


def sent(quantiser: Quantiser, slice_: Slice, numbers: torch.Tensor) -> torch.Tensor:
    payload = payload_for(slice_.length, numbers.dtype)
    quantiser.quantise(slice_, numbers, payload)
    return read_quantised(slice_, bytes_of(payload), numbers.dtype)


def random(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [16, 255, 256, 257, 1000, 4096])
def test_every_number_is_read_within_half_a_step_of_its_block(length: int) -> None:
    numbers = random(length) * torch.logspace(-6, 6, length)
    read = sent(Quantiser(keeps_residuals=True), slice_of(length), numbers)
    for first in range(0, length, BLOCK):
        block = slice(first, first + BLOCK)
        step = float(numbers[block].abs().max()) / 127
        assert float((read[block] - numbers[block]).abs().max()) <= step * 0.5001


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_numbers_of_every_floating_dtype_are_read_in_their_own_dtype(dtype: torch.dtype) -> None:
    numbers = random(600).to(dtype)
    read = sent(Quantiser(keeps_residuals=True), slice_of(600), numbers)
    assert read.dtype == dtype
    assert float((read.double() - numbers.double()).abs().max()) < 0.02


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 700),
    st.integers(0, 10**6),
    st.floats(1e-6, 1e6),
)
def test_what_was_sent_and_the_residual_add_up_to_all_contributions(
    steps: int, length: int, seed: int, size: float
) -> None:
    quantiser, slice_ = Quantiser(keeps_residuals=True), slice_of(length)
    total, read = torch.zeros(length, dtype=torch.float64), torch.zeros(length, dtype=torch.float64)
    for step in range(steps):
        numbers = random(length, seed + step) * size
        total += numbers.double()
        read += sent(quantiser, slice_, numbers.clone()).double()
    residual = quantiser.residual(slice_.id)
    assert residual is not None
    torch.testing.assert_close(read + residual.double(), total, rtol=1e-5, atol=1e-5 * size)


def test_small_numbers_beside_a_large_one_arrive_after_some_contributions() -> None:
    numbers = torch.full((BLOCK,), 1e-3)
    numbers[0] = 1.0
    quantiser, slice_ = Quantiser(keeps_residuals=True), slice_of(BLOCK)
    read = torch.zeros(BLOCK)
    for _ in range(100):
        read += sent(quantiser, slice_, numbers.clone())
    torch.testing.assert_close(read / 100, numbers, rtol=0.1, atol=1e-4)
    once = sent(Quantiser(keeps_residuals=True), slice_, numbers.clone())
    assert float(once[1]) == 0.0


def test_without_residuals_the_numbers_become_what_the_server_reads() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        numbers = random(700).to(dtype)
        read = sent(Quantiser(keeps_residuals=False), slice_of(700), numbers)
        assert torch.equal(numbers, read)


def test_zeros_and_numbers_below_the_normal_range_are_sent_as_zero() -> None:
    numbers = torch.zeros(3 * BLOCK)
    numbers[BLOCK : 2 * BLOCK] = 1e-40
    numbers[2 * BLOCK :] = 1e-37
    quantiser, slice_ = Quantiser(keeps_residuals=True), slice_of(3 * BLOCK)
    payload = payload_for(3 * BLOCK)
    quantiser.quantise(slice_, numbers, payload)
    read = read_quantised(slice_, bytes_of(payload), torch.float32)
    assert not read.any() and not read.signbit().any()
    residual = quantiser.residual(slice_.id)
    assert residual is not None and torch.equal(residual, numbers)


def test_the_largest_numbers_of_a_dtype_stay_finite() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        largest = torch.finfo(dtype).max
        numbers = torch.tensor([largest, -largest, 0.0] * 100, dtype=dtype)
        quantiser, slice_ = Quantiser(keeps_residuals=True), slice_of(300)
        for _ in range(3):  # from the second time on, the residual is added to the largest number
            read = sent(quantiser, slice_, numbers.clone())
            assert bool(read.isfinite().all())
            assert float(read[0]) > 0.98 * largest and float(read[1]) < -0.98 * largest


def test_a_tensor_without_a_gradient_keeps_its_meaning_and_its_residual() -> None:
    slice_ = slice_of(640, 300, 310, 640)
    quantiser = Quantiser(keeps_residuals=True)
    sent(quantiser, slice_, random(640))
    before = quantiser.residual(slice_.id)
    assert before is not None
    before = before.clone()
    numbers = random(640, 1)
    numbers[300:310] = -0.0
    read = sent(quantiser, slice_, numbers)
    assert not read[300:310].any() and bool(read[300:310].signbit().all())
    after = quantiser.residual(slice_.id)
    assert after is not None and torch.equal(after[300:310], before[300:310])
    assert bool(before[300:310].any())


def test_a_gradient_that_rounds_to_zero_is_not_taken_for_a_missing_one() -> None:
    numbers = torch.full((BLOCK,), -1e-9)
    numbers[-1] = 1.0
    slice_ = slice_of(BLOCK, 100, BLOCK)
    read = sent(Quantiser(keeps_residuals=True), slice_, numbers)
    assert not read[:100].any() and not read[:100].signbit().any()


def test_minus_zero_within_a_gradient_is_sent_as_zero() -> None:
    numbers = random(BLOCK)
    numbers[:5] = -0.0
    read = sent(Quantiser(keeps_residuals=True), slice_of(BLOCK), numbers)
    assert not read[:5].any()


def test_forgotten_residuals_are_not_added_again() -> None:
    quantiser, slice_ = Quantiser(keeps_residuals=True), slice_of(500)
    first = sent(quantiser, slice_, random(500))
    quantiser.forget()
    assert torch.equal(sent(quantiser, slice_, random(500)), first)


def test_equal_contributions_have_equal_bytes() -> None:
    payloads = [payload_for(1000), payload_for(1000)]
    for payload in payloads:
        Quantiser(keeps_residuals=True).quantise(slice_of(1000), random(1000), payload)
    assert torch.equal(*payloads)


# -- payloads that no worker sends ---------------------------------------------------------------


def quantised(slice_: Slice, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    payload = payload_for(slice_.length, dtype)
    Quantiser(keeps_residuals=True).quantise(slice_, random(slice_.length).to(dtype), payload)
    return payload


@pytest.mark.parametrize("more", [-1, 1, 4, -600])
def test_a_payload_of_another_size_is_refused(more: int) -> None:
    slice_ = slice_of(600)
    data = bytes(bytes_of(quantised(slice_))) + bytes(max(0, more))
    with pytest.raises(LinkError, match="when it is quantised"):
        read_quantised(slice_, memoryview(data[: len(data) + min(0, more)]), torch.float32)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -1.0, 3e38])
def test_a_scale_that_is_not_one_is_refused(scale: float) -> None:
    slice_ = slice_of(600)
    payload = quantised(slice_)
    payload[:12].view(torch.float32)[1] = scale
    with pytest.raises(LinkError, match="negative, too large or NaN"):
        read_quantised(slice_, bytes_of(payload), torch.float32)


def test_a_scale_that_half_precision_cannot_hold_is_refused() -> None:
    slice_ = slice_of(600)
    payload = quantised(slice_, torch.float16)
    payload[:12].view(torch.float32)[2] = 600.0
    with pytest.raises(LinkError, match="negative, too large or NaN"):
        read_quantised(slice_, bytes_of(payload), torch.float16)


def test_the_integer_of_a_missing_gradient_among_others_is_refused() -> None:
    slice_ = slice_of(600, 300, 600)
    payload = quantised(slice_)
    payload[-1] = 128
    with pytest.raises(LinkError, match="-128"):
        read_quantised(slice_, bytes_of(payload), torch.float32)


def test_quantised_integers_are_refused() -> None:
    with pytest.raises(LinkError, match="int64"):
        read_quantised(slice_of(600), bytes_of(payload_for(600)), torch.int64)


# -- which slices are quantised ------------------------------------------------------------------


def test_buffers_integers_and_rows_are_sent_exactly() -> None:
    spec = spec_of(
        TensorSpec("weight", (4000,), "float32", 0, (1,)),
        TensorSpec("embedding", (64, 16), "float32", 0, (16, 1), rows=True),
        TensorSpec("mean", (300,), "float32", -1, (1,)),
        TensorSpec("count", (1,), "int64", -1, (1,)),
    )
    layout = lay_out(spec, 2, 1 << 20)
    names = {
        place.tensor.name
        for slice_ in layout.slices
        if may_be_quantised(layout, slice_)
        for place in layout.places
        if place.space == slice_.space
        and slice_.offset <= place.offset < slice_.offset + slice_.length
    }
    assert names == {"weight"}


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_size_of_a_slice_is_that_of_its_payload(dtype: str) -> None:
    layout = lay_out(spec_of(TensorSpec("weight", (5000,), dtype, 0, (1,))), 2, 1 << 20)
    for slice_ in layout.slices:
        payload = payload_for(slice_.length, getattr(torch, dtype))
        assert quantised_nbytes(layout, slice_) == len(payload)


def test_float32_needs_a_quarter_of_the_bytes() -> None:
    layout = lay_out(spec_of(TensorSpec("weight", (60_000,), "float32", 0, (1,))), 2, 1 << 20)
    nbytes = sum(quantised_nbytes(layout, slice_) for slice_ in layout.slices)
    assert nbytes <= 0.256 * layout.nbytes


def test_only_slices_whose_primary_is_reached_over_tcp_are_quantised() -> None:
    layout = lay_out(spec_of(TensorSpec("weight", (4096,), "float32", 0, (1,))), 2, 1 << 20)
    routes = [Route(slice_.id % 2) for slice_ in layout.slices]
    assert quantised_slices("int8", layout, routes, ()) == {0, 1}
    assert quantised_slices("int8", layout, routes, {0}) == {1}
    assert quantised_slices("int8", layout, routes, {0, 1}) == frozenset()
    assert quantised_slices("exact", layout, routes, ()) == frozenset()

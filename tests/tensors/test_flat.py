"""A worker's model in flat memory: parameters are views into one buffer, and contributions have the
layout of this buffer."""

import pytest
import torch

from polyrhythm.core.placement.slices import lay_out
from polyrhythm.errors import NotFinite, UsageError
from polyrhythm.tensors.dtypes import DTYPES, NAMES
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec, TensorSpec


class Mixed(torch.nn.Module):
    """A model with two parameter groups, a channels-last convolution, and floating-point and
    integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolution = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm1d(5)
        self.precise = torch.nn.Parameter(torch.randn(7, dtype=torch.float64))


def flatten(
    model: torch.nn.Module, wire: str = "same"
) -> tuple[FlatModel, list[torch.Tensor], list[str]]:
    named = [(name, p, 0) for name, p in model.named_parameters()]
    named += [(name, b, -1) for name, b in model.named_buffers()]
    spec = ModelSpec(
        tuple(
            TensorSpec(name, tuple(t.shape), NAMES[t.dtype], group, tuple(t.stride()))
            for name, t, group in named
        ),
        OptimizerSpec("SGD", ({"lr": 0.1},)),
    )
    tensors = [tensor for _, tensor, _ in named]
    flat = FlatModel(lay_out(spec, 2, 64), tensors, wire)
    return flat, tensors, [name for name, _, _ in named]


def buffers(flat: FlatModel) -> list[torch.Tensor]:
    _, tensors = flat.push_buffers(lambda nbytes: memoryview(bytearray(nbytes)))
    for tensor in tensors:
        tensor.fill_(77)
    return tensors


def test_attaching_changes_no_value_and_no_shape() -> None:
    model = Mixed()
    before = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    strides = [tensor.stride() for tensor in (*model.parameters(), *model.buffers())]
    _, tensors, _ = flatten(model)
    for tensor, old, stride in zip(tensors, before, strides, strict=True):
        assert torch.equal(tensor, old)
        assert tensor.stride() == stride


def test_parameters_live_in_the_flat_memory() -> None:
    flat, tensors, _ = flatten(Mixed())
    for slice_ in flat.layout.slices:
        memory = flat.memory_of(slice_)
        assert memory is not None
        memory[:] = bytes(len(memory))
    assert not any(tensor.any() for tensor in tensors)


@pytest.mark.parametrize("wire", ["same", "bf16"])
def test_slices_can_be_sent_from_one_model_to_another(wire: str) -> None:
    one, sources, _ = flatten(Mixed(), wire)
    other, targets, _ = flatten(Mixed(), wire)
    for tensor in targets:
        tensor.data.zero_()
    for slice_ in one.layout.slices:
        data = one.seed(slice_)
        assert data.numel() * data.element_size() == one.wire_range(slice_)[1]
        other.land(slice_, memoryview(data.view(torch.uint8).numpy()))
    for source, target in zip(sources, targets, strict=True):
        if wire == "bf16" and source.dtype == torch.float32 and source.requires_grad:
            source = source.bfloat16().float()
        assert torch.equal(source, target)


def test_bf16_is_used_for_parameters_and_not_for_buffers() -> None:
    flat, _, _ = flatten(Mixed(), "bf16")
    sizes = {
        (space.dtype, space.buffers): tensor.dtype
        for space, tensor in zip(flat.layout.spaces, buffers(flat), strict=True)
    }
    assert sizes == {
        ("float32", False): torch.bfloat16,
        ("float64", False): torch.float64,
        ("float32", True): torch.float32,
        ("int64", True): torch.int64,
    }
    float32 = next(s for s in flat.layout.slices if flat.layout.spaces[s.space].dtype == "float32")
    assert flat.memory_of(float32) is None, "it must be converted, so it cannot land in place"


def gradients(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.requires_grad:
            tensor.grad = torch.randn_like(tensor)


def laid(flat: FlatModel, push: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the contents of push buffers as tensors, with the shapes and in the order of the
    model."""
    return [
        push[place.space][place.offset : place.offset + place.length].as_strided(
            place.tensor.shape, place.tensor.strides
        )
        for place in sorted(flat.layout.places, key=lambda place: place.index)
    ]


def test_gradients_have_the_layout_of_their_parameters() -> None:
    flat, tensors, _ = flatten(Mixed())
    gradients(tensors)
    flat.remember(parameters=False)
    push = buffers(flat)
    for _ in range(2):
        flat.fill_gradients(push)
        for tensor, there in zip(tensors, laid(flat, push), strict=True):
            if tensor.requires_grad:
                assert torch.equal(there, tensor.grad)


def test_filling_one_push_buffer_does_not_change_another() -> None:
    flat, tensors, _ = flatten(Mixed())
    flat.remember(parameters=False)
    one, other = buffers(flat), buffers(flat)
    gradients(tensors)
    flat.fill_gradients(one)
    first = [tensor.clone() for tensor in one]
    gradients(tensors)
    flat.fill_gradients(other)
    assert all(torch.equal(a, b) for a, b in zip(one, first, strict=True))
    assert not torch.equal(one[0], other[0])


def test_a_parameter_without_gradient_contributes_negative_zeros() -> None:
    flat, tensors, _ = flatten(Mixed())
    gradients(tensors)
    tensors[0].grad = None
    flat.remember(parameters=False)
    push = buffers(flat)
    flat.fill_gradients(push)
    found = laid(flat, push)[0]
    assert not found.any()
    assert found.signbit().all()


def test_buffers_contribute_their_change_and_integers_their_value() -> None:
    model = Mixed()
    flat, tensors, names = flatten(model)
    gradients(tensors)
    flat.remember(parameters=False)
    model.norm.running_mean.add_(2.5)
    model.norm.num_batches_tracked.add_(3)
    push = buffers(flat)
    flat.fill_gradients(push)
    there = dict(zip(names, laid(flat, push), strict=True))
    assert torch.equal(there["norm.running_mean"], torch.full((5,), 2.5))
    assert there["norm.num_batches_tracked"].item() == 3
    sent = {
        place.tensor.name
        for slice_ in flat.layout.slices
        for part in flat.changed.get(slice_.id, ())
        for place in flat.layout.places
        if place.space == slice_.space and place.offset == slice_.offset + slice_.parts[part][0]
    }
    assert sent == {"norm.running_mean", "norm.num_batches_tracked"}, "a constant one stays here"


def test_changes_are_counted_from_the_remembered_parameters() -> None:
    flat, tensors, _ = flatten(Mixed())
    flat.remember(parameters=True)
    moves = [torch.ones_like(tensor) * (index + 1) for index, tensor in enumerate(tensors)]
    base = [tensor.detach().clone() for tensor in tensors]
    for tensor, move in zip(tensors, moves, strict=True):
        tensor.data.add_(move)
    push = buffers(flat)
    flat.fill_changes(push)
    for tensor, old, there in zip(tensors, base, laid(flat, push), strict=True):
        expected = tensor.detach() - old if there.is_floating_point() else tensor
        assert torch.equal(there, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_tensor_with_nan_or_infinity_is_named_and_not_sent(bad: float) -> None:
    flat, tensors, names = flatten(Mixed())
    gradients(tensors)
    flat.remember(parameters=False)
    wrong = names.index("norm.weight")
    tensors[wrong].grad.view(-1)[3] = bad
    with pytest.raises(NotFinite, match=r"the gradient of 'norm\.weight' holds NaN or infinity"):
        flat.fill_gradients(buffers(flat))


def test_large_tensors_are_checked_to_their_last_element() -> None:
    model = torch.nn.Linear(1024, 600, bias=False)
    flat, tensors, _ = flatten(model)
    gradients(tensors)
    push = buffers(flat)
    flat.fill_gradients(push)
    assert torch.equal(laid(flat, push)[0], model.weight.grad)
    model.weight.grad[-1, -1] = float("nan")
    with pytest.raises(NotFinite, match="weight"):
        flat.fill_gradients(push)


@pytest.mark.parametrize("rows", [2, 600])
def test_a_gradient_with_other_strides_than_its_parameter_keeps_its_elements(rows: int) -> None:
    """Torch lets a gradient be transposed in memory. A large gradient is copied in pieces."""
    model = torch.nn.Linear(1024, rows, bias=False)
    flat, _, _ = flatten(model)
    model.weight.grad = torch.randn(1024, rows).t()
    push = buffers(flat)
    flat.fill_gradients(push)
    assert torch.equal(laid(flat, push)[0], model.weight.grad)


@pytest.mark.parametrize("rows", [2, 600])
def test_numbers_that_overflow_the_wire_dtype_are_not_sent(rows: int) -> None:
    """The largest float32 rounds to infinity in bf16."""
    model = torch.nn.Linear(1024, rows, bias=False)
    flat, tensors, _ = flatten(model, "bf16")
    gradients(tensors)
    model.weight.grad[-1, -1] = torch.finfo(torch.float32).max
    with pytest.raises(NotFinite, match="weight"):
        flat.fill_gradients(buffers(flat))


def test_a_parameter_that_was_replaced_is_noticed() -> None:
    model = Mixed()
    flat, _, _ = flatten(model)
    flat.check_homes()
    model.precise.data = torch.zeros(7, dtype=torch.float64)
    with pytest.raises(
        UsageError, match="the parameter 'precise' is not in the memory that attach"
    ):
        flat.check_homes()


def test_reading_in_place_points_at_the_versions_own_memory() -> None:
    one, sources, _ = flatten(Mixed())
    other, targets, _ = flatten(Mixed())
    for tensor in sources:
        tensor.data.fill_(9)
    memory = bytearray()
    for space in range(len(one.layout.spaces)):
        for slice_ in (s for s in one.layout.slices if s.space == space):
            part = one.memory_of(slice_)
            assert part is not None
            memory += part
    other.read_in_place(memoryview(memory))
    assert all(torch.equal(a, b) for a, b in zip(sources, targets, strict=True))
    other.check_homes()


def test_every_dtype_has_a_name() -> None:
    assert {NAMES[dtype]: dtype for dtype in NAMES} == DTYPES


def test_an_empty_parameter_does_not_mix_up_the_push_buffers() -> None:
    model = torch.nn.Module()
    model.nothing = torch.nn.Parameter(torch.empty(0))
    model.something = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    flat, tensors, _ = flatten(model)
    gradients(tensors)
    one, other = buffers(flat), buffers(flat)
    flat.fill_gradients(one)
    flat.fill_gradients(other)
    assert torch.equal(laid(flat, other)[1], model.something.grad)

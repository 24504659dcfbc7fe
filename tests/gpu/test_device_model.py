"""A model on a device contributes and receives the same numbers as one in host memory, and the host
waits once per contribution."""

import copy
import math

import pytest
import torch

from polyrhythm.core.placement.slices import lay_out
from polyrhythm.errors import NotFinite
from polyrhythm.io.segments import Segment
from polyrhythm.tensors.copies import DeferredCopies
from polyrhythm.tensors.device_model import DeviceModel
from polyrhythm.tensors.dtypes import NAMES
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec, TensorSpec
from tests.gpu.conftest import Place


class Mixed(torch.nn.Module):
    """A model with a channels-last convolution, two dtypes, a layer of several slices that are
    copied early, and floating-point and integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.convolution = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.wide = torch.nn.Linear(500, 300)
        self.norm = torch.nn.BatchNorm1d(5)
        self.precise = torch.nn.Parameter(torch.zeros(7, dtype=torch.float64))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


class Pair:
    """The same model in host memory and on a device."""

    def __init__(self, place: Place, wire: str, *, pins: bool = True, aside: bool = False) -> None:
        here = Mixed()
        there = copy.deepcopy(here).to(place.device)
        self.copies = place.copies(pins=pins)
        self.tensors = [[*model.parameters(), *model.buffers()] for model in (here, there)]
        layout = lay_out(_spec(here), 1, 600_000)
        self.host = FlatModel(layout, self.tensors[0], wire, aside=aside)
        self.device = DeviceModel(layout, self.tensors[1], wire, self.copies, aside=aside)
        self.push = [_push(self.host), _push(self.device)]
        self.land(self.version(0))
        for model in self.models:
            model.remember(parameters=True)

    @property
    def models(self) -> tuple[FlatModel, FlatModel]:
        return self.host, self.device

    def version(self, seed: int) -> dict[int, bytes]:
        """A version with random parameters and buffers, as the bytes of its slices."""
        generator = torch.Generator().manual_seed(seed)
        found = {}
        for slice_ in self.host.layout.slices:
            wire = self.host.seed(slice_).dtype
            numbers = torch.rand(slice_.length, generator=generator) * 9 + 1
            found[slice_.id] = numbers.to(wire).view(torch.uint8).numpy().tobytes()
        return found

    def land(self, version: dict[int, bytes]) -> None:
        """Deliver a version to both models. Its parameters are used at once, unless it arrives aside, in
        a separate buffer."""
        for model in self.models:
            for slice_ in model.layout.slices:
                model.land(slice_, memoryview(version[slice_.id]))
        if not self.host.aside:
            self.device.adopt()

    def compute(self, seed: int) -> None:
        """Give both models the same gradients, and the same changes of parameters and buffers."""
        for tensors in self.tensors:
            generator = torch.Generator().manual_seed(seed)
            for tensor in tensors:
                change = torch.rand(tensor.shape, generator=generator).to(tensor.dtype) + 1
                tensor.data.add_(change.to(tensor.device))
                if tensor.requires_grad:
                    gradient = torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
                    tensor.grad = gradient.to(tensor.device)

    def on_device(self, name: str) -> torch.Tensor:
        names = [tensor.name for tensor in _spec(Mixed()).tensors]
        return self.tensors[1][names.index(name)]

    def assert_same_contribution(self) -> None:
        one, other = self.push
        assert self.host.changed == self.device.changed
        assert self.host.indices == self.device.indices
        for mine, theirs in zip(one, other, strict=True):
            assert torch.equal(mine, theirs)

    def assert_same_tensors(self) -> None:
        for mine, theirs in zip(*self.tensors, strict=True):
            assert torch.equal(mine, theirs.cpu())


def _spec(model: torch.nn.Module) -> ModelSpec:
    named = [(name, p, 0) for name, p in model.named_parameters()]
    named += [(name, b, -1) for name, b in model.named_buffers()]
    return ModelSpec(
        tuple(
            TensorSpec(name, tuple(t.shape), NAMES[t.dtype], group, tuple(t.stride()))
            for name, t, group in named
        ),
        OptimizerSpec("SGD", ({"lr": 0.1},)),
    )


def _push(model: FlatModel) -> list[torch.Tensor]:
    _, tensors = model.push_buffers(lambda nbytes: Segment(nbytes, shared=True).memory)
    for tensor in tensors:
        tensor.zero_()
    return tensors


@pytest.fixture(params=["same", "bf16"])
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("pins", [True, False])
def test_gradients_are_the_same_from_a_device_and_from_the_host(
    place: Place, wire: str, pins: bool
) -> None:
    pair = Pair(place, wire, pins=pins)
    for seed in range(3):
        pair.compute(seed)
        pair.tensors[0][1].grad = pair.tensors[1][1].grad = None
        for model, push in zip(pair.models, pair.push, strict=True):
            model.fill_gradients(push)
        pair.assert_same_contribution()
        pair.land(pair.version(seed))
        pair.assert_same_tensors()
        for model in pair.models:
            model.remember(parameters=False)


@pytest.mark.parametrize("pins", [True, False])
def test_changes_are_the_same_from_a_device_and_from_the_host(
    place: Place, wire: str, pins: bool
) -> None:
    pair = Pair(place, wire, pins=pins)
    for seed in range(3):
        for model in pair.models:
            model.remember(parameters=True)
        pair.compute(seed)
        for model, push in zip(pair.models, pair.push, strict=True):
            model.fill_changes(push)
        pair.assert_same_contribution()
        pair.land(pair.version(seed))
        pair.assert_same_tensors()


def test_sums_of_micro_batches_are_the_same_from_a_device_and_from_the_host(
    place: Place, wire: str
) -> None:
    pair = Pair(place, wire)
    for seed in range(2):
        for points in (1.0, 4.0, 8.0):
            pair.compute(seed)
            for model in pair.models:
                model.gather(points)
        for model, push in zip(pair.models, pair.push, strict=True):
            model.fill_gathered(push, 13.0)
        for mine, theirs in zip(*pair.push, strict=True):
            rounding = 4 * torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0.0
            assert torch.allclose(mine.double(), theirs.double(), rtol=rounding, atol=1e-6)


def test_a_worker_that_trains_on_keeps_its_local_changes(place: Place, wire: str) -> None:
    pair = Pair(place, wire, aside=True)
    for model in pair.models:
        model.adopt()
        model.remember(parameters=True)
    pair.assert_same_tensors()
    for seed in range(3):
        pair.compute(seed)
        for model, push in zip(pair.models, pair.push, strict=True):
            if seed == 2:
                model.set_apart(push)  # the last contribution is still in flight
            model.fill_changes(push)
        pair.assert_same_contribution()
        pair.compute(100 + seed)
        pair.land(pair.version(seed))
        if seed != 1:
            for model, push in zip(pair.models, pair.push, strict=True):
                model.rebase(push)
            for mine, theirs in zip(*pair.tensors, strict=True):
                assert torch.allclose(mine, theirs.cpu(), rtol=1e-6, atol=1e-6)


def test_a_version_that_arrives_does_not_change_the_parameters_before_it_is_adopted(
    place: Place,
) -> None:
    pair = Pair(place, "same", aside=True)
    before = [tensor.detach().clone() for tensor in pair.tensors[1]]
    pair.land(pair.version(5))
    pair.copies.join()
    for tensor, old in zip(pair.tensors[1], before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("pins", [True, False])
def test_a_gradient_that_is_not_finite_is_named(place: Place, bad: float, pins: bool) -> None:
    pair = Pair(place, "same", pins=pins)
    pair.compute(1)
    gradient = pair.on_device("wide.weight").grad
    assert gradient is not None
    gradient.view(-1)[-1] = bad
    with pytest.raises(NotFinite, match=r"^the gradient of 'wide.weight' holds NaN or infinity"):
        pair.device.fill_gradients(pair.push[1])
    with pytest.raises(NotFinite, match=r"^the gradient of 'wide.weight' holds NaN or infinity"):
        pair.device.check_gradients()
    gradient.view(-1)[-1] = 3.0e38
    pair.device.fill_gradients(pair.push[1])  # all gradients are finite, but their sum is not
    pair.device.check_gradients()


def test_a_parameter_or_a_buffer_that_is_not_finite_is_named(place: Place) -> None:
    pair = Pair(place, "same")
    pair.device.remember(parameters=True)
    pair.on_device("wide.weight").data.view(-1)[7] = math.nan
    with pytest.raises(NotFinite, match=r"^the parameter 'wide.weight' became NaN or infinite"):
        pair.device.fill_changes(pair.push[1])
    with pytest.raises(NotFinite, match=r"^the parameter 'wide.weight' became NaN or infinite"):
        pair.device.check_parameters()
    pair.device.adopt()
    mean = pair.on_device("norm.running_mean")
    before = mean.clone()
    mean[1] = math.inf
    with pytest.raises(NotFinite, match=r"^the buffer 'norm.running_mean' became NaN"):
        pair.device.fill_changes(pair.push[1])
    pair.device.restore_buffers()
    assert torch.equal(mean, before)


def test_the_host_waits_once_for_a_contribution_and_not_for_a_version() -> None:
    pair = Pair(Place("cpu"), "same")
    assert isinstance(pair.copies, DeferredCopies)
    pair.compute(1)
    pair.copies.log.clear()
    pair.device.fill_gradients(pair.push[1])
    assert pair.copies.log == ["download", "synchronise"]
    pair.copies.log.clear()
    pair.land(pair.version(1))
    assert set(pair.copies.log[:-1]) == {"upload"}
    assert pair.copies.log[-1] == "join"
    pair.copies.log.clear()
    pair.land(pair.version(2))  # a second version arrives without a contribution in between
    assert pair.copies.log[0] == "await uploads"


def test_a_large_slice_is_copied_to_the_device_before_the_version_is_complete() -> None:
    pair = Pair(Place("cpu"), "same")
    assert isinstance(pair.copies, DeferredCopies)
    version = pair.version(3)
    pair.copies.log.clear()
    for slice_ in pair.device.layout.slices:
        pair.device.land(slice_, memoryview(version[slice_.id]))
    assert "upload" in pair.copies.log and "join" not in pair.copies.log
    early = pair.copies.log.count("upload")
    pair.device.adopt()
    assert pair.copies.log.count("upload") == early + 1
    for slice_ in pair.device.layout.slices:
        assert pair.device.seed(slice_).view(torch.uint8).numpy().tobytes() == version[slice_.id]


@pytest.mark.gpu
def test_memory_that_shares_its_pages_with_other_memory_is_not_pinned() -> None:
    place = Place("cuda:0")
    mapped = torch.frombuffer(Segment(1 << 20, shared=True).memory, dtype=torch.uint8)
    copies = place.copies()
    assert copies.pin(mapped) and mapped.is_pinned()
    assert not copies.pin(
        torch.frombuffer(Segment(8192, shared=False).memory, dtype=torch.uint8)[64:]
    )
    copies.close()
    assert not mapped.is_pinned()

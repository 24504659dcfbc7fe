"""A fold makes the steps of plain torch: for parameters without a gradient, and for slices of one
parameter group whose steps differ."""

from typing import Any

import pytest
import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.tensors.absent import NO_GRADIENT
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.optimizers import can_fuse
from polyrhythm.tensors.updaters import Optimizer
from polyrhythm.wire.messages import OptimizerSpec, SliceStep

WEIGHT, RATE = 4.0, 0.1


def server_of(name: str, options: dict[str, Any], *slices: Slice) -> tuple[Optimizer, list[Held]]:
    held = [
        Held(slice_, torch.linspace(-1, 1, slice_.length), torch.zeros(slice_.length), WEIGHT)
        for slice_ in slices
    ]
    spec = OptimizerSpec(name, ({"lr": RATE, **options},))
    return Optimizer(spec, held, fused=can_fuse(spec, [torch.float32])), held


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("SGD", {"momentum": 0.9}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("RMSprop", {}),
        ("RMSprop", {"momentum": 0.5, "centered": True}),
        ("Adadelta", {}),
    ],
)
def test_weight_decay_does_not_begin_before_the_first_gradient(
    name: str, more: dict[str, Any]
) -> None:
    """Two parameters are in one slice, and only the first has a gradient in the first rounds."""
    options = {"weight_decay": 0.5, **more}
    parts = ((0, 5), (5, 9))
    updater, (held,) = server_of(name, options, Slice(0, 0, 0, 0, 9, parts))
    whole = held.parameters.clone()
    params = [torch.nn.Parameter(whole[first:end].clone()) for first, end in parts]
    optimizer = getattr(torch.optim, name)(params, lr=RATE, **options)
    gradients = [torch.randn(9, generator=torch.Generator().manual_seed(n)) for n in range(4)]
    for number, gradient in enumerate(gradients):
        params[0].grad = gradient[:5].clone()
        params[1].grad = gradient[5:].clone() if number > 1 else None
        optimizer.step()
        held.aggregate.copy_(gradient * WEIGHT)
        if params[1].grad is None:
            held.aggregate[5:] = NO_GRADIENT
        updater.fold([held], [held.parameters], [SliceStep(WEIGHT, RATE)])
    expected = torch.cat([param.detach() for param in params])
    torch.testing.assert_close(held.parameters, expected)


def test_slices_of_one_group_may_have_different_rates() -> None:
    """A scheduler has changed the rate between the contributions of two slices."""
    updater, held = server_of("SGD", {}, Slice(0, 0, 0, 0, 6), Slice(1, 0, 0, 6, 6))
    before = [each.parameters.clone() for each in held]
    for each in held:
        each.aggregate.fill_(WEIGHT)
    rates = (0.25, 0.5)
    updater.fold(held, [each.parameters for each in held], [SliceStep(WEIGHT, r) for r in rates])
    for old, each, rate in zip(before, held, rates, strict=True):
        torch.testing.assert_close(each.parameters, old - rate)


def test_a_parameter_without_a_gradient_stays_as_it_is_after_its_slice_has_moved_here() -> None:
    """Weight decay would change it."""
    spec = OptimizerSpec("AdamW", ({"lr": 0.1, "weight_decay": 0.5},))
    slices = [Slice(number, 0, 0, 4 * number, 4, ((0, 4),)) for number in range(2)]
    held = [Held(slice_, torch.ones(4), torch.ones(4), 1.0) for slice_ in slices]
    ours, coming = (Optimizer(spec, [each], fused=True) for each in held)
    ours.absorb(coming)
    held[1].aggregate.fill_(NO_GRADIENT)
    step = SliceStep(weight=1.0, rate=0.1)
    ours.fold(held, [each.parameters for each in held], [step, step])
    assert (held[0].parameters < 1.0).all()
    assert (held[1].parameters == 1.0).all()

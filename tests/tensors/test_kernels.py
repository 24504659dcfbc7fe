"""A kernel that is called directly gives bit-identical results to the optimizer's own step."""

from typing import Any

import pytest
import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.kernels import kernel_of
from polyrhythm.tensors.updaters import Optimizer
from polyrhythm.wire.messages import OptimizerSpec, SliceStep

_VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.5, "dampening": 0.3, "maximize": True}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "eps": 1e-6}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
]


def company(name: str, options: dict[str, Any]) -> tuple[torch.optim.Optimizer, list[Any]]:
    """Return an optimizer and its two parameters, after one call of `step()`."""
    drawn = torch.Generator().manual_seed(1)
    params = [torch.nn.Parameter(torch.randn(n, generator=drawn)) for n in (3, 40)]
    optimizer = getattr(torch.optim, name)(params, fused=True, **options)
    step(optimizer, params, gradients(0))
    return optimizer, params


def gradients(seed: int) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(n, generator=drawn) for n in (3, 40)]


def step(optimizer: torch.optim.Optimizer, params: list[Any], grads: list[torch.Tensor]) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    optimizer.step()
    for param in params:
        param.grad = None


@pytest.mark.parametrize("weight", [1.0, 4.0])
@pytest.mark.parametrize(("name", "options"), _VARIANTS)
def test_a_kernel_makes_the_step_of_its_optimizer(
    name: str, options: dict[str, Any], weight: float
) -> None:
    one, params = company(name, options)
    other, same = company(name, options)
    kernel = kernel_of(other)
    assert kernel is not None
    scale = None if weight == 1.0 else torch.tensor(weight)
    one.grad_scale = scale  # type: ignore[attr-defined]
    for seed in (1, 2, 3):
        step(one, params, gradients(seed))
        with torch.no_grad():
            assert kernel(other.param_groups[0], other.state, same, gradients(seed), scale)
    for mine, theirs in zip(params, same, strict=True):
        assert torch.equal(mine, theirs)
        for key, value in one.state[mine].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other.state[theirs][key]))


@pytest.mark.parametrize(("name", "options"), [_VARIANTS[1], _VARIANTS[4]])
def test_the_first_step_is_the_optimizers_own(name: str, options: dict[str, Any]) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = getattr(torch.optim, name)([param], fused=True, **options)
    kernel = kernel_of(optimizer)
    assert kernel is not None
    assert not kernel(optimizer.param_groups[0], optimizer.state, [param], [torch.ones(4)], None)
    assert torch.equal(param, torch.ones(4))


def test_other_optimizers_have_no_kernel() -> None:
    assert kernel_of(torch.optim.Adagrad([torch.nn.Parameter(torch.ones(4))])) is None


@pytest.mark.parametrize(("name", "options"), _VARIANTS)
def test_a_slice_may_get_its_first_contribution_a_round_later(
    name: str, options: dict[str, Any]
) -> None:
    """One of two parameters has no gradient in the first round. In torch's own step, SGD needs
    momentum buffers for all parameters or for none."""
    slices = [Slice(0, 0, 0, 0, 3), Slice(1, 0, 0, 3, 4)]
    held = [Held(s, torch.ones(s.length), torch.zeros(s.length)) for s in slices]
    listed = {key: list(v) if isinstance(v, tuple) else v for key, v in options.items()}
    updater = Optimizer(OptimizerSpec(name, (listed,)), held, fused=True)
    for begun in (held[:1], held, held):
        for each in begun:
            updater.add(each, torch.full((each.slice.length,), 0.5), 2.0)
            each.weight = 2.0
        steps = [SliceStep(each.weight, 0.1) for each in held]
        updater.fold(held, [each.parameters for each in held], steps)
        for each in held:
            each.weight = 0.0
    alone = [torch.nn.Parameter(torch.ones(each.slice.length)) for each in held]
    plain = [getattr(torch.optim, name)([param], **{**options, "lr": 0.1}) for param in alone]
    for param, optimizer, count in zip(alone, plain, (3, 2), strict=True):
        for _ in range(count):
            param.grad = torch.full_like(param, 0.5)
            optimizer.step()
    for each, param in zip(held, alone, strict=True):
        assert torch.allclose(each.parameters, param.detach(), atol=1e-6)

"""The fused kernels of torch's optimizers, called directly.

For a small model, the Python code around the kernel in `step()` takes several times as long as the
kernel itself, and longer still if the server has slept since the last fold. *A kernel does what
`step()` of the same optimizer would do. `step()` is called instead for the first step of a
parameter, for an optimizer that has no kernel here, and if torch does not have the kernel.*
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

States = Mapping[torch.Tensor, dict[str, Any]]
Kernel = Callable[
    [
        dict[str, Any],
        States,
        Sequence[torch.Tensor],
        Sequence[torch.Tensor],
        torch.Tensor | None,
    ],
    bool,
]
"""A function that makes one step. Its arguments are a parameter group, the optimizer's states, some
parameters of the group, their gradients, and a number by which the gradients are divided (None for
1). It returns False, and changes nothing, if `step()` must be called instead."""


def kernel_of(optimizer: torch.optim.Optimizer) -> Kernel | None:
    return _KERNELS.get(type(optimizer))


def _sgd(
    group: dict[str, Any],
    states: States,
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    scale: torch.Tensor | None,
) -> bool:
    momentum: list[Any] = []
    if group["momentum"]:
        momentum = [states[param].get("momentum_buffer") for param in params]
        if any(buffer is None for buffer in momentum):
            return False
    _FUSED_SGD(
        params,
        grads,
        momentum,
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
        is_first_step=False,
        grad_scale=scale,
    )
    return True


def _adam(
    group: dict[str, Any],
    states: States,
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    scale: torch.Tensor | None,
) -> bool:
    mine = [states[param] for param in params]
    if not all(mine):
        return False
    steps = [state["step"] for state in mine]
    torch._foreach_add_(steps, 1)
    beta1, beta2 = group["betas"]
    kernel = _FUSED_ADAMW if group.get("decoupled_weight_decay") else _FUSED_ADAM
    kernel(
        params,
        grads,
        [state["exp_avg"] for state in mine],
        [state["exp_avg_sq"] for state in mine],
        [state["max_exp_avg_sq"] for state in mine] if group["amsgrad"] else [],
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=group["amsgrad"],
        maximize=group["maximize"],
        grad_scale=scale,
    )
    return True


_FUSED_SGD: Any = getattr(torch, "_fused_sgd_", None)
_FUSED_ADAM: Any = getattr(torch, "_fused_adam_", None)
_FUSED_ADAMW: Any = getattr(torch, "_fused_adamw_", None)
_KERNELS: dict[type[torch.optim.Optimizer], Kernel] = {}
if _FUSED_SGD is not None:
    _KERNELS[torch.optim.SGD] = _sgd
if _FUSED_ADAM is not None and issubclass(torch.optim.AdamW, torch.optim.Adam):
    _KERNELS |= {torch.optim.Adam: _adam, torch.optim.AdamW: _adam}

"""Momentum that decays once per round although contributions are folded one by one.

An optimizer with momentum makes the step `w -= lr (g + mu v)` and keeps `v <- mu v + g`. Under bsp
this happens once per round. Without rounds, each of P workers' contributions makes its own step
with rate lr/P. If every step decayed the velocity v by mu, most of a gradient's effect would come
while the other workers still compute with parameters that lack it. Training would then diverge at
learning rates that work under bsp.

*So the step stays the same, with rate lr/P, but the velocity decays by the P-th root of mu: `v <- m
v + a g` with `m = mu^(1/P)` and `a = (1 - m) / (1 - mu)`.* P contributions then decay the velocity
by mu and add one round's gradient to it. The parameters take the path of bsp, divided into P steps.
A worker that pulls gets parameters that already contain the movement that the velocity will make
before this worker contributes (the derivation is in docs/decisions/029). With one member nothing
changes. With rounds the same rule holds for a round that is the P-th part of a whole step.

torch's step leaves `v_t = mu v + g` (Adam: `b1 m + (1 - b1) g`). The function that `settle_for`
returns corrects it to the value above. It needs only `v_t` and the gradient, and makes one pass
over the state after the step.
"""

from collections.abc import Callable
from typing import Any

import torch

Group = dict[str, Any]
Settle = Callable[[Group, float, dict[str, Any], torch.Tensor, torch.Tensor], None]
"""A function that corrects the momentum of a parameter after its step. Its arguments are the
parameter group, the number of steps that count as a round, the parameter's optimizer state, the
parameter, and the mean gradient of the step."""


def settle_for(optimizer: torch.optim.Optimizer) -> Settle | None:
    """Return the function that corrects this optimizer's momentum. None if it has no momentum, or
    if the momentum cannot be corrected: the momentum of RMSprop sums scaled gradients, and stays as
    torch computes it."""
    if isinstance(optimizer, torch.optim.SGD):
        return _sgd if any(group["momentum"] for group in optimizer.param_groups) else None
    return _first_moment if isinstance(optimizer, _WITH_A_FIRST_MOMENT) else None


_WITH_A_FIRST_MOMENT = (
    torch.optim.Adam,  # AdamW too
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)


def _sgd(
    group: Group,
    per_round: float,
    state: dict[str, Any],
    parameter: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    mu, buffer = group["momentum"], state.get("momentum_buffer")
    if not mu or buffer is None:
        return
    decay = mu ** (1 / per_round)
    fresh = (1 - decay) / (1 - mu) if mu < 1 else 1 / per_round
    added = (1 - group["dampening"]) * (fresh - decay / mu)
    buffer.mul_(decay / mu)
    _add(buffer, group, parameter, gradient, added)


def _first_moment(
    group: Group,
    per_round: float,
    state: dict[str, Any],
    parameter: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    beta = group["betas"][0]
    if not beta:
        return
    grow = beta ** (1 / per_round) / beta
    state["exp_avg"].mul_(grow)
    _add(state["exp_avg"], group, parameter, gradient, 1 - grow)


def _add(
    momentum: torch.Tensor,
    group: Group,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    factor: float,
) -> None:
    """Add `factor` times the gradient that the step used. This gradient is negated if the optimizer
    maximizes, and contains the weight decay unless the decay is decoupled."""
    momentum.add_(gradient, alpha=-factor if group["maximize"] else factor)
    if group["weight_decay"] and not group.get("decoupled_weight_decay"):
        momentum.add_(parameter, alpha=factor * group["weight_decay"])

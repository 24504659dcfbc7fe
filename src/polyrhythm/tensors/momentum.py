"""Momentum that decays once per round where contributions are folded one by one.

An optimizer with momentum makes the step `w -= lr (g + mu v)` and keeps `v <- mu v + g`. Under bsp this
happens once per round. If each of P contributions makes its own step with rate lr/P and the same decay,
most of a gradient acts while the others compute, too late for them to see, and training diverges at
rates that bsp takes easily.

*So the step stays what it is, with rate lr/P, and the velocity decays by the P-th root of mu:
`v <- m v + a g` with `m = mu^(1/P)` and `a = (1 - m) / (1 - mu)`.* P contributions then decay it by mu
and add one round's gradient to it, and the path of the parameters is that of bsp, cut into P steps. A
reader gets parameters that already contain the movement that the velocity will make before that reader
contributes (the derivation is in docs/decisions/029). With one member nothing changes.

torch's step leaves `v_t = mu v + g` (Adam: `b1 m + (1 - b1) g`). `settle` turns it into the value above,
from `v_t` and the gradient alone: one pass over the state, after the step.
"""

from collections.abc import Callable
from typing import Any

import torch

Group = dict[str, Any]
Settle = Callable[[Group, int, dict[str, Any], torch.Tensor, torch.Tensor], None]
"""Correct the state of a parameter whose step was just made with this mean gradient; given its
group and the number of steps in a round."""


def settle_for(optimizer: torch.optim.Optimizer) -> Settle | None:
    """Return the function that corrects this optimizer's momentum; None if it has no momentum, or
    none that can be corrected: RMSprop's adds scaled gradients and stays as it is."""
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
    per_round: int,
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
    per_round: int,
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
    """Add the gradient as the step used it: negated if the optimizer maximizes, and with the decay
    if that is not decoupled."""
    momentum.add_(gradient, alpha=-factor if group["maximize"] else factor)
    if group["weight_decay"] and not group.get("decoupled_weight_decay"):
        momentum.add_(parameter, alpha=factor * group["weight_decay"])

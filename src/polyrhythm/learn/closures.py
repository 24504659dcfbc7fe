"""Optimizers whose `step(closure)` evaluates the loss several times: LBFGS, with kind local.

LBFGS keeps a history of how its last steps have changed the gradient. The next step relies on this
history, and assumes that nothing but these steps has changed the parameters. *If the version that
answers a contribution has the parameters that this worker computed, the worker keeps them and the
history. Otherwise it takes the version's parameters and forgets the history.* So a job with one
worker computes what torch computes, bit for bit (docs/decisions/059).
"""

import inspect
from typing import Any

import torch

_ROUNDINGS = 8
"""A contribution is the difference between the worker's parameters and the last version, and is
added to that version again. The sum differs from what the worker computed by at most this many
rounding errors."""


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer cannot make a step without a closure."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def loss_of(result: Any) -> torch.Tensor | float | None:
    """The result of a closure if it is a loss, that is, one number."""
    if isinstance(result, torch.Tensor):
        return result if result.numel() == 1 else None
    return float(result) if isinstance(result, float | int) else None


class History:
    """Decides after every version whether the optimizer keeps its state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._version = self._copy()
        """The parameters of the last version."""
        self._own = self._version
        """The parameters after the last step."""

    def _copy(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]

    def stepped(self) -> None:
        """The optimizer has made a step."""
        self._own = self._copy()

    def take_back(self) -> None:
        """Undo the last step, which is not finite, and forget the history that led to it."""
        for parameter, own in zip(self._parameters, self._own, strict=True):
            parameter.detach().copy_(own)
        self._optimizer.state.clear()

    def version_came(self, *, final: bool) -> None:
        """The model now has the parameters of a new version. `final`: the job has ended, so these
        parameters stay."""
        version, own = self._copy(), self._own
        if all(map(_same_but_rounded, version, own, self._version)):
            for parameter, mine in zip(self._parameters, own, strict=True):
                if not final:
                    parameter.detach().copy_(mine)
        else:
            self._optimizer.state.clear()
            self._own = version
        self._version = version


def _same_but_rounded(version: torch.Tensor, own: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the version has the parameters `own`, except for rounding errors. Rounding errors
    arise because the difference between `own` and `base` is sent, and added to `base` again."""
    bound = _ROUNDINGS * torch.finfo(own.dtype).eps * (own.abs() + base.abs())
    return bool(((version - own).abs() <= bound).all())

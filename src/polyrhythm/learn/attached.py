"""The optimizer that `worker.attach` returns: the optimizer of one model. Its `step()` exchanges
parameters as the sync policy demands (`learn/exchange.py`).

It is a torch optimizer, so learning rate schedulers accept it. It shares the parameter groups of
the user's optimizer, so the learning rates that a scheduler sets are sent with each contribution.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from polyrhythm.learn.attachment import Attachment


class Steps(Protocol):
    """What takes the steps of all models of a worker."""

    @property
    def pending(self) -> bool: ...

    def before_step(self) -> None: ...

    def step(
        self,
        model: "AttachedOptimizer",
        objective: torch.Tensor | float | None,
        points: float | None,
    ) -> None: ...


class AttachedOptimizer(torch.optim.Optimizer):
    def __init__(
        self, inner: torch.optim.Optimizer, model: torch.nn.Module, steps: Steps, number: int = 0
    ) -> None:
        """`number`: that of the model among the models of the worker."""
        self.inner = inner
        self.number = number
        self._steps = steps
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups = inner.param_groups
        self.state = inner.state
        self._attachment = Attachment(model, inner)

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        objective: torch.Tensor | float | None = None,
        points: float | None = None,
    ) -> Any:
        """Contribute the gradients, and continue with the parameters that the servers return. With
        kind local: take a local step, and contribute after every `--local-steps` steps.

        `objective` is the loss, for the display and the journal. `points` is the weight of this
        step if the batches did not come from `worker.batches`. The gradients are cleared.
        """
        self._steps.before_step()
        result = closure() if closure is not None else None
        self._steps.step(self, objective, points)
        return result

    step.hooked = True  # type: ignore[attr-defined]  # or torch wraps it for its profiler

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none=set_to_none)

    @property
    def pending(self) -> bool:
        """Whether this worker has taken steps since its last contribution."""
        return self._steps.pending

    # -- for the exchange ----------------------------------------------------------------------

    def step_locally(self, share: float) -> None:
        """Let the user's optimizer make its step. `share`: the fraction of a whole step; the
        gradients are scaled by it."""
        if share < 1:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(share)
        self.inner.step()

    def drop_gradients(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of every parameter group."""
        return tuple(float(group["lr"]) for group in self.param_groups)

    def check_tensors(self) -> None:
        self._attachment.check_tensors()

    def check_options(self, *, steps_on_servers: bool) -> None:
        """Refuse changes of the optimizer that the servers cannot learn of."""
        if steps_on_servers:
            self._attachment.check_options(self.param_groups)
        self._attachment.check_frozen()

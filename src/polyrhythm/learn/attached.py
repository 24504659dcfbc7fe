"""The optimizer that `worker.attach` returns: the optimizer of one model. Its `step()` exchanges
parameters as the sync policy demands (`learn/exchange.py`).

It is a torch optimizer, so learning rate schedulers accept it (`learn/schedules.py`). It shares the
parameter groups of the user's optimizer, so the learning rates that a scheduler sets are sent with
each contribution.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from polyrhythm.errors import UsageError
from polyrhythm.learn.attachment import Attachment
from polyrhythm.learn.closures import History, loss_of, needs_closure
from polyrhythm.learn.schedules import Schedules


class TakesSteps(Protocol):
    """The object that takes the steps of all models of a worker."""

    @property
    def pending(self) -> bool: ...

    def before_step(self) -> None: ...

    @property
    def steps_locally(self) -> bool: ...

    def step(
        self,
        model: "AttachedOptimizer",
        objective: torch.Tensor | float | None,
        points: float | None,
    ) -> None: ...


_scaler_calls = itertools.count()
"""Numbers the calls of `GradScaler.step` in their order."""


class AttachedOptimizer(torch.optim.Optimizer):
    def __init__(
        self,
        inner: torch.optim.Optimizer,
        model: torch.nn.Module,
        steps: TakesSteps,
        number: int = 0,
    ) -> None:
        """`number`: the position of this model among the models of the worker."""
        self.inner = inner
        self.module = model
        self.number = number
        self._steps = steps
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups = inner.param_groups
        self.state = inner.state
        self.schedules = Schedules(self, inner)
        self._attachment = Attachment(model, inner)
        self.parameters = [p for group in inner.param_groups for p in group["params"]]
        self.needs_closure = needs_closure(inner)
        self._history = History(inner) if isinstance(inner, torch.optim.LBFGS) else None
        self._closure: Callable[[], Any] | None = None
        self._result: Any = None
        self._evaluated = False
        """Whether the closure of this step has been called."""
        self.scales = False
        """Whether the user's code has called `GradScaler.step` with this optimizer."""
        self.unmade: list[int] = []
        """The numbers of the calls of `GradScaler.step` that have not called `step()`."""

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        objective: torch.Tensor | float | None = None,
        points: float | None = None,
    ) -> Any:
        """Contribute the gradients, and continue with the parameters that the servers return. With
        kind local: take a local step, and contribute after every `--local-steps` steps.

        `closure` computes the loss and the gradients. LBFGS calls it several times, other
        optimizers once; its result is the objective if none is given.

        `objective` is the loss, for the display and the journal. `points` is the weight of this
        step if the batches did not come from `worker.batches`. The gradients are cleared.
        """
        self._steps.before_step()
        if self.unmade:
            # the last call of `GradScaler.step` has called `step()`, so this step is not left out
            self.unmade.pop()
        self._closure, self._result, self._evaluated = closure, None, False
        if closure is not None and not self._steps.steps_locally:
            self._result = self._evaluate()
        self._steps.step(self, objective, points)
        # torch's schedulers of the user's optimizer read this, and warn if they come before its step
        self.inner._opt_called = True  # type: ignore[attr-defined]
        if closure is not None and not self._evaluated:
            # the job has ended, and no step was made; the user's code may still read the loss
            self._result = self._evaluate()
        self._closure = None
        return self._result

    step.hooked = True  # type: ignore[attr-defined]  # or torch wraps it for its profiler

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none=set_to_none)

    @property
    def pending(self) -> bool:
        """Whether this worker has taken steps since its last contribution."""
        return self._steps.pending

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """`GradScaler.step` reads this attribute. Then it calls `step()`, unless it has found a
        gradient that is not finite."""
        self.scales = True
        self.unmade.append(next(_scaler_calls))
        return False

    @property
    def holds_state(self) -> bool:
        """Whether this worker, and not the servers, holds the state of the optimizer."""
        return self._steps.steps_locally

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """With kind local: load the state into the user's optimizer. With kind gradient the servers
        hold the optimizer's state, so this is refused."""
        if not self.holds_state:
            raise _state_on_servers()
        self.inner.load_state_dict(state_dict)
        self._follow_inner()

    def _follow_inner(self) -> None:
        """The user's optimizer has loaded a state, and so has new parameter groups: share the new
        groups."""
        self.param_groups[:] = self.inner.param_groups
        self.inner.param_groups = self.param_groups
        self.state = self.inner.state

    # -- for the exchange ----------------------------------------------------------------------

    @property
    def loss(self) -> torch.Tensor | float | None:
        """The loss that the closure of this step has returned."""
        return loss_of(self._result)

    @property
    def has_closure(self) -> bool:
        return self._closure is not None

    @property
    def has_gradient(self) -> bool:
        return any(parameter.grad is not None for parameter in self.parameters)

    def gradient_states(self) -> list[tuple[int, int]]:
        """The identity and the version counter of every gradient that exists. When a gradient is
        computed, at least one of these values changes."""
        gradients = (parameter.grad for parameter in self.parameters)
        return [(id(each), each._version) for each in gradients if each is not None]

    def step_locally(self, share: float, prepare: Callable[[], None]) -> None:
        """Let the user's optimizer make its step. `share`: the fraction of a whole step; the
        gradients are multiplied by this fraction, except for LBFGS, which compares its gradients
        with the loss. `prepare` is called after a closure has computed the gradients."""
        if self._closure is not None:

            def evaluate() -> Any:
                loss = self._evaluate()
                prepare()
                if self._history is None:
                    self._scale(share)
                return loss

            with self._known_rate():
                self._result = self.inner.step(evaluate)
        elif self.needs_closure:
            raise UsageError(
                f"{type(self.inner).__name__} evaluates the loss several times in a step: call"
                " optimizer.step(closure), where closure() computes the loss and the gradients"
            )
        else:
            self._scale(share)
            with self._known_rate():
                self.inner.step()

    @contextlib.contextmanager
    def _known_rate(self) -> Iterator[None]:
        """While the learning rate is not known, make steps with the rate 0."""
        rates = [group.get("lr") for group in self.param_groups] if self.schedules.unknown else []
        groups = [(group, rate) for group, rate in zip(self.param_groups, rates, strict=False)]
        for group, rate in groups:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
        try:
            yield
        finally:
            for group, rate in groups:
                group["lr"] = rate

    def _evaluate(self) -> Any:
        assert self._closure is not None
        self._evaluated = True
        return self._closure()

    def _scale(self, share: float) -> None:
        for parameter in self.parameters if share < 1 else ():
            if parameter.grad is not None:
                parameter.grad.mul_(share)

    def end_local_step(self) -> None:
        """The user's optimizer has made a local step, and the step counts."""
        if self._history is not None:
            self._history.stepped()

    def take_back(self) -> None:
        """Undo the last local step of an optimizer that keeps a history."""
        if self._history is not None:
            self._history.take_back()

    def version_came(self, *, final: bool) -> None:
        """The model now has the parameters of a new version. `final`: the job has ended."""
        if self._history is not None:
            self._history.version_came(final=final)

    def drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of every parameter group."""
        if self.schedules.unknown:
            return (0.0,) * len(self.param_groups)
        return tuple([float(group.get("lr", 0.0)) for group in self.param_groups])

    def check_tensors(self) -> None:
        self._attachment.check_tensors()

    def check_options(self, *, steps_on_servers: bool) -> None:
        """Refuse changes of the optimizer that the servers cannot learn of."""
        if self.inner.param_groups is not self.param_groups:
            if steps_on_servers:
                raise _state_on_servers()
            self._follow_inner()
        if steps_on_servers:
            self._attachment.check_options(self.param_groups)
        self._attachment.check_frozen()


def _state_on_servers() -> UsageError:
    return UsageError(
        "load_state_dict() of an attached optimizer has no effect, because the servers hold its"
        " state: continue a job from its checkpoint with `polyrhythm resume`, or give the job --kind"
        " local, with which the worker holds the state"
    )

"""The optimizer that `worker.attach` returns: the optimizer of one model. Its `step()` exchanges
parameters as the sync policy requires (`learn/exchange.py`).

It is a torch optimizer, so learning rate schedulers accept it (`learn/schedules.py`). It shares the
parameter groups of the user's optimizer, so the learning rates that a scheduler sets are sent with
each contribution.
"""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from polyrhythm.core.step_order import StepOrder, described
from polyrhythm.errors import ModelChanged, UsageError
from polyrhythm.learn.schedules import Schedules
from polyrhythm.tensors.flat import BUFFER, PARAMETER, changed

_MAY_CHANGE = ("params", "lr", "initial_lr", "swa_lr")


class Attachment:
    """The model and the optimizer at the time of `attach`.

    Servers hold their own copy of both. *If the user's code makes a change that the servers cannot
    learn of, it gets an error, which names the tensor and says what to do instead.*
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._tensors = [
            (table, key, tensor)
            for module in model.modules()
            for table in (module._parameters, module._buffers)
            for key, tensor in table.items()
        ]
        self._model = model
        self._options = [
            [(key, value) for key, value in group.items() if key not in _MAY_CHANGE]
            for group in optimizer.param_groups
        ]
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._frozen = [
            (names.get(id(parameter), "?"), parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if not parameter.requires_grad
        ]

    def check_tensors(self) -> None:
        """Refuse a model in which an attached tensor was replaced: the new tensor would not be
        trained."""
        for table, key, tensor in self._tensors:
            if table.get(key) is not tensor:
                raise self._replaced(table, key, tensor)

    def _replaced(
        self, table: dict[str, Any], key: str, before: torch.Tensor | None
    ) -> ModelChanged:
        """The error for a replaced tensor of the model."""
        now = table.get(key)
        what, name = PARAMETER, key
        for prefix, module in self._model.named_modules():
            if table is module._parameters or table is module._buffers:
                what = PARAMETER if table is module._parameters else BUFFER
                name = f"{prefix}.{key}" if prefix else key
        if now is None or before is None:
            return changed("removed" if now is None else "replaced", what, name)
        return difference(what, name, now, before) or changed("replaced", what, name)

    def check_options(self, groups: list[dict[str, Any]]) -> None:
        """Refuse a changed option of an optimizer whose steps the servers make. Only learning rates
        are sent, so other changes would not reach the servers. `groups`: the present parameter groups of
        the optimizer."""
        for number, (options, group) in enumerate(zip(self._options, groups, strict=True)):
            for key, value in options:
                if group[key] is not value and group[key] != value:
                    where = f" of parameter group {number}" if len(groups) > 1 else ""
                    raise ModelChanged(
                        f"the optimizer's {key!r}{where} changed from {value} to {group[key]}: only the"
                        " learning rate may change while training. Give OneCycleLR and CyclicLR"
                        " cycle_momentum=False, or the job --kind local"
                    )

    def check_frozen(self) -> None:
        """Refuse a parameter that was frozen when the model was attached and requires gradients
        now. The servers treat it as a buffer and would not optimize it."""
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise changed("thawed", PARAMETER, name)


def difference(
    what: str, name: str, now: torch.Tensor, before: torch.Tensor
) -> ModelChanged | None:
    """The error for a tensor whose shape, dtype or device has changed; None if they are the
    same."""
    if now.shape != before.shape:
        return changed("reshaped", what, name, now=list(now.shape), before=list(before.shape))
    if now.dtype != before.dtype:
        return changed("retyped", what, name, now=now.dtype, before=before.dtype)
    if now.device != before.device:
        return changed("moved", what, name, now=now.device, before=before.device)
    return None


_ROUNDINGS = 8
"""The tolerance, in rounding errors, between the parameters of a worker and of the version that it
gets back. The worker sends the difference to the last version, and servers add it to that version
again, which rounds."""


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
    """Decides after every version whether the optimizer keeps its state. This is for optimizers
    whose `step(closure)` evaluates the loss several times: LBFGS, with kind local.

    *If the new version has the parameters that this worker computed, the worker keeps its
    parameters and the history. Otherwise it uses the version's parameters and forgets the history.*
    LBFGS needs this rule: its history records how the last steps have changed the gradient, and is
    valid only if nothing else has changed the parameters. So a job with one worker computes what
    torch computes, bit for bit (docs/decisions/059).
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._version = self._copy()
        """The parameters of the last version."""
        self._own = self._version
        """The parameters after the last step."""

    def _copy(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]

    def on_stepped(self) -> None:
        """Remember the parameters after a step of the optimizer."""
        self._own = self._copy()

    def take_back(self) -> None:
        """Undo the last step, which is not finite, and forget the history that led to it."""
        for parameter, own in zip(self._parameters, self._own, strict=True):
            parameter.detach().copy_(own)
        self._optimizer.state.clear()

    def shorten(self, share: float) -> None:
        """Make only this share of the last step, and forget the history, which describes the whole
        step."""
        for parameter, own in zip(self._parameters, self._own, strict=True):
            parameter.detach().copy_(torch.lerp(own, parameter.detach(), share))
        self._optimizer.state.clear()

    def on_version(self, *, final: bool) -> None:
        """Keep or forget the history, now that the model has the parameters of a new version.
        `final`: the job has ended, so these parameters stay."""
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
    """Whether the version has the parameters `own`, except for rounding errors. They arise because
    the worker sends the difference between `own` and `base`, and servers add it to `base` again."""
    bound = _ROUNDINGS * torch.finfo(own.dtype).eps * (own.abs() + base.abs())
    return bool(((version - own).abs() <= bound).all())


class TakesSteps(Protocol):
    """The object that makes the steps of all models of a worker."""

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
"""Numbers the calls of `GradScaler.step` in the order in which they are made."""


class AttachedOptimizer(torch.optim.Optimizer):
    """The optimizer that `Worker.attach` returns. It is a `torch.optim.Optimizer`, so learning
    rate schedulers and `torch.amp.GradScaler` accept it.

    Its `param_groups` are those of your optimizer: change a learning rate there, or with a
    scheduler. With kind gradient the servers make the steps, so a change of another option, such
    as the momentum, is refused. After an overflow, `scaler.step(optimizer, objective=loss)` of a
    `GradScaler` leaves the step out.

    Example:
        >>> loss_of(model(inputs), targets).backward()
        >>> optimizer.step()
        >>> optimizer.param_groups[0]["lr"]
        0.1
    """

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
        """Contribute the gradients to the job, and continue with the parameters that the servers
        return. The gradients are cleared, so `zero_grad()` is not needed.

        How long the call waits for other workers is the job's `sync` policy. With kind local the
        call makes a step of your own optimizer, and every `local_steps`-th call contributes the
        change of the parameters. After the end of the job, the call changes nothing.

        Args:
            closure: a function without arguments that computes the loss and the gradients. LBFGS,
                which needs kind local, calls it several times; other optimizers call it once. Its
                result is the objective if none is given.
            objective: the mean loss of this step, for the progress display, the history, and
                goals and policies that look at the objective.
            points: how many points this step has computed, which is its weight. Only for loops
                that do not use `Worker.batches`.

        Returns:
            The result of `closure`; None without a closure.

        Raises:
            NotFinite: a gradient or parameter is NaN or infinite, and `on_nan` is `refuse`.
            ModelChanged: the model or the optimizer was changed after `attach` in a way that the
                servers cannot learn of, for example another momentum.
            JobFailed: the job has ended before its goal.

        Example:
            >>> for x, y in worker.batches((inputs, targets), batch_size=32):
            ...     loss = loss_of(model(x), y)
            ...     loss.backward()
            ...     optimizer.step(objective=loss)
        """
        if closure is not None and not callable(closure):
            raise UsageError(
                f"optimizer.step() got {type(closure).__name__!r} in place of a closure: give a loss as"
                " optimizer.step(objective=loss)"
            )
        if points is not None and not points >= 0:
            raise UsageError(f"step(points={points}): give the number of points of this step")
        self._steps.before_step()
        if self.unmade:
            # the last call of `GradScaler.step` has called `step()`, so this step counts
            self.unmade.pop()
        self._closure, self._result, self._evaluated = closure, None, False
        if closure is not None and not self._steps.steps_locally:
            self._result = self._evaluate()
        self._steps.step(self, objective, points)
        # torch's schedulers read this attribute, and warn if they are called before the first step
        self.inner._opt_called = True  # type: ignore[attr-defined]
        if closure is not None and not self._evaluated:
            # the job has ended, and no step was made; the user's code may still read the loss
            self._result = self._evaluate()
        self._closure = None
        return self._result

    step.hooked = True  # type: ignore[attr-defined]  # or torch wraps it for its profiler

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as in torch. `step` has done so already.

        Args:
            set_to_none: set the gradients to None instead of zero.

        Example:
            >>> optimizer.zero_grad()
        """
        self.inner.zero_grad(set_to_none=set_to_none)

    @property
    def pending(self) -> bool:
        """Whether this worker has made steps that it has not contributed yet. Often true with
        kind local.

        Example:
            >>> optimizer.pending
            False
        """
        return self._steps.pending

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """`GradScaler.step` reads this attribute. With True, it calls `step()` unless it has found
        a gradient that is not finite."""
        self.scales = True
        self.unmade.append(next(_scaler_calls))
        return False

    @property
    def holds_state(self) -> bool:
        """Whether this worker, and not the servers, holds the state of the optimizer."""
        return self._steps.steps_locally

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into your own optimizer. This works with kind local only: with kind
        gradient the servers hold the state of the optimizer.

        A job that `polyrhythm resume` continues from a checkpoint has the state already.

        Args:
            state_dict: what `state_dict()` of the optimizer has returned.

        Raises:
            UsageError: the job has kind gradient.

        Example:
            >>> state = optimizer.state_dict()
            >>> optimizer.load_state_dict(state)
        """
        if not self.holds_state:
            raise _state_on_servers()
        self.inner.load_state_dict(state_dict)
        self._follow_inner()

    def _follow_inner(self) -> None:
        """Share the parameter groups of the user's optimizer, which are new after it has loaded a
        state."""
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
        gradients are multiplied by this fraction. LBFGS compares its gradients with the loss, so
        its step is multiplied instead. `prepare` is called after a closure has computed the
        gradients."""
        if self._closure is not None:

            def evaluate() -> Any:
                loss = self._evaluate()
                prepare()
                if self._history is None:
                    self._scale(share)
                return loss

            with self._known_rate():
                self._result = self.inner.step(evaluate)
            if self._history is not None and share < 1:
                self._history.shorten(share)
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
        """Make steps with the rate 0 until the learning rate is known."""
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
        """Count a local step that the user's optimizer has made."""
        if self._history is not None:
            self._history.on_stepped()

    def take_back(self) -> None:
        """Undo the last local step of an optimizer that keeps a history."""
        if self._history is not None:
            self._history.take_back()

    def on_version(self, *, final: bool) -> None:
        """Handle a new version, whose parameters the model now has. `final`: the job has ended."""
        if self._history is not None:
            self._history.on_version(final=final)

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


class AttachedModels:
    """The optimizers of all models of a worker, and the order of their steps
    (`core/step_order.py`)."""

    def __init__(
        self,
        worker: str,
        models: Sequence[AttachedOptimizer],
        names: Sequence[str],
        *,
        steps_on_servers: bool,
    ) -> None:
        self.several = len(models) > 1
        self._worker = worker
        self._models = tuple(models)
        self._names = tuple(names)
        self.steps_on_servers = steps_on_servers
        self._order = StepOrder(len(models))

    @property
    def only(self) -> AttachedOptimizer:
        """The model, if the worker has only one."""
        (model,) = self._models
        return model

    def begin_step(self, model: AttachedOptimizer) -> int | None:
        """Begin a step of this model. Returns the number of the model if every contribution is a
        step of one model; None if a contribution contains the steps of all models. Refuses a step
        that does not follow the order of this worker's earlier steps; the lead compares the orders
        of all workers."""
        if not self.several or not self.steps_on_servers:
            return None
        broken = self._order.step(0, 0, model.number)
        if broken is not None and broken.seen == broken.expected:
            idle = [name for number, name in enumerate(self._names) if number not in broken.seen]
            raise UsageError(
                f"the first {len(broken.seen):,} steps of {self._worker} have no repeating order"
                f"{', and none is a step of ' + ' or '.join(idle) if idle else ''}: attach only"
                f" models"
                " that make steps, and make the steps in the same order in every cycle; --kind local"
                " allows any order"
            )
        if broken is not None:
            seen = described(broken.seen, self._names)
            expected = described(broken.expected, self._names)
            raise UsageError(
                f"the steps of {self._worker} were {seen}, but the order of its first steps is"
                f" {expected}: the models must make their steps in the same order in every cycle;"
                " --kind local allows any order"
            )
        return model.number

    def steps_first(self, model: int | None) -> bool:
        """Whether this model makes the first step of the order. True if `model` is None."""
        return model is None or self._order.order[:1] == (model,)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates of the parameter groups of all models."""
        return tuple([rate for model in self._models for rate in model.rates])

    def check_tensors(self) -> None:
        for model in self._models:
            model.check_tensors()

    def check_options(self) -> None:
        for model in self._models:
            model.check_options(steps_on_servers=self.steps_on_servers)

    def take_scaled(self) -> list[AttachedOptimizer]:
        """The models whose step a GradScaler has left out since the last call, in the order of the
        steps. A model may occur several times."""
        calls: dict[int, AttachedOptimizer] = {}
        for model in self._models:
            if model.unmade:
                calls.update(dict.fromkeys(model.unmade, model))
                model.unmade.clear()
        return [calls[number] for number in sorted(calls)]

    def on_version(self, *, final: bool) -> None:
        """Handle a new version, whose parameters the models now have. `final`: the job has
        ended."""
        for model in self._models:
            model.on_version(final=final)

    def drop_gradients(self) -> None:
        for model in self._models:
            model.drop_gradients()

    def forget_state(self) -> None:
        """Forget the state of the users' optimizers."""
        for model in self._models:
            model.inner.state.clear()

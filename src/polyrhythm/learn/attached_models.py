"""The optimizers of all models of a worker, and the order of their steps (`core/step_order.py`)."""

from collections.abc import Sequence

from polyrhythm.core.step_order import StepOrder, described
from polyrhythm.errors import UsageError
from polyrhythm.learn.attached import AttachedOptimizer


class AttachedModels:
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
        self._steps_on_servers = steps_on_servers
        self._order = StepOrder(len(models))

    @property
    def only(self) -> AttachedOptimizer:
        """The model, if the worker has only one."""
        (model,) = self._models
        return model

    def begin_step(self, model: AttachedOptimizer) -> int | None:
        """A step of this model begins. Returns the number of the model if every contribution is a
        step of one model; None if a contribution contains the steps of all models. Refuses a step
        that is not the next one in the order of this worker's own steps; the lead compares the
        orders of all workers."""
        if not self.several or not self._steps_on_servers:
            return None
        broken = self._order.step(0, 0, model.number)
        if broken is not None and broken.seen == broken.expected:
            idle = [name for number, name in enumerate(self._names) if number not in broken.seen]
            raise UsageError(
                f"the first {len(broken.seen):,} steps of {self._worker} follow no order that repeats"
                f"{', and none is a step of ' + ' or '.join(idle) if idle else ''}: attach only models"
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
            model.check_options(steps_on_servers=self._steps_on_servers)

    def take_scaled(self) -> list[AttachedOptimizer]:
        """The models whose step a GradScaler has left out since the last call, in the order of
        these steps. A model may occur several times."""
        calls: dict[int, AttachedOptimizer] = {}
        for model in self._models:
            if model.unmade:
                calls.update(dict.fromkeys(model.unmade, model))
                model.unmade.clear()
        return [calls[number] for number in sorted(calls)]

    def version_came(self, *, final: bool) -> None:
        """The models now have the parameters of a new version. `final`: the job has ended."""
        for model in self._models:
            model.version_came(final=final)

    def drop_gradients(self) -> None:
        for model in self._models:
            model.drop_gradients()

    def forget_state(self) -> None:
        """Forget the state of the users' optimizers."""
        for model in self._models:
            model.inner.state.clear()

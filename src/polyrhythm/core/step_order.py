"""The order in which the models of a job make their steps, such as critic, critic, generator.

*All workers make their steps in one order, which repeats. The order is learnt: it is the sequence of
models from a first step up to the next step of that first model after which every model has made a
step. A worker whose next step is of another model than the order says is refused.* The order is
learnt from whichever worker comes first, so a worker that differs in the first cycle is found too.

This matters where servers make the steps (kind gradient): a contribution is then one step of one
model. With kind local a contribution is the change of all models, and any order is allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_STEPS = 1_000
"""The longest order. It limits what the lead remembers if a model makes no steps at all."""


@dataclass(frozen=True, slots=True)
class OrderBroken:
    """A step that is not the next one in the order. The members are numbers of models."""

    expected: tuple[int, ...]
    """The order, or the beginning of it that is known."""
    seen: tuple[int, ...]
    """The steps of the worker since the beginning of the order, with the one that is refused."""


class StepOrder:
    """The order of the steps of a job with `models` models, and where each worker stands in it."""

    def __init__(self, models: int) -> None:
        self._models = models
        self.order: tuple[int, ...] = ()
        self.complete = False
        self._at: dict[tuple[int, int], int] = {}
        """Per member (worker and incarnation), its position: the number of steps since the
        beginning of the order."""

    def step(self, worker: int, incarnation: int, model: int) -> OrderBroken | None:
        """A member makes a step of this model. Returns what is wrong; None if the step fits."""
        key = worker, incarnation
        at = self._at.get(key, 0)
        if at == len(self.order) and at:
            every = len(set(self.order)) == self._models
            if self.complete or (every and model == self.order[0]):
                self.complete = True
                at = 0
        if at == len(self.order):
            if at == MOST_STEPS:
                return OrderBroken(self.order, (*self.order, model))
            self.order += (model,)
        elif self.order[at] != model:
            return OrderBroken(self.order, (*self.order[:at], model))
        self._at[key] = at + 1
        return None

    def position(self, worker: int, incarnation: int) -> int:
        """The position of the member's next step in the order."""
        at = self._at.get((worker, incarnation), 0)
        return 0 if self.complete and at == len(self.order) else at

    def forget(self, worker: int, incarnation: int) -> None:
        """The member was removed. If it comes back, it begins with the first step again."""
        self._at.pop((worker, incarnation), None)


def described(order: Sequence[int], names: Sequence[str]) -> str:
    """The order in words, such as "2 x critic, generator"."""
    runs: list[tuple[int, int]] = []
    for model in order:
        if runs and runs[-1][0] == model:
            runs[-1] = (model, runs[-1][1] + 1)
        else:
            runs.append((model, 1))
    words = [names[model] if count == 1 else f"{count} x {names[model]}" for model, count in runs]
    if len(words) > _MOST_WORDS:
        words = [*words[:_MOST_WORDS], "…"]
    return ", ".join(words)


_MOST_WORDS = 12

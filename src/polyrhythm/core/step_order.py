"""The order in which the models of a job make their steps, such as critic, critic, generator.

*All workers make their steps in one order, which repeats. The lead learns the order from the steps.
The order is complete when every model has made a step and the model of the first step makes another
one, which begins the next repetition. The lead refuses a worker whose step is not the next one in
the order.* It learns each step from the worker that makes the step first, so it notices a worker
with another order even in the first repetition.

This matters only where servers make the steps (kind gradient), because each contribution is then
one step of one model. With kind local a contribution contains the changes of all models, and any
order is allowed.
"""

from collections.abc import Sequence

import msgspec

MOST_STEPS = 1_000
"""The most steps in an order. Without a limit, the lead would remember ever more steps if one model
made none."""


class OrderBroken(msgspec.Struct, frozen=True):
    """A step that is not the next one in the order. Both fields contain numbers of models."""

    expected: tuple[int, ...]
    """The order of the steps, or the part of it that is known so far."""
    seen: tuple[int, ...]
    """The steps of the worker since the beginning of the order, including the step that is
    refused."""


class StepOrder(msgspec.Struct):
    """The order of the steps of a job with `models` models, and the position of each worker in it.

    A worker that was removed and comes back continues in the middle of the order. If its process
    was restarted, it begins at the start. Its next steps show which of the two is the case.
    """

    _models: int
    order: tuple[int, ...] = ()
    complete: bool = False
    _places: dict[tuple[int, int], frozenset[int]] = {}
    """Per member (worker and incarnation), its possible positions: the number of steps since
    the beginning of the order."""
    _removed: set[int] = set()
    """Workers that were removed."""

    def step(self, worker: int, incarnation: int, model: int) -> OrderBroken | None:
        """Check a step of this model by a member. Returns what is wrong; None if the step follows
        the order."""
        key = worker, incarnation
        at = self._places.get(key)
        if at is None and worker in self._removed:
            if not self.complete:
                return None
            at = frozenset(range(len(self.order)))
        elif at is None:
            at = _BEGINNING
        if not self.complete:
            at = self._learn(at, model)
        fits = [place % len(self.order) for place in at]
        fits = [place for place in fits if self.order[place] == model]
        if not fits or len(self.order) > MOST_STEPS:
            return OrderBroken(self.order, (*self.order[: min(at)], model))
        self._places[key] = frozenset(place + 1 for place in fits)
        return None

    def _learn(self, at: frozenset[int], model: int) -> frozenset[int]:
        """Extend the known order if this member is the first to reach its end. Its step with
        `model` is the next step of the order, or the first step of a repetition. Returns the
        position of that step."""
        (place,) = at
        if place < len(self.order):
            return at
        if model in self.order[:1] and len(set(self.order)) == self._models:
            self.complete = True
            return _BEGINNING
        self.order += (model,)
        return at

    def forget(self, worker: int, incarnation: int) -> None:
        """Forget the position of a member that was removed."""
        self._places.pop((worker, incarnation), None)
        self._removed.add(worker)


_BEGINNING = frozenset({0})


def described(order: Sequence[int], names: Sequence[str]) -> str:
    """The order of the steps in words, such as "2 x critic, generator"."""
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

"""Logistic regression by gradients: the sum of the gradients over all points, and steps of L-BFGS.

A round computes the loss and its gradient at one set of coefficients. *The whole state of the
search is part of the parameters* (the last accepted coefficients, the direction, the step and the
history), so every worker makes the same step, and a worker that joins continues the search. A step
that does not lower the loss enough is shortened, which costs one more round.

All gradients must be computed at the same coefficients, so the algorithm needs a policy that visits
all points in a round.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Check, Memory
from polyrhythm.learn.pointwise.blocks import block_rows, over_blocks
from polyrhythm.learn.pointwise.fuzzy import add_up
from polyrhythm.learn.pointwise.layout import Array, Arrays, Shape

_HISTORY = 10
_SUFFICIENT = 1e-4
_SHORTEST = 1e-10


class LogisticRegressionAlgorithm(Algorithm):
    """`classes`: how many classes there are; labels are 0 to classes - 1. With two classes there is
    one row of coefficients. `penalty` times half the sum of squared coefficients is added to the mean
    loss. `tol`: the job ends when no element of the gradient is larger than this. `steps`: the most
    steps that are made."""

    name = "lr"
    same_parameters = True

    def __init__(
        self,
        classes: int,
        *,
        penalty: float = 0.0,
        intercept: bool = True,
        tol: float = 1e-4,
        steps: int = 100,
        threads: int = 1,
    ) -> None:
        if classes < 2:
            raise UsageError(f"there is {classes} class: at least two are needed")
        self.classes, self.penalty, self.intercept = classes, penalty, intercept
        self.tol, self.steps, self.threads = tol, steps, threads

    @property
    def rows(self) -> int:
        return 1 if self.classes == 2 else self.classes

    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        return self.begin(np.zeros((self.rows, sample.x.shape[1] + 1)))

    def begin(self, coefficients: Array) -> Arrays:
        """The parameters of a search that begins with these coefficients. The last column is the
        intercept."""
        size = coefficients.size
        return {
            "coef": coefficients.copy(),
            "place": coefficients.copy(),
            "gradient": np.zeros(size),
            "direction": np.zeros(size),
            "moves": np.zeros((_HISTORY, size)),
            "bends": np.zeros((_HISTORY, size)),
            "search": np.zeros(len(_SEARCH)),
        }

    def statistics(self, parameter: Arrays) -> Mapping[str, Shape]:
        return {"gradient": parameter["coef"].shape, "loss": (), "weight": ()}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        x, labels = batch.x, batch.y
        if labels is None:
            raise UsageError("logistic regression needs a label for each point")
        coefficients = parameter["coef"].astype(x.dtype)
        factor = np.ascontiguousarray(coefficients[:, :-1])
        bias = coefficients[:, -1:]
        layout = self.layout(parameter)
        rows = block_rows(x.shape[1] * x.dtype.itemsize + 8 * self.rows)

        def work(total: Arrays, block: slice) -> None:
            points, label = x[block], labels[block]
            scores = product(factor, points)
            scores += bias
            loss, rest = _binary(scores, label) if self.rows == 1 else _several(scores, label)
            if batch.weight is None:
                total["weight"] += len(label)
            else:
                weight = batch.weight[block].astype(x.dtype)
                loss *= weight
                rest *= weight
                total["weight"] += weight.sum(dtype=np.float64)
            total["loss"] += loss.sum(dtype=np.float64)
            total["gradient"][:, :-1] += rest @ points
            if self.intercept:
                total["gradient"][:, -1] += rest.sum(1, dtype=np.float64)

        return add_up(over_blocks(len(batch), rows, self.threads, layout.zeros, work))

    def loss_and_gradient(self, statistics: Arrays, coefficients: Array) -> tuple[float, Array]:
        """The mean loss with its penalty, and its gradient."""
        weight = max(1e-300, float(statistics["weight"]))
        gradient = statistics["gradient"] / weight
        gradient[:, :-1] += self.penalty * coefficients[:, :-1]
        squares = float((coefficients[:, :-1] ** 2).sum())
        return float(statistics["loss"]) / weight + 0.5 * self.penalty * squares, gradient.ravel()

    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        new = {name: array.copy() for name, array in old.items()}
        loss, gradient = self.loss_and_gradient(statistics, old["coef"])
        search = LineSearch(new["search"])
        if search.done:
            return new
        begun = search.begun
        if begun:
            slope = float(new["gradient"] @ new["direction"])
            if not loss <= search.loss + _SUFFICIENT * search.step * slope:
                search.step *= _shorter(search.loss, loss, slope, search.step)
                search.done = float(search.step < _SHORTEST)
                return _try(new, search)
            _remember(new, search, gradient)
            search.taken += 1
        new["place"][...] = old["coef"]
        new["gradient"][...] = gradient
        search.begun, search.loss = 1.0, loss
        search.done = float(np.abs(gradient).max() <= self.tol or search.taken >= self.steps)
        new["direction"][...] = _direction(new, search)
        search.step = (
            1.0 if search.kept else min(1.0, 1.0 / max(1e-12, float(np.abs(gradient).sum())))
        )
        return _try(new, search)

    def objective(self, statistics: Arrays, parameter: Arrays) -> float:
        """The loss of all points with its penalty, at the last accepted coefficients."""
        return float(LineSearch(parameter["search"]).loss) * float(statistics["weight"])

    def terminated(self, check: Check) -> bool:
        return bool(LineSearch(check.new["search"]).done)


_SEARCH = ("begun", "loss", "step", "kept", "taken", "done")
"""The numbers of a search: whether coefficients were accepted, their loss, the step along the
direction, how many moves the history has, how many steps were taken, and whether the search has
ended."""


class LineSearch:
    """Gives names to the numbers of a search (`_SEARCH`), which are stored in one array."""

    def __init__(self, values: Array) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_values"][_SEARCH.index(name)]

    def __setattr__(self, name: str, value: float) -> None:
        self.__dict__["_values"][_SEARCH.index(name)] = value


def product(factor: npt.NDArray[Any], x: Any) -> npt.NDArray[Any]:
    """The matrix product of `factor` and x^T. The points x are a numpy array or a CSR matrix."""
    if isinstance(x, np.ndarray):
        found: npt.NDArray[Any] = factor @ x.T
        return found
    return np.ascontiguousarray((x @ factor.T).T)


def _binary(
    scores: npt.NDArray[Any], label: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The loss of each point, and the derivative of the loss with respect to the score."""
    score = scores[0]
    small = np.exp(-np.abs(score))
    loss = np.log1p(small) + np.maximum(score, 0.0) - label * score
    rest = np.where(score >= 0.0, 1.0, small) / (1.0 + small) - label
    return loss.astype(scores.dtype), rest[None].astype(scores.dtype)


def _several(
    scores: npt.NDArray[Any], label: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    at = np.arange(len(label))
    scores -= scores.max(0)
    own = scores[label, at]
    share = np.exp(scores, out=scores)
    total = share.sum(0)
    share /= total
    loss = np.log(total) - own
    share[label, at] -= 1.0
    return loss, share


def _shorter(before: float, after: float, slope: float, step: float) -> float:
    """The factor by which to shorten a step: the minimum of the parabola through the known
    values."""
    excess = after - before - slope * step
    if not np.isfinite(after) or excess <= 0.0:
        return 0.1
    return float(np.clip(-slope * step / (2.0 * excess), 0.1, 0.5))


def _remember(new: Arrays, search: LineSearch, gradient: Array) -> None:
    """Add the last change of the coefficients, and of the gradient, to the history of L-BFGS."""
    move = (new["coef"] - new["place"]).ravel()
    bend = gradient - new["gradient"]
    if move @ bend <= 1e-12 * float(bend @ bend):
        return
    for name, latest in (("moves", move), ("bends", bend)):
        new[name][:-1] = new[name][1:].copy()
        new[name][-1] = latest
    search.kept = min(float(_HISTORY), search.kept + 1.0)


def _direction(new: Arrays, search: LineSearch) -> Array:
    """The direction of L-BFGS: the gradient times an estimate of the inverse second derivative."""
    found: Array = -new["gradient"]
    history = [(new["moves"][-age], new["bends"][-age]) for age in range(1, int(search.kept) + 1)]
    parts = []
    for move, bend in history:
        part = float(move @ found) / float(move @ bend)
        found = found - part * bend
        parts.append(part)
    if history:
        move, bend = history[0]
        found = found * (float(move @ bend) / float(bend @ bend))
    for (move, bend), part in zip(reversed(history), reversed(parts), strict=True):
        found = found + move * (part - float(bend @ found) / float(move @ bend))
    if found @ new["gradient"] >= 0.0:
        search.kept = 0.0
        return -new["gradient"]
    return found


def _try(new: Arrays, search: LineSearch) -> Arrays:
    """Put the coefficients to evaluate next into `coef`. When the search has ended, these are the last
    accepted ones."""
    if search.done:
        new["coef"] = new["place"].copy()
    else:
        new["coef"] = new["place"] + search.step * new["direction"].reshape(new["place"].shape)
    return new

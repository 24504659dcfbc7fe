"""Non-negative matrix factorisation by statistics: X is approximately W H, without negative
numbers.

A point is a row of X, and its memory is its row of W. Given H, the rows of W are independent of
each other. Given the sums of w w^T and w x^T over all points, H can be improved without the points.
Coordinate descent improves both, as in scikit-learn's solver "cd", and the objective is that of
scikit-learn.

With `observed_only`, X is sparse, and a number that is not stored is unknown instead of 0
(ratings). Then each column of X has a separate sum of w w^T.
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

_FIRST_SWEEPS = 5
"""How many times the row of W is improved when its point is visited for the first time."""


class NMFAlgorithm(Algorithm):
    """`k`: the number of components. `l1`, `l2`: penalties in the objective, each as a pair for W and H.
    `l1` is the factor of the sum of the entries, `l2` of half the sum of their squares. `first`: how the
    first H is made, "nndsvda" or "random". `tol`: the job ends when the objective falls by less than
    this fraction of itself in a pass."""

    name = "nmf"

    def __init__(
        self,
        k: int,
        *,
        l1: tuple[float, float] = (0.0, 0.0),
        l2: tuple[float, float] = (0.0, 0.0),
        first: str = "nndsvda",
        observed_only: bool = False,
        tol: float = 1e-5,
        threads: int = 1,
    ) -> None:
        if k < 1:
            raise UsageError(f"k is {k}: a positive number of components is needed")
        self.k, self.l1, self.l2, self.first = k, l1, l2, first
        self.observed_only, self.tol, self.threads = observed_only, tol, threads
        self._pairs = np.tril_indices(k)

    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        check_negative(sample.x)
        if self.first == "random" or self.k > min(sample.x.shape):
            return {"components": random_factor(sample.x, self.k, rng)}
        return {"components": nndsvda(sample.x, self.k, rng)}

    def statistics(self, parameter: Arrays) -> Mapping[str, Shape]:
        k, d = parameter["components"].shape
        gram = (d, len(self._pairs[0])) if self.observed_only else (k, k)
        return {"gram": gram, "product": (k, d), "square": (), "sums": (2,), "points": ()}

    def memory(self, count: int) -> Memory:
        return {"w": np.zeros((count, self.k)), "counted": np.zeros(count, np.bool_)}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        x, h = batch.x, parameter["components"]
        layout = self.layout(parameter)
        rows = block_rows(8 * (x.shape[1] if isinstance(x, np.ndarray) else 8 * self.k))

        def work(change: Arrays, block: slice) -> None:
            inside = {name: array[block] for name, array in memory.items()}
            self._update_block(x[block], h, inside, change)

        return add_up(over_blocks(len(batch), rows, self.threads, layout.zeros, work))

    def _update_block(self, x: Any, h: Array, memory: Memory, change: Arrays) -> None:
        old, fresh = memory["w"], ~memory["counted"]
        known = observed(x) if self.observed_only else None
        new = old.copy()
        self._improve(new, x, h, known, _FIRST_SWEEPS if fresh.any() else 1)
        if known is None:
            change["gram"] += new.T @ new - old.T @ old
        else:
            change["gram"] += known.T @ (self._outer(new) - self._outer(old))
        change["product"] += _dense((x.T @ (new - old)).T)
        change["sums"] += (new.sum() - old.sum(), (new**2).sum() - (old**2).sum())
        if fresh.any():
            part = x if fresh.all() else x[fresh]
            values = (part if isinstance(part, np.ndarray) else part.data).ravel()
            change["square"] += np.einsum("i,i->", values, values, dtype=np.float64)
        change["points"] += np.count_nonzero(fresh)
        old[...] = new
        memory["counted"][...] = True

    def _outer(self, w: Array) -> Array:
        """The products of all pairs of components, for each point."""
        found: Array = w[:, self._pairs[0]] * w[:, self._pairs[1]]
        return found

    def _full(self, pairs: Array) -> Array:
        """A symmetric matrix for each row of `pairs`. A row contains the values of all pairs of
        components."""
        full = np.empty((len(pairs), self.k, self.k))
        full[:, self._pairs[0], self._pairs[1]] = pairs
        full[:, self._pairs[1], self._pairs[0]] = pairs
        return full

    def _improve(self, w: Array, x: Any, h: Array, known: Any, sweeps: int) -> None:
        """Improve rows of W by coordinate descent, in place."""
        aim = _dense(x @ h.T.astype(x.dtype)).astype(np.float64) - self.l1[0]
        if known is None:
            gram = h @ h.T + self.l2[0] * np.eye(self.k)
            for _ in range(sweeps):
                for k in range(self.k):
                    if gram[k, k] > 0.0:
                        step = (aim[:, k] - w @ gram[:, k]) / gram[k, k]
                        np.maximum(w[:, k] + step, 0.0, out=w[:, k])
            return
        _descend(
            w, aim, self._full(known @ self._outer(np.ascontiguousarray(h.T))), self.l2[0], sweeps
        )

    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        h = old["components"].copy()
        aim = statistics["product"] - self.l1[1]
        if self.observed_only:
            rows = np.ascontiguousarray(h.T)
            _descend(rows, aim.T, self._full(statistics["gram"]), self.l2[1], 1)
            return {"components": np.ascontiguousarray(rows.T)}
        gram = statistics["gram"] + self.l2[1] * np.eye(self.k)
        for k in range(self.k):
            if gram[k, k] > 0.0:
                np.maximum(h[k] + (aim[k] - gram[k] @ h) / gram[k, k], 0.0, out=h[k])
        return {"components": h}

    def error(self, statistics: Arrays, h: Array) -> float:
        """The sum of the squared differences between X and W H."""
        if self.observed_only:
            outer = self._outer(np.ascontiguousarray(h.T))
            twice = np.where(self._pairs[0] == self._pairs[1], 1.0, 2.0)
            square = float((statistics["gram"] * outer * twice).sum())
        else:
            square = float((statistics["gram"] * (h @ h.T)).sum())
        cross = float((statistics["product"] * h).sum())
        return max(0.0, float(statistics["square"]) - 2.0 * cross + square)

    def objective(self, statistics: Arrays, parameter: Arrays) -> float:
        h = parameter["components"]
        total, squares = statistics["sums"]
        penalty = self.l1[0] * float(total) + self.l1[1] * float(h.sum())
        penalty += 0.5 * (self.l2[0] * float(squares) + self.l2[1] * float((h**2).sum()))
        return 0.5 * self.error(statistics, h) + penalty

    def terminated(self, check: Check) -> bool:
        if check.objective is None or check.last_objective is None:
            return False
        return check.last_objective - check.objective <= self.tol * abs(check.last_objective)

    def transform(self, x: Any, h: Array, sweeps: int = 200) -> Array:
        """The rows of W for points and a given H."""
        w = np.zeros((x.shape[0], self.k))
        known = observed(x) if self.observed_only else None
        for _ in range(max(1, sweeps // 10)):
            before = w.copy()
            self._improve(w, x, h, known, 10)
            if np.abs(w - before).max(initial=0.0) <= 1e-6 * max(1e-12, np.abs(w).max(initial=0.0)):
                break
        return w


def _descend(w: Array, aim: Array, gram: Array, l2: float, sweeps: int) -> None:
    """Coordinate descent for rows, where each row has its own matrix."""
    for _ in range(sweeps):
        for k in range(w.shape[1]):
            own = gram[:, k, k] + l2
            usable = own > 0.0
            slope = aim[:, k] - np.einsum("nk,nk->n", gram[:, k], w) - l2 * w[:, k]
            step = np.divide(slope, own, out=np.zeros(len(w)), where=usable)
            np.maximum(w[:, k] + step, 0.0, out=w[:, k])


def observed(x: Any) -> Any:
    """A matrix with 1.0 where a number of a CSR matrix is stored."""
    if isinstance(x, np.ndarray):
        raise UsageError("observed-only needs sparse points: give a scipy CSR matrix")
    known = x.copy()
    known.data = np.ones(len(x.data))
    return known


def check_negative(x: Any) -> None:
    """Raise an error that names the first negative number."""
    values = x if isinstance(x, np.ndarray) else x.data
    if values.size == 0 or values.min() >= 0:
        return
    if isinstance(x, np.ndarray):
        row, column = (int(index) for index in np.argwhere(x < 0)[0])
    else:
        at = int(np.flatnonzero(values < 0)[0])
        row, column = int(np.searchsorted(x.indptr, at, side="right")) - 1, int(x.indices[at])
    raise UsageError(
        f"Negative values in data passed to NMF: row {row}, column {column} is {x[row, column]:g};"
        " ratings and counts must be 0 or more"
    )


def random_factor(x: Any, k: int, rng: np.random.Generator) -> Array:
    mean = float(x.sum(dtype=np.float64)) / max(1, x.shape[0] * x.shape[1])
    found: Array = np.abs(rng.standard_normal((k, x.shape[1]))) * np.sqrt(mean / k)
    return found


def nndsvda(x: Any, k: int, rng: np.random.Generator) -> Array:
    """The first H from singular vectors (Boutsidis and Gallopoulos, 2008): for each pair of
    vectors, the positive or the negative parts are taken, whichever have the larger product of
    norms, and zeros become the mean of X."""
    left, values, right = _singular(x, k, rng)
    h = np.empty((k, x.shape[1]))
    h[0] = np.sqrt(values[0]) * np.abs(right[0])
    for at in range(1, k):
        u, v = left[:, at], right[at]
        up, vp = np.maximum(u, 0.0), np.maximum(v, 0.0)
        un, vn = np.maximum(-u, 0.0), np.maximum(-v, 0.0)
        positive = float(np.linalg.norm(up) * np.linalg.norm(vp))
        negative = float(np.linalg.norm(un) * np.linalg.norm(vn))
        part, size = (vp, positive) if positive > negative else (vn, negative)
        norm = float(np.linalg.norm(part))
        h[at] = 0.0 if norm == 0.0 else np.sqrt(values[at] * size) * part / norm
    mean = float(x.sum(dtype=np.float64)) / (x.shape[0] * x.shape[1])
    h[h < 1e-6] = mean
    return h


def _singular(x: Any, k: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """The largest singular values and vectors, by a random projection and three power iterations."""
    width = min(min(x.shape), k + 10)
    basis: Array = np.asarray(x @ rng.standard_normal((x.shape[1], width)), np.float64)
    for _ in range(3):
        basis, _ = np.linalg.qr(basis)
        basis, _ = np.linalg.qr(np.asarray(x.T @ basis, np.float64))
        basis = np.asarray(x @ basis, np.float64)
    basis, _ = np.linalg.qr(basis)
    u, values, right = np.linalg.svd(np.asarray((x.T @ basis).T, np.float64), full_matrices=False)
    return (basis @ u)[:, :k], values[:k], right[:k]


def _dense(x: Any) -> npt.NDArray[Any]:
    return np.asarray(x.todense() if hasattr(x, "todense") else x)

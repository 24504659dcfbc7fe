"""The six algorithms of the FSP paper with their data: what a worker computes, how the objective of
given parameters is evaluated, and what a reference run reaches.

| problem | points | parameters by |
|---|---|---|
| `kmeans`, `fcm`, `gmm` | 10,984 events of HIGGS, 28 features with unit variances | statistics |
| `nmf` | 3,650 films of MovieLens (with 5 or more ratings) by 610 persons, 0 if not rated | statistics |
| `lr` | the events of `kmeans`, with their labels | gradients (Adam) |
| `kmeans-sorted` | the events of `kmeans`, sorted by the mass m_bb | statistics |
| `lr-sorted` | the events of `kmeans-sorted`, with their labels | gradients (Adam) |
| `cnn` | 3,000 digits of MNIST | gradients (Adam) |
| `kmeans-large` | 1,098,400 points: each event 100 times, with random changes | statistics |
| `lr-large` | the points of `kmeans-large`, with the labels of their events | gradients (Adam) |

The network of `cnn` has two convolutions with 6 and 12 kernels of 5 x 5 (FSP's footnote 3).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.blocks import one_blas_thread
from polyrhythm.learn.pointwise.factors import NMFAlgorithm
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm
from polyrhythm.learn.pointwise.runner import first_parameter
from polyrhythm.learn.pointwise.source import ArraySource

Evaluate = Callable[[Arrays], float]
"""Gives the objective of parameters: the mean over all points."""

SORTED, LARGE = "higgs-sorted.npy", "higgs-large.npy"
_NEVER = 1e-12
"""A tolerance so small that an algorithm ends only when its objective hardly changes any more."""
_K = 10


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    data: str
    """The name of the file in the data folder."""
    batch: int
    """The number of points in a full step. Under `fsp` a micro-batch has at most this many points, and
    the first interval of `auto` is the time in which each worker visits this many."""
    passes: int
    """The target of a start is the objective that `bspb` reaches after this many passes from that
    start."""
    algorithm: Callable[[], Algorithm] | None = None
    """The point-wise algorithm; None if the problem is trained with gradients."""
    pass_s: float = 1.0
    """How long a worker that is not stalled needs for all of its points."""
    stall_every: int = 8
    """A stalled worker pauses after this many points. FSP pauses every 1,000 points of large data
    sets."""

    @property
    def kind(self) -> str:
        return "gradient" if self.algorithm is None else "statistics"


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("kmeans", "higgs.npy", 64, 6, lambda: KMeansAlgorithm(_K, tol=_NEVER)),
        Problem("fcm", "higgs.npy", 64, 6, lambda: FuzzyCMeansAlgorithm(_K, m=1.3, tol=_NEVER)),
        Problem(
            "gmm",
            "higgs.npy",
            64,
            6,
            lambda: GaussianMixtureAlgorithm(_K, tol=_NEVER, regularisation=1e-2),
        ),
        Problem("nmf", "films.npy", 16, 6, lambda: NMFAlgorithm(_K, tol=_NEVER)),
        Problem("lr", "higgs.npy", 128, 30, pass_s=0.6),
        Problem("cnn", "digits.npz", 32, 45),
        Problem("kmeans-sorted", SORTED, 64, 10, lambda: KMeansAlgorithm(_K, tol=_NEVER)),
        Problem("lr-sorted", SORTED, 128, 20, pass_s=0.6),
        Problem(
            "kmeans-large",
            LARGE,
            8_192,
            6,
            lambda: KMeansAlgorithm(_K, tol=_NEVER),
            pass_s=0.15,
            stall_every=1_000,
        ),
        Problem("lr-large", LARGE, 1_024, 30, pass_s=0.6, stall_every=1_000),
    )
}


# -- data and models ---------------------------------------------------------------------------


def points_of(problem: Problem, folder: Path) -> npt.NDArray[np.float32]:
    """The points of a problem that is trained with statistics, one row each. HIGGS's label is left
    out."""
    table = np.load(folder / problem.data)
    return np.ascontiguousarray(table[:, :-1] if problem.data.startswith("higgs") else table)


def tensors_of(problem: Problem, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of a problem that is trained with gradients, and their labels."""
    found = np.load(folder / problem.data)
    if problem.name == "cnn":
        images = torch.from_numpy(found["images"]).unsqueeze(1).float()
        return (images / 255 - 0.1307) / 0.3081, torch.from_numpy(found["labels"]).long()
    table = torch.from_numpy(found)
    return table[:, :-1].contiguous(), table[:, -1].long()


def model_of(problem: Problem, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    if problem.name != "cnn":
        model: nn.Module = nn.Linear(28, 2)
        return model, torch.optim.Adam(model.parameters(), lr=0.02)
    model = nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(192, 10)),
    )
    return model, torch.optim.Adam(model.parameters(), lr=0.005)


def arrays_of(model: nn.Module) -> Arrays:
    """A copy of the parameters of a model."""
    return {
        name: value.detach().numpy().astype(np.float64) for name, value in model.named_parameters()
    }


# -- the objective -----------------------------------------------------------------------------

_EVALUATED = {"digits.npz": 1_000, LARGE: 10_000}
"""The number of points on which the objective is evaluated, if an evaluation on all points would take
too long."""
_AT_ONCE = 500


def evaluation_of(problem: Problem, folder: Path) -> Evaluate:
    """The objective function by which all runs are compared. It visits all points anew, so it does not
    depend on what workers remember of their points."""
    most = _EVALUATED.get(problem.data)
    if problem.algorithm is not None:
        return _by_statistics(problem.algorithm(), points_of(problem, folder)[:most])
    x, y = (every[:most] for every in tensors_of(problem, folder))
    model, _ = model_of(problem, 0)
    own = dict(model.named_parameters())

    def evaluate(parameter: Arrays) -> float:
        with torch.no_grad():
            for name, value in parameter.items():
                own[name].copy_(torch.from_numpy(value))
            return float(nn.functional.cross_entropy(model(x), y))

    return evaluate


def _by_statistics(algorithm: Algorithm, x: npt.NDArray[Any]) -> Evaluate:
    def evaluate(parameter: Arrays) -> float:
        with one_blas_thread():
            found = algorithm.update_points(Batch(x), parameter, algorithm.memory(len(x)))
            value = algorithm.objective(found, parameter)
        assert value is not None
        return value / len(x)

    return evaluate


# -- the reference -----------------------------------------------------------------------------


def reference(problem: Problem, folder: Path, seed: int = 0) -> Iterator[Arrays]:
    """The first parameters, and those after each pass of `bspb`, computed in this process."""
    if problem.algorithm is not None:
        algorithm = problem.algorithm()
        points = Batch(points_of(problem, folder))
        parameter = first_parameter(algorithm, ArraySource(points), seed)
        layout, memory = algorithm.layout(parameter), algorithm.memory(len(points))
        total = layout.flat(layout.zeros())
        while True:
            yield parameter
            with one_blas_thread():
                found = layout.flat(algorithm.update_points(points, parameter, memory))
            total = total + found if memory else found
            statistics = layout.views(total.copy())
            parameter = algorithm.update_parameter(statistics, parameter)
            parameter = algorithm.repair(statistics, parameter)
    x, y = tensors_of(problem, folder)
    model, optimizer = model_of(problem, seed)
    while True:
        yield arrays_of(model)
        optimizer.zero_grad()
        for first in range(0, len(x), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            loss = nn.functional.cross_entropy(model(x[part]), y[part], reduction="sum") / len(x)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def target_of(
    problem: Problem, folder: Path, start: int = 0, passes: int | None = None
) -> dict[str, float]:
    """The objective of the first parameters of a start, and the target of that start: the objective
    that `bspb` reaches with its last pass. The target demands only nine tenths of the gain of that last
    pass, so that rounding does not make one more pass necessary."""
    evaluate = evaluation_of(problem, folder)
    steps = reference(problem, folder, start)
    every = [next(steps) for _ in range((passes or problem.passes) + 1)]
    values = [evaluate(every[at]) for at in (0, -2, -1)]
    return {"first": values[0], "target": values[-1] + 0.1 * (values[-2] - values[-1])}

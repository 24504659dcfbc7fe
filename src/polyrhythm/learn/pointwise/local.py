"""Runs a point-wise algorithm on one set of points in this process, with the simplest loop: visit
all points, compute the parameters, and check whether to end. It computes first parameters, and is
the reference for the results of jobs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Check, Memory, has_memory
from polyrhythm.learn.pointwise.layout import ArrayLayout, Arrays


@dataclass(slots=True)
class LocalFit:
    """The result of `fit_local`."""

    parameter: Arrays
    memory: Memory
    passes: int
    terminated: bool
    """Whether the algorithm has ended the loop. False: the loop has reached its number of
    passes."""
    objectives: list[float] = field(default_factory=list)
    """The objective after each pass over the points."""
    ended_s: list[float] = field(default_factory=list)
    """The time at the end of each pass, by the clock of `time.perf_counter`."""


def fit_local(
    algorithm: Algorithm,
    points: Batch,
    *,
    rng: np.random.Generator,
    max_passes: int,
    parameter: Arrays | None = None,
    after_pass: Callable[[int, float | None], None] | None = None,
) -> LocalFit:
    """Run an algorithm. `parameter`: the first parameters; None: `init_parameter` makes them."""
    if parameter is None:
        parameter = algorithm.init_parameter(sample_of(points, algorithm.sample_points, rng), rng)
    parameters, layout = ArrayLayout.of(parameter), algorithm.layout(parameter)
    found = LocalFit(parameter, algorithm.memory(len(points)), 0, terminated=False)
    remembers = has_memory(algorithm)
    total = np.zeros(layout.size)
    last: float | None = None
    last_before: float | None = None
    for number in range(1, max_passes + 1):
        old = found.parameter
        change = layout.flat(algorithm.update_points(points, old, found.memory))
        total = algorithm.aggregate(total, change) if remembers else change
        statistics = layout.views(total)
        before = algorithm.objective(statistics, old)
        new = algorithm.repair(statistics, algorithm.update_parameter(statistics, old))
        new = parameters.views(parameters.flat(new, what="the parameters"))
        objective = algorithm.objective(statistics, new)
        found.parameter, found.passes = new, number
        found.ended_s.append(time.perf_counter())
        if objective is not None:
            found.objectives.append(objective)
        if after_pass is not None:
            after_pass(number, objective)
        if algorithm.terminated(Check(number, old, new, objective, last, before, last_before)):
            found.terminated = True
            break
        last, last_before = objective, before
    return found


def sample_of(points: Batch, count: int | None, rng: np.random.Generator) -> Batch:
    """At most `count` of the points, drawn at random. They keep their order."""
    if count is None or len(points) <= count:
        return points
    return points.part(np.sort(rng.choice(len(points), count, replace=False)))

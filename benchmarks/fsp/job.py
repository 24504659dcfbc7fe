"""The job of the measurements: `--set problem=kmeans --set batch=64 --set data=FOLDER --set out=FOLDER`.
It trains one of the six algorithms (`problems.py`) and records the run (`recording.py`)."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

# let processes that a command starts import modules of this repository
sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.fsp.problems import (
    PROBLEMS,
    SORTED,
    Problem,
    arrays_of,
    model_of,
    points_of,
    tensors_of,
)
from benchmarks.fsp.recording import Recorder
from polyrhythm import Worker
from polyrhythm.learn.data.row_groups import Indices, RowGroups
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Memory
from polyrhythm.learn.pointwise.blocks import one_blas_thread
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.runner import run_pointwise
from polyrhythm.learn.pointwise.source import ArraySource

BLOCKS = 8
"""The blocks of a batch. A block is visited as a whole, so a slow worker ends a round up to half a block
late."""


def main(worker: Worker) -> None:
    problem = PROBLEMS[worker.options["problem"]]
    folder, out = Path(worker.options["data"]), Path(worker.options["out"])
    if problem.algorithm is not None:
        by_statistics(worker, problem, problem.algorithm(), folder, out)
    else:
        by_gradients(worker, problem, folder, out)


def by_statistics(
    worker: Worker, problem: Problem, algorithm: Algorithm, folder: Path, out: Path
) -> None:
    x = points_of(problem, folder)
    recorder = Recorder(out, worker.name, len(x))
    record(algorithm, recorder)
    source = ArraySource(Batch(x, np.arange(len(x))))  # the labels are the numbers of the points
    with one_blas_thread():
        batch = int(worker.options["batch"])
        run_pointwise(worker, algorithm, source, batch=batch, block=max(1, batch // BLOCKS))
    recorder.close()


def record(algorithm: Algorithm, recorder: Recorder) -> None:
    """Let an algorithm report the points that it visits, and the parameters that it computes."""
    visit, compute = algorithm.update_points, algorithm.update_parameter
    sampling = algorithm.starts_from_sample  # the first visit is that of the sample

    def update_points(batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        nonlocal sampling
        if batch.y is not None and not sampling:
            recorder.visited(batch.y)
        sampling = False
        return visit(batch, parameter, memory)

    def update_parameter(statistics: Arrays, old: Arrays) -> Arrays:
        new = compute(statistics, old)
        if recorder.due:
            recorder.keep(new)
        return new

    algorithm.update_points = update_points  # type: ignore[method-assign]
    algorithm.update_parameter = update_parameter  # type: ignore[method-assign]


class Numbered(RowGroups):
    """A table whose points also have their numbers. The points of a chunk are neighbours in the file."""

    def columns(self, indices: Sequence[int] | Indices) -> tuple[torch.Tensor, ...]:
        x, y = super().columns(indices)
        return x, y.long(), torch.as_tensor(indices, dtype=torch.int64)


def by_gradients(worker: Worker, problem: Problem, folder: Path, out: Path) -> None:
    x, y = tensors_of(problem, folder)
    recorder = Recorder(out, worker.name, len(x))
    model, own = model_of(problem, worker.seed)
    optimizer = worker.attach(model, own)
    worker.probe((x, y), lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
    data: Any = (x, y, torch.arange(len(x)))
    if problem.data == SORTED:
        data = Numbered(folder / SORTED, label=-1)
    for points, labels, numbers in worker.batches(data, int(worker.options["batch"])):
        recorder.visited(numbers.numpy())
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(objective=loss)
        if recorder.due:
            recorder.keep(arrays_of(model))
    recorder.close()

"""Trains an example in plain torch, in one process: the example's `main` gets a worker that
exchanges nothing.

    python -m benchmarks.examples.stand_in examples/tabular.py --seed 0 --workers 3

The code of the example is the same as in a job, and so are the data, the model, the optimizer and
the number of passes. The example is trained twice: with batches as large as the batches of all
workers together, and with batches as large as the script says. The last line of output is JSON: the
values that the script reports (`metrics` and `own_batch`), and the number of training points.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.examples.notebook import code_before_training


class PlainWorker:
    """The part of `polyrhythm.Worker` that ordinary scripts use."""

    name = "plain"
    rank = 0
    stopped = False
    device = torch.device("cpu")

    def __init__(self, seed: int, passes: int, workers: int) -> None:
        self.seed = seed
        self.options: dict[str, str] = {}
        self.metrics: dict[str, float] = {}
        self.points = 0
        self._passes = passes
        self._workers = workers

    def attach(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **_: Any
    ) -> torch.optim.Optimizer:
        """Return the user's own optimizer. Its `step()` also clears the gradients, as in a job, and
        accepts the arguments of a job."""
        step = optimizer.step

        def step_and_clear(
            closure: Callable[[], Any] | None = None, *, objective: Any = None, points: Any = None
        ) -> Any:
            result = step() if closure is None else step(closure)
            optimizer.zero_grad()
            return result

        optimizer.step = step_and_clear  # type: ignore[method-assign]
        return optimizer

    def batches(self, dataset: Any, batch_size: int | None = None, **options: Any) -> Iterator[Any]:
        """Yield the batches of all passes, in a new order in every pass."""
        if isinstance(dataset, DataLoader):
            loader = dataset
            batch_size, dataset = loader.batch_size, loader.dataset
            options = {"num_workers": loader.num_workers, "collate_fn": loader.collate_fn}
        elif isinstance(dataset, tuple):
            dataset = TensorDataset(*dataset)
        assert batch_size is not None
        batches: Iterable[Any] = DataLoader(
            dataset,
            batch_size=batch_size * self._workers,
            shuffle=True,
            generator=torch.Generator().manual_seed(self.seed),
            **options,
        )
        for _ in range(self._passes):
            yield from batches
            self.points += len(dataset)

    def report(self, **metrics: float) -> None:
        self.metrics |= {name: float(value) for name, value in metrics.items()}

    def evaluate(self, **_: Callable[[], float]) -> None:
        """Do nothing: only the final result is compared."""


def train(path: Path, seed: int, workers: int) -> PlainWorker:
    """Run the `main` of an example to its end."""
    code = code_before_training(path) if path.suffix == ".ipynb" else path.read_text()
    space: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(code, str(path), "exec"), space)
    passes = space["epochs"] if "epochs" in space else space["DEFAULTS"]["epochs"]
    worker = PlainWorker(seed, passes, workers)
    space["main"](worker)
    return worker


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    worker, own = (train(args.file, args.seed, workers) for workers in (args.workers, 1))
    told = {"metrics": worker.metrics, "own_batch": own.metrics, "points": worker.points}
    print(json.dumps(told))


if __name__ == "__main__":
    main()

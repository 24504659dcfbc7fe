"""The worker that a job's `main(worker)` gets. It has all that an ordinary torch loop needs."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate

from polyrhythm.core.batches import least_of
from polyrhythm.core.sync.barrier.abandoning import OFF
from polyrhythm.errors import UsageError
from polyrhythm.learn.data.catalogue import known
from polyrhythm.learn.data.fetch import obtain
from polyrhythm.learn.data.places import DATA_DIR
from polyrhythm.learn.describe import describe
from polyrhythm.learn.evaluation import Evaluations
from polyrhythm.learn.exchange import Exchange
from polyrhythm.learn.points import Indices, Points
from polyrhythm.learn.probe import Probe
from polyrhythm.learn.staging import Pacer, Stage, Staging
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.store.model_read import load_into
from polyrhythm.wire.messages import MOST_NUMBER, ChunkProgress, JobSpec

_EVALUATOR = "worker-0"
"""The worker that evaluates for all workers. It is the first one, because its name is the same
after a restart."""


class _Visits:
    """The points visited since the last contribution, and the lease under which the first of them
    was visited."""

    def __init__(self) -> None:
        self.points = 0.0
        self.everything = 0
        self._progress: dict[int, ChunkProgress] = {}
        self._lease = 0
        self._before: tuple[float, dict[int, ChunkProgress]] = (0.0, {})
        self.put_back: Callable[[], None] | None = None
        """Returns the points of the last batch, so that they are visited again."""

    def begin(self, lease: int) -> None:
        """Note the lease of the points that follow. If points were visited since the last
        contribution, the lease of the first one counts."""
        if not self.pending:
            self._lease = lease

    def note(self, points: int, progress: Sequence[ChunkProgress]) -> None:
        if self.put_back is not None:
            self._before = (self.points, dict(self._progress))
        self.points += points
        self._progress.update({step.chunk: step for step in progress})

    def take_back(self) -> None:
        assert self.put_back is not None
        self.points, self._progress = self._before
        self.put_back()

    def drop(self) -> None:
        """Forget the points. The worker was evicted, so they will never count."""
        self.points, self._progress = 0.0, {}

    @property
    def pending(self) -> bool:
        """Whether points were visited since the last contribution."""
        return self.points > 0

    def collect(self) -> tuple[float, tuple[ChunkProgress, ...], int]:
        points, progress = self.points, tuple(self._progress.values())
        self.drop()
        return points, progress, self._lease


class Worker:
    """One worker of a running job, as the user's code sees it."""

    def __init__(self, node: WorkerNode, job: JobSpec, stage: Stage | None = None) -> None:
        """`stage`: by how much this worker is slowed down on purpose (`learn/staging.py`). None: by
        as much as the job's options (`--slow` and others) say."""
        self._node = node
        self._job = job
        self._stage = stage if stage is not None else Staging.parse(job.staging).of(node.name)
        self._visits = _Visits()
        self._attached = False
        self._exchange: Exchange | None = None
        self._pacer: Pacer | None = None
        self._left_out: set[str] = set()
        """The names of measures about which this worker has warned because they were not finite."""
        self._points: Points | None = None
        self._evaluations = Evaluations(
            time.monotonic_ns(), decides=job.target_accuracy is not None
        )

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def seed(self) -> int:
        """The job's seed, the same on every worker."""
        return self._job.seed

    @property
    def options(self) -> dict[str, str]:
        """The options given on the command line with `--set NAME=VALUE`."""
        return dict(self._job.options)

    @property
    def stopped(self) -> bool:
        """Whether the training loop must end. Either the job has ended, and the worker has the
        final parameters, or this worker was told to leave."""
        return self._node.stopped or self._node.asked

    @property
    def version(self) -> int:
        """The number of folds in the worker's present parameters."""
        return self._job.resume_round + self._node.version

    @property
    def incarnation(self) -> int:
        """The incarnation of this worker. It changes when the worker is evicted and joins again."""
        return self._node.incarnation

    @property
    def acknowledged(self) -> int:
        """How many contributions of this incarnation are certainly in the parameters of every
        server. Later contributions may be in them too. When an incarnation ends, contributions that
        were not acknowledged are dropped."""
        return self._node.acknowledged

    def attach(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Exchange:
        """Join the job with this model, and return the optimizer that exchanges its parameters.
        Training begins with the parameters of the first worker and uses the options of its
        optimizer. The models and options of other workers must match."""
        if self._attached:
            raise UsageError("attach() was called twice: a worker trains one model")
        self._attached = True
        if self._job.init:
            load_into(model, Path(self._job.init))
        spec, tensors = describe(model, optimizer, self._job.kind)
        flat = self._node.attach(spec, tensors)
        pacer = Pacer(self._stage) if self._stage != Stage() else None
        self._pacer = pacer
        self._exchange = Exchange(optimizer, self._node, flat, self._visits, model, pacer)
        return self._exchange

    def probe(
        self,
        dataset: Dataset[Any] | Sequence[torch.Tensor],
        loss_of: Callable[[Any], torch.Tensor],
    ) -> None:
        """Define how the objective is evaluated: `loss_of(batch)` returns the mean loss of the
        present model on a batch of this data set. FSP chooses its interval by this objective, on a
        sample that is divided among the workers. Without it, FSP uses the values of
        `step(objective=…)`."""
        if self._exchange is None:
            raise UsageError("call worker.attach() before worker.probe()")
        sample, seed = self._job.probe_points, self._job.seed
        self._exchange.probe = Probe(_count(dataset), sample, seed, _fetcher(dataset), loss_of)
        self._exchange.begin_round()

    def finish(self) -> None:
        """Called when `main` has returned: a worker that was told to leave contributes its last
        local steps."""
        if self._exchange is not None and self._exchange.pending and self._node.asked:
            self._exchange.contribute_rest()

    def batches(
        self, dataset: Dataset[Any] | Sequence[torch.Tensor], batch_size: int
    ) -> Iterator[Any]:
        """Yield batches of the points leased to this worker, until the job ends. `dataset` is a
        map-style data set, or tensors that are indexed together. No batch is smaller than
        `--min-batch`: a smaller remainder becomes part of the batch before it."""
        if self._exchange is None:
            raise UsageError("call worker.attach() before worker.batches()")
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}: it must be at least 1")
        least = least_of(self._job.min_batch, batch_size)
        fetch = _fetcher(dataset)
        self._exchange.cadence.begin(batch_size, least)
        lease = self._node.enrol(_count(dataset), batch_size)
        if not self._exchange.pending:
            self._exchange.take_version()
        points = self._points = self._points or Points(lease, least)
        self._visits.put_back = points.put_back if self._job.abandon != OFF else None
        self._node.timesheet.begin_interval()
        while not self.stopped:
            lease = self._node.lease or lease
            if points.take(lease):
                self._visits.drop()
            self._visits.begin(lease.number)
            self._visits.everything = sum(chunk.last - chunk.first for chunk in lease.chunks)
            indices, progress = points.next(self._exchange.next_points())
            if not len(indices):
                self._exchange.settle()
                if self._visits.pending:
                    self._exchange.contribute_rest()
                else:
                    self._node.abstain(lease.number)
                    self._exchange.take_version()
                continue
            self._visits.note(len(indices), progress)
            if self._pacer is not None:
                self._pacer.share = (
                    len(indices) / batch_size if self._exchange.traits.timed else 1.0
                )
            yield fetch(indices)
        if self._visits.pending:
            self._exchange.contribute_rest()

    def data(self, name: str) -> Path:
        """Return the folder of a data set of the catalogue (`polyrhythm data list`). It is searched
        in `--data-dir` and the other places. A small data set that is not found is downloaded."""
        return obtain(known(name), self._job.options.get(DATA_DIR), os.environ)

    def push_buffers(self) -> list[list[torch.Tensor]]:
        """The buffers from which contributions are sent. Each buffer has one tensor per dtype of
        the parameters. With rounds and without a timer, the first two buffers are used in turn. A
        gradient that is already in the buffer is sent without a copy."""
        return self._node.push_buffers()

    def report(self, **metrics: float) -> None:
        """Write measures of this worker, such as its accuracy, to the journal and the summary. A
        measure that is not a finite number is left out; the first time, a warning is printed."""
        measured = {name: float(value) for name, value in metrics.items()}
        finite = {name: value for name, value in measured.items() if abs(value) <= MOST_NUMBER}
        for name in sorted(measured.keys() - finite.keys() - self._left_out):
            self._left_out.add(name)
            said = f"{self.name} does not report {name}={measured[name]}: it is not a finite number"
            print(f"polyrhythm: {said}", file=sys.stderr, flush=True)
        if finite:
            exact = self._exchange is None or self._exchange.has_version
            self._node.report(finite, self._node.version if exact else -1)

    def evaluate(self, **measures: Callable[[], float]) -> None:
        """Evaluate these measures now and then, and report them. `--target-accuracy` needs this.
        Call it after every step: worker-0 evaluates, and other workers do nothing. The time of
        evaluations does not count as computing. It is at most a tenth of the worker's time."""
        began_ns = time.monotonic_ns()
        if self.name != _EVALUATOR or self.stopped or not self._evaluations.due(began_ns):
            return
        exchange = self._exchange
        if exchange is not None and exchange.traits.timed and exchange.pending:
            return  # the evaluation could outlast the interval, and the other workers would wait
        self.report(**{name: measure() for name, measure in measures.items()})
        now_ns = time.monotonic_ns()
        self._evaluations.done(began_ns, now_ns)
        if self._exchange is not None:
            self._exchange.exclude_time(now_ns - began_ns)


def _count(dataset: Any) -> int:
    if isinstance(dataset, TensorDataset):
        return len(dataset)
    if isinstance(dataset, tuple | list):
        return len(dataset[0])
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            "worker.batches needs a map-style data set (with __len__ and __getitem__),"
            " because points are leased by their number"
        )
    return len(dataset)


def _fetcher(dataset: Any) -> Any:
    tensors = dataset.tensors if isinstance(dataset, TensorDataset) else dataset
    if isinstance(tensors, tuple | list):
        columns = tuple(
            torch.as_tensor(np.asarray(t)) if not isinstance(t, torch.Tensor) else t
            for t in tensors
        )

        def fetch_tensors(indices: Indices) -> tuple[torch.Tensor, ...]:
            index = torch.from_numpy(indices)
            return tuple(column[index] for column in columns)

        return fetch_tensors
    return lambda indices: default_collate([dataset[int(index)] for index in indices])

"""The worker that a job's `main(worker)` gets. It has all that an ordinary torch loop needs."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset

from polyrhythm.core.names import own_number
from polyrhythm.errors import UsageError
from polyrhythm.learn.attached import AttachedOptimizer
from polyrhythm.learn.batches import Batches
from polyrhythm.learn.data.catalogue import known
from polyrhythm.learn.data.fetch import obtain
from polyrhythm.learn.data.places import DATA_DIR
from polyrhythm.learn.exchange import Exchange
from polyrhythm.learn.kept_objects import KeptObjects, Stateful
from polyrhythm.learn.loading import count_of, fetcher, loading_of
from polyrhythm.learn.models import Models
from polyrhythm.learn.objective import Probe
from polyrhythm.learn.reporting import AnyWriter, Reporter
from polyrhythm.learn.slowdowns import Pacer, Slowdown, Slowdowns
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import JobSpec

Metric: TypeAlias = SupportsFloat
"""A value that is reported: a number, or a tensor with one element."""


class Worker:
    """One worker of a running job, as the user's code sees it."""

    def __init__(self, node: WorkerNode, job: JobSpec, slowdown: Slowdown | None = None) -> None:
        """`slowdown`: by how much this worker is slowed down on purpose (`learn/slowdowns.py`). None: by
        as much as the job's options (`--slow` and others) say."""
        self._node = node
        self._job = job
        self._slowdown = (
            slowdown if slowdown is not None else Slowdowns.parse(job.slowdowns).of(node.name)
        )
        self._pacer = Pacer(self._slowdown) if self._slowdown != Slowdown() else None
        self._kept = KeptObjects(node)
        self._models = Models(node, job, self._kept, self._pacer, self.say)
        self._batches = Batches(node, job, lambda: self.stopped, self.say)
        self._reporting = Reporter(node, job, self._batches.passes, self._models)

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def device(self) -> torch.device:
        """The device that the job has assigned to this worker (`--devices`). Put the model and the
        batches there: `model.to(worker.device)`."""
        return torch.device(self._node.device)

    @property
    def inside(self) -> tuple[WorkerNode, JobSpec, Pacer | None]:
        """The parts of this worker that `learn/pointwise` uses, because it exchanges statistics
        instead of a model."""
        return self._node, self._job, self._pacer

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
        if self._node.loop.stopped and self._exchange is not None:
            # another thread may have received the final version since the last step: use it
            self._exchange.settle()
        return self._node.loop.stopped or self._node.loop.asked

    @property
    def version(self) -> int:
        """The number of folds in the worker's present parameters."""
        return self._job.resume_round + self._node.loop.version

    @property
    def progress(self) -> float:
        """How much of the way to its goal the job has made, from 0 to 1, as this worker was last
        told. If the job has several goals, the nearest one counts. A target of a metric, or
        `--target-change`, does not count, because the way to it is not known: in a job with no other
        goal, this is 0 until the job ends."""
        loop = self._node.loop
        loop.progress_read = True
        return 1.0 if loop.stopped else loop.progress.share

    @property
    def passes(self) -> float:
        """How many passes all workers together have made over the data set, as this worker was last
        told; 0 if passes are not counted."""
        loop = self._node.loop
        loop.progress_read = True
        progress = loop.progress
        return progress.points / progress.data_set if progress.data_set else 0.0

    @property
    def rank(self) -> int:
        """The rank of this worker among the workers that take part: 0 to their number - 1. It is
        known after `attach()` (with several models: when training begins), and changes only when a
        worker joins or leaves."""
        rank = self._node.loop.rank
        if rank < 0:
            raise UsageError(
                f"{self.name} has no rank yet: the rank is known after worker.attach(), and with"
                " several models when training begins"
            )
        return rank

    @property
    def is_first(self) -> bool:
        """Whether the rank of this worker is 0. One worker at a time is first; use this to write a
        file once."""
        return self.rank == 0

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

    @property
    def _exchange(self) -> Exchange | None:
        """The exchange of the worker; None until the worker has joined the job with its models."""
        return self._models.exchange

    def attach(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        name: str | None = None,
        *,
        buffers: Mapping[str, str] | None = None,
    ) -> AttachedOptimizer:
        """Join the job with this model, and return the optimizer that exchanges its parameters.
        Training begins with the parameters of the first worker and uses the options of its
        optimizer. The models and options of other workers must match.

        A worker with several models attaches each with a `name` and an optimizer of its own. It
        joins the job when training begins: at the first step, or at `batches`, `keep` or `probe`.
        All workers must make the steps of the models in one order, such as critic, critic,
        generator; with kind local any order is allowed.

        `buffers` says what workers get of each other's values of a buffer, by its name in the model
        or in a module, or by a pattern: `{"queue": "local", "*.centre": "mean"}`. If several match,
        the last one counts. "mean": the mean over the workers, weighted by points (integers: the
        largest value); without `buffers`, running statistics of normalisation layers and frozen
        parameters. "local": the worker's own values; without `buffers`, all other buffers. "first":
        the values of the worker that evaluates, usually worker-0. The saved model has that worker's
        values of local buffers, and workers that join or resume begin with them."""
        attached = self._models.attach(model, optimizer, name or "", buffers)
        self._compare_device(model)
        return attached

    def _compare_device(self, model: torch.nn.Module) -> None:
        """Print a message if the model is not on the device that the job has assigned to this worker."""
        there = next((parameter.device for parameter in model.parameters()), self.device)
        if there != self.device:
            self.say(
                f"the model of {self.name} is on {there}, and not on {self.device}, its device in this"
                " job: call model.to(worker.device) before you make the optimizer, or give --devices"
                f" {there}"
            )

    def keep(self, **objects: Stateful) -> None:
        """Put the state of these objects, such as a scheduler or an average of the parameters, into
        every checkpoint. An object has `state_dict()` and `load_state_dict()`; its state consists
        of tensors, numbers, text, lists, tuples and dicts. When the job resumes from a checkpoint,
        the objects get the states that it contains. Call this on every worker, after `attach()`
        and before training. The state in a checkpoint is that of worker-0, or of its successor."""
        self._models.join("keep")
        self._kept.add(objects, resumes=bool(self._job.resume))

    @property
    def resumed(self) -> bool:
        """Whether `keep()` has restored the states of all its objects from a checkpoint."""
        return self._kept.resumed

    def probe(
        self,
        dataset: Dataset[Any] | Sequence[torch.Tensor],
        loss_of: Callable[[Any], torch.Tensor],
    ) -> None:
        """Define how the objective is evaluated: `loss_of(batch)` returns the mean loss of the
        present model on a batch of this data set. FSP chooses its interval by this objective, on a
        sample that is divided among the workers. Without it, FSP uses the values of
        `step(objective=…)`."""
        exchange = self._models.join("probe")
        sample, seed = self._job.probe_points, self._job.seed
        probe = Probe(count_of(dataset), sample, seed, fetcher(dataset), loss_of)
        exchange.probe = probe
        exchange.begin_round()

    def finish(self) -> None:
        """Called when `main` has returned: a worker that was told to leave contributes its last
        local steps."""
        exchange = self._exchange
        if exchange is not None and exchange.unreported and self._node.loop.asked:
            exchange.contribute_rest()

    def batches(
        self,
        dataset: Dataset[Any] | Sequence[Any] | DataLoader[Any],
        batch_size: int | None = None,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        sampler: Iterable[int] | None = None,
    ) -> Iterator[Any]:
        """Yield batches of the points leased to this worker, until the job ends. `dataset` is a
        map-style data set, or tensors that are indexed together. No batch is smaller than
        `--min-batch`: a smaller remainder becomes part of the batch before it.

        `num_workers`, `collate_fn` and `pin_memory` mean the same as for a `DataLoader`. With
        `drop_last`, all batches have `batch_size` points, and the remainder of a pass is skipped.
        `sampler` gives the order in which the points of the lease are visited.

        A `DataLoader` takes the place of all these arguments. Passes are not counted if it has a
        sampler of its own, or if the data set is an `IterableDataset`."""
        exchange = self._models.join("batches")
        loading = loading_of(
            dataset,
            batch_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            drop_last=drop_last,
            pin_memory=pin_memory,
            sampler=sampler,
        )
        yield from self._batches.of(loading, exchange)
        if self._node.loop.stopped:
            self._models.end_schedules()

    def say(self, message: str) -> None:
        """Print a message that concerns all workers of the job. If one command starts several
        workers, only the first of them prints the message."""
        if own_number(self.name) in (None, 0):
            print(f"polyrhythm: {message}", file=sys.stderr, flush=True)

    def data(self, name: str) -> Path:
        """Return the folder of a data set of the catalogue (`polyrhythm data list`). The folder is
        searched for in `--data-dir` and in the usual places. A small data set that is not found is
        downloaded."""
        return obtain(known(name), self._job.options.get(DATA_DIR), os.environ)

    def push_buffers(self) -> list[list[torch.Tensor]]:
        """The buffers from which contributions are sent. Each buffer has one tensor per dtype of
        the parameters. With rounds and without a timer, the first two buffers are used in turn. A
        gradient that is already in the buffer is sent without a copy."""
        return self._node.push_buffers()

    def report(self, **metrics: Metric) -> None:
        """Report values of this worker, such as its accuracy: numbers, or tensors with one element.
        They appear in the summary, `status`, `--json` and the history, and can be targets
        (`--target accuracy=0.95`). A value that is not finite is left out; the first time, a
        warning is printed."""
        self._reporting.report(metrics)

    def evaluate(
        self,
        function: Callable[[], Mapping[str, Metric]] | None = None,
        /,
        *,
        every: str | int | None = None,
        **measures: Callable[[], Metric],
    ) -> None:
        """Evaluate the model, and report the result as `report` does: `evaluate(accuracy=measure)`
        with a function for each value, or `evaluate(measure_all)` with a function that returns a
        dict of values. Call it after every step: one worker evaluates, and the others do nothing.
        The worker with the lowest number evaluates; when it leaves or dies, the next worker takes over.

        `every`: "pass" (after every pass of that worker over its points, and also at the end of the
        job), a number of calls, or a time such as "30s". Without it, the worker chooses the times,
        and evaluations take at most a tenth of the worker's time. The time of evaluations does not
        count as computing."""
        self._reporting.evaluate(function, every, measures)

    def log_to(self, writer: AnyWriter) -> None:
        """Also write the values of `report` and `evaluate` to your own log. `writer` has
        `add_scalar(name, value, step)`, such as TensorBoard's `SummaryWriter`, or `log(values,
        step=...)`, such as a run of wandb. It may also be a function that makes such an object. Only the
        worker that evaluates writes, and only that worker calls the function. The step is
        `worker.version`. A writer that fails causes a warning and does not end the job."""
        self._reporting.log_to(writer)

    def close_logs(self) -> None:
        """Called when the worker leaves, even with an error: flush the logs of `log_to`, and close
        those that a function of the user's code has opened."""
        self._reporting.writers.close()

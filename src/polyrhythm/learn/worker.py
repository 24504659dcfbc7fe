"""The worker that a job's `main(worker)` gets. It has everything that an ordinary torch loop
needs."""

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
from polyrhythm.learn.loading import Loading, count_of, fetcher, loading_of
from polyrhythm.learn.models import Models
from polyrhythm.learn.objective import Probe
from polyrhythm.learn.reporting import AnyWriter, Reporter
from polyrhythm.learn.slowdowns import Pacer, Slowdown, Slowdowns
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import JobSpec

Metric: TypeAlias = SupportsFloat
"""A value that is reported: a number, or a tensor with one element."""


class _GivenOptions(dict[str, str]):
    """The options of `worker.options`. It remembers which of them the user's code has read."""

    def __init__(self, given: Mapping[str, str], read: set[str]) -> None:
        super().__init__(given)
        self._read = read

    def __getitem__(self, name: str) -> str:
        self._read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._read.add(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._read.update(super().keys())
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self._read.add(name)
        return super().pop(name, *default)

    def keys(self) -> Any:
        self._read.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        self._read.update(super().keys())
        return super().items()

    def values(self) -> Any:
        self._read.update(super().keys())
        return super().values()


class Worker:
    """One worker of a running job. Your `main(worker)` gets it as its argument;
    `polyrhythm.connect` returns one.

    A training loop for one device becomes a worker in three places: `attach` the model and its
    optimizer, take the batches from `batches`, and let the attached optimizer make the step. All
    other methods are optional.

    Example:
        >>> def main(worker: pr.Worker) -> None:
        ...     torch.manual_seed(worker.seed)
        ...     inputs = torch.randn(1_000, 8)
        ...     targets = inputs.sum(1, keepdim=True)
        ...     model = torch.nn.Linear(8, 1)
        ...     optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        ...     for x, y in worker.batches((inputs, targets), batch_size=32):
        ...         loss = torch.nn.functional.mse_loss(model(x), y)
        ...         loss.backward()
        ...         optimizer.step(objective=loss)
        >>> result = pr.train(main, workers=2, servers=1, epochs=2)
        >>> result.status
        'ended'
    """

    def __init__(self, node: WorkerNode, job: JobSpec, slowdown: Slowdown | None = None) -> None:
        """`slowdown`: how this worker is slowed down on purpose (`learn/slowdowns.py`). None: as
        the job's options (`--slow` and others) say."""
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
        self._options_read: set[str] = set()

    @property
    def name(self) -> str:
        """The name of this worker in the job, such as `worker-0`.

        Example:
            >>> worker.name
            'worker-0'
        """
        return self._node.name

    @property
    def device(self) -> torch.device:
        """The device that the job has assigned to this worker (`devices` of `polyrhythm.train`).
        Put the model and the batches there.

        Call `model.to(worker.device)` before you make the optimizer. If the model that you attach
        is on another device, the worker prints a message.

        Example:
            >>> model = torch.nn.Linear(8, 1).to(worker.device)
            >>> worker.device
            device(type='cpu')
        """
        return torch.device(self._node.device)

    @property
    def inside(self) -> tuple[WorkerNode, JobSpec, Pacer | None]:
        """The parts of this worker that point-wise algorithms use, because they exchange
        statistics instead of a model. Not for users' code."""
        return self._node, self._job, self._pacer

    @property
    def seed(self) -> int:
        """The seed of the job (`seed` of `polyrhythm.train`), the same on every worker.

        Use it where all workers must draw the same random numbers, for example to make or to
        split a data set. Training begins with the parameters of the first worker, so models need
        no common seed.

        Example:
            >>> generator = torch.Generator().manual_seed(worker.seed)
            >>> train, test = torch.utils.data.random_split(range(10), [8, 2], generator)
        """
        return self._job.seed

    @property
    def options(self) -> dict[str, str]:
        """The options that the user gave to the code of the job: `set` of `polyrhythm.train`, or
        `--set NAME=VALUE` on the command line. All values are texts. When `main` returns, the
        worker prints a message about each option that your code has not read.

        Example:
            >>> batch_size = int(worker.options.get("batch", "32"))
        """
        return _GivenOptions(self._job.options, self._options_read)

    @property
    def stopped(self) -> bool:
        """Whether your training loop must end: the job has ended, or this worker was told to
        leave.

        `batches` ends by itself then. Check `stopped` in a loop that does not use `batches`. When
        the job has ended, the model has the final parameters; `step()` no longer changes them.

        Example:
            >>> while not worker.stopped:
            ...     loss = loss_of(model(inputs), targets)
            ...     loss.backward()
            ...     optimizer.step(objective=loss, points=len(inputs))
        """
        if self._node.loop.stopped and self._exchange is not None:
            # another thread may have received the final version since the last step: use it
            self._exchange.settle()
        return self._node.loop.stopped or self._node.loop.asked

    @property
    def version(self) -> int:
        """How many updates of the servers (folds) the present parameters of this worker contain.
        A job that was resumed goes on counting.

        Example:
            >>> worker.version
            0
        """
        return self._job.resume_round + self._node.loop.version

    @property
    def progress(self) -> float:
        """How much of the way to its goal the job has made, from 0 to 1. Use it for a schedule
        that must end together with the job, under every policy and with any number of workers.

        The value is what this worker was last told: after each round or, under `asp`, about
        twenty times a second. If the job has several goals, the nearest one counts. Targets of
        metrics and `target_change` do not count, because the way to them is not known: if a job
        has no other goal, the value is 0 until the job ends.

        Example:
            >>> for x, y in worker.batches((inputs, targets), batch_size=32):
            ...     optimizer.param_groups[0]["lr"] = 0.1 * (1 - worker.progress)
            ...     loss_of(model(x), y).backward()
            ...     optimizer.step()
            >>> worker.progress
            1.0
        """
        loop = self._node.loop
        loop.progress_read = True
        return 1.0 if loop.stopped else loop.progress.share

    @property
    def passes(self) -> float:
        """How many passes (epochs) all workers together have made over the data set, such as 2.5.
        The value is what this worker was last told. It is 0 if passes are not counted, as with a
        stream of data.

        Example:
            >>> worker.passes
            0.0
        """
        loop = self._node.loop
        loop.progress_read = True
        progress = loop.progress
        return progress.points / progress.data_set if progress.data_set else 0.0

    @property
    def rank(self) -> int:
        """The rank of this worker among the workers that take part: 0 to their number - 1, in the
        order in which they first joined. It changes only when a worker joins or leaves.

        Points need no rank: `batches` divides the data set among the workers.

        Raises:
            UsageError: the worker has no rank yet. The rank is known after `attach`; with several
                models, when training begins.

        Example:
            >>> worker.rank
            0
        """
        rank = self._node.loop.rank
        if rank < 0:
            raise UsageError(
                f"{self.name} has no rank yet: the rank is known after worker.attach(), and with"
                " several models when training begins"
            )
        return rank

    @property
    def is_first(self) -> bool:
        """Whether the rank of this worker is 0. One worker at a time is first: use it to write a
        file or to print something once.

        Raises:
            UsageError: the worker has no `rank` yet.

        Example:
            >>> if worker.is_first:
            ...     print("one of the workers prints this")
            one of the workers prints this
        """
        return self.rank == 0

    @property
    def incarnation(self) -> int:
        """A number, counted from 1, that changes when this worker joins the job again, for
        example after it was silent for so long that the job went on without it.

        Example:
            >>> worker.incarnation
            1
        """
        return self._node.incarnation

    @property
    def acknowledged(self) -> int:
        """How many contributions of this `incarnation` are certainly in the parameters of every
        server.

        Later ones may be in the parameters too. When an incarnation ends, contributions that were
        not acknowledged may be lost.

        Example:
            >>> worker.acknowledged
            0
        """
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
        """Join the job with this model, and return the optimizer that exchanges its parameters
        with the servers. Use the returned optimizer in place of yours.

        Call it once, before training, with an optimizer that has made no step. When it returns,
        the model has the parameters of the first worker of the job, or those of the servers if
        the job is running already. The models of all workers, and the options of their
        optimizers, must match. Learning rate schedulers and `torch.amp.GradScaler` accept the
        returned optimizer.

        **Several models**, such as those of a GAN, are attached one by one, each with a `name`
        and its own optimizer. The worker then joins the job when training begins: at the first
        step, or at `batches`, `keep` or `probe`. All workers must make the steps of the models in
        one order that repeats, such as critic, critic, generator. Kind local allows any order.

        **Buffers.** Running statistics of normalisation layers and frozen parameters are averaged
        over the workers, and every other buffer keeps the worker's own values. `buffers` changes
        this for single buffers. The saved model has the buffers of the worker that evaluates,
        usually worker-0. Workers that join or resume begin with these values.

        Args:
            model: the model, on the device of this worker.
            optimizer: an optimizer of `torch.optim` for parameters of this model; with kind local,
                any torch optimizer.
            name: the name of this model, if the worker has several.
            buffers: how the workers share a buffer, by its name in the model or in a module, or
                by a pattern such as `"*.centre"`. The last one that matches counts. `"mean"`: the
                mean over the workers, weighted by points; the largest value of integers.
                `"local"`: the worker's own values. `"first"`: the values of the worker that
                evaluates.

        Returns:
            The attached optimizer, an `AttachedOptimizer`.

        Raises:
            UsageError: the model or the optimizer cannot be trained in this job. The message says
                why: for example, the optimizer has parameters that are not in the model, or has
                made steps already.
            Refused: the job refuses this worker, because its model or the options of its
                optimizer differ from those of the other workers.

        Example:
            >>> model = torch.nn.Linear(8, 1).to(worker.device)
            >>> optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=1e-3))
        """
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
        """Put the states of your own objects, such as a learning rate scheduler or an average of
        the parameters, into every checkpoint of the job.

        Call this on every worker, after `attach` and before training. If the job was resumed from
        a checkpoint, the objects have their saved states when `keep` returns. A checkpoint
        contains the states of worker-0, or of the worker that took over from it.

        Args:
            objects: any number of objects by name. An object has `state_dict()` and
                `load_state_dict()`. Its state consists of tensors, numbers, text, lists, tuples
                and dicts; nothing is pickled.

        Raises:
            UsageError: an object cannot be kept, for example because its state contains a
                function; or the state in the checkpoint does not fit the object.

        Example:
            >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1_000)
            >>> average = torch.optim.swa_utils.AveragedModel(model)
            >>> worker.keep(scheduler=scheduler, average=average)
        """
        self._models.join("keep")
        self._kept.add(objects, resumes=bool(self._job.resume))

    @property
    def resumed(self) -> bool:
        """Whether `keep` has restored the states of all its objects from a checkpoint. False in a
        job that was not resumed.

        Example:
            >>> scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
            >>> worker.keep(scheduler=scheduler)
            >>> if not worker.resumed:
            ...     print("the schedule begins")
            the schedule begins
        """
        return self._kept.resumed

    def probe(
        self,
        dataset: Dataset[Any] | Sequence[torch.Tensor],
        loss_of: Callable[[Any], torch.Tensor],
    ) -> None:
        """Say how the objective is measured, for the policy `fsp`. Other policies do not need a
        probe.

        `fsp` chooses the length of its rounds by how fast the objective falls. With a probe it
        measures the objective on a sample of this data set, which is divided among the workers;
        `probe_points` of `polyrhythm.train` is its size. Without a probe it uses the losses that
        `step(objective=...)` gets. Call this once on every worker, after `attach` and before
        training.

        Args:
            dataset: a map-style data set, or tensors that are indexed together; the same on all
                workers.
            loss_of: a function that gets a batch of this data set, and returns the mean loss of
                the present model as a tensor. It is called without recording gradients.

        Example:
            >>> def loss_of_batch(batch):
            ...     x, y = batch
            ...     return torch.nn.functional.mse_loss(model(x), y)
            >>> worker.probe((inputs, targets), loss_of_batch)
        """
        exchange = self._models.join("probe")
        sample, seed = self._job.probe_points, self._job.seed
        probe = Probe(count_of(dataset), sample, seed, fetcher(dataset), loss_of)
        exchange.probe = probe
        exchange.begin_round()

    def finish(self) -> None:
        """Called when `main` has returned: a worker that was told to leave contributes its last
        local steps. Not for users' code."""
        self._say_unread()
        exchange = self._exchange
        if exchange is not None and exchange.unreported and self._node.loop.asked:
            exchange.contribute_rest()

    def _say_unread(self) -> None:
        """Tell the user which options the code has not read: their names may be wrong."""
        unread = self._job.options.keys() - self._options_read
        if DATA_DIR in unread:
            self.say(
                f"--data-dir {self._job.options[DATA_DIR]} had no effect: the job's code has not called"
                " worker.data(), which searches it"
            )
        for name in sorted(unread - {DATA_DIR}):
            self.say(
                f"--set {name}={self._job.options[name]} had no effect: the job's code has not read"
                f" worker.options[{name!r}]"
            )

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
        """Yield batches of the points that the job has leased to this worker, until the job ends.
        Use it in place of a `DataLoader`.

        All workers give the same data set, and the job divides its points among them: in every
        pass each point is visited once, even if workers join, leave or die. There is no loop
        over epochs: `epochs` of `polyrhythm.train` ends the job. With `data_private=True` every
        worker gives its own data set.

        Under `bspb`, `bspv` and `fsp` the policy chooses the size of batches, and under `bspg` no
        batch is larger than `batch_size`. No batch is smaller than `min_batch` of the job: a
        smaller remainder is added to the batch before it.

        Args:
            dataset: a map-style data set; a tuple of tensors or arrays that are indexed together; or a
                `DataLoader`, which takes the place of all other arguments. Passes are not counted
                if the loader has its own sampler, or if the data set is an `IterableDataset`.
            batch_size: how many points a batch has.
            num_workers: how many processes load batches ahead, as for a `DataLoader`.
            collate_fn: makes a batch from a list of points, as for a `DataLoader`.
            drop_last: skip the points at the end of a pass that do not fill a batch.
            pin_memory: put batches into pinned memory, as for a `DataLoader`.
            sampler: the order in which the points of the lease are visited. It must give every
                point once, in the same order on all workers.

        Yields:
            What a `DataLoader` would yield, such as a tuple of tensors for a tuple of tensors.

        Raises:
            UsageError: `attach` was not called, or an argument cannot be used.
            Refused: the data set differs from that of the other workers. This and the call of
                `attach` are checked at the first batch.

        Example:
            >>> for x, y in worker.batches((inputs, targets), batch_size=32):
            ...     loss = loss_of(model(x), y)
            ...     loss.backward()
            ...     optimizer.step(objective=loss)
        """
        loading = loading_of(
            dataset,
            batch_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            drop_last=drop_last,
            pin_memory=pin_memory,
            sampler=sampler,
        )
        return self._load(loading)

    def _load(self, loading: Loading) -> Iterator[Any]:
        yield from self._batches.of(loading, self._models.join("batches"))
        if self._node.loop.stopped:
            self._models.end_schedules()

    def say(self, message: str) -> None:
        """Print a message that concerns all workers of the job. If one command starts several
        workers, only the first of them prints it. It goes to stderr, after `polyrhythm:`.

        Args:
            message: one line of text.

        Example:
            >>> worker.say("the data set has 10,000 points")
        """
        if own_number(self.name) in (None, 0):
            print(f"polyrhythm: {message}", file=sys.stderr, flush=True)

    def data(self, name: str) -> Path:
        """Return the folder of a data set of the catalogue, which `polyrhythm data list` shows.

        The folder is searched for in `data_dir` of the job and in the usual places. If it is not
        found, a small data set is downloaded; `polyrhythm data fetch` downloads a large one.

        Args:
            name: the name of the data set, such as `"mnist"`.

        Raises:
            UsageError: the catalogue has no such data set.
            DataError: the data set was not found and cannot be downloaded, or its files are
                damaged.

        Example:
            >>> folder = worker.data("mnist")
            >>> folder.is_dir()
            True
        """
        return obtain(known(name), self.options.get(DATA_DIR), os.environ)

    def push_buffers(self) -> list[list[torch.Tensor]]:
        """Return the memory from which contributions are sent. A program that computes its
        gradients there saves one copy of them. Use it only if a profile shows that this copy
        matters.

        Call it after `attach`. With rounds and without a timer, the first two buffers are used in
        turn.

        Returns:
            The buffers. Each has one flat tensor for each dtype of the parameters.

        Example:
            >>> buffers = worker.push_buffers()
            >>> [tensor.dtype for tensor in buffers[0] if tensor.numel()]
            [torch.float32]
        """
        return self._node.push_buffers()

    def report(self, **metrics: Metric) -> None:
        """Report values of this worker, such as its accuracy on a test set.

        The values appear in the summary, in `polyrhythm status`, in `Result.metrics` and in
        `Result.history`. They can end the job (`target={"accuracy": 0.95}`) and choose the best
        model (`keep_best="accuracy"`). If several workers report a metric, its value is the mean
        of the last report of each worker. A value that is NaN or infinite is left out with a
        warning. To measure the model that all workers share, while it trains, use `evaluate`.

        Args:
            metrics: numbers, or tensors with one element, by name. A name has letters, digits and
                `_ . / -`, and at most 64 characters. `objective` and the names of other columns
                of `Result.history` are taken.

        Raises:
            UsageError: a name or a value cannot be used.

        Example:
            >>> worker.report(test_error=loss_of(model(inputs), targets))
        """
        self._reporting.report(metrics)

    def evaluate(
        self,
        function: Callable[[], Mapping[str, Metric]] | None = None,
        /,
        *,
        every: str | int | None = None,
        **measures: Callable[[], Metric],
    ) -> None:
        """Evaluate the model while it trains, and report the result as `report` does. Call it
        after every step: it decides when to evaluate.

        One worker evaluates, and in all others the call does nothing. It is the worker with the
        lowest number; when it leaves or dies, the next one takes over. The time of an evaluation
        does not count as computing. Under `bsp` the other workers wait meanwhile.

        Args:
            function: a function without arguments that returns a dict of names and values.
            every: when to evaluate. `"pass"`: after every pass of that worker over its points,
                and after the end of the job. A number such as `100`: at every 100th call. A text
                such as `"30s"`: 30 s after the last evaluation. None: now and then, for at most a
                tenth of the time of the worker, or a fiftieth if the result cannot end the job.
            measures: functions without arguments, by the names of their values.

        Raises:
            UsageError: no function was given; a function returned something other than numbers;
                `every` is not understood; or it is `"pass"`, and passes are not counted.

        Example:
            >>> def accuracy():
            ...     with torch.no_grad():
            ...         return ((model(inputs) > 0) == (targets > 0)).float().mean()
            >>> for x, y in worker.batches((inputs, targets), batch_size=32):
            ...     loss = loss_of(model(x), y)
            ...     loss.backward()
            ...     optimizer.step(objective=loss)
            ...     worker.evaluate(accuracy=accuracy, every="pass")
        """
        self._reporting.evaluate(function, every, measures)

    def log_to(self, writer: AnyWriter) -> None:
        """Also write the values of `report` and `evaluate` to your own log, such as TensorBoard
        or Weights & Biases.

        Only the worker that evaluates writes. The step of a value is `version`. If a writer
        fails, the worker prints a warning and the job goes on.

        Args:
            writer: an object with `add_scalar(name, value, step)`, such as a `SummaryWriter` of
                TensorBoard, or with `log(values, step=...)`, such as a run of wandb. Or a
                function that makes such an object: only the worker that evaluates calls it, so
                the other workers open no files.

        Raises:
            UsageError: the writer has neither method, and is not a function.

        Example:
            >>> class Printer:
            ...     def log(self, values, step):
            ...         print(f"step {step}: {values}")
            >>> worker.log_to(Printer())
            >>> worker.report(accuracy=0.5)
            step 0: {'accuracy': 0.5}
        """
        self._reporting.log_to(writer)

    def close_logs(self) -> None:
        """Called when the worker leaves, even with an error: flush the logs of `log_to`, and
        close those that a function of the user's code has opened. Not for users' code."""
        self._reporting.writers.close()

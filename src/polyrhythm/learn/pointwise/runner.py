"""Runs a point-wise algorithm in a job of kind statistics: the loop of one worker.

The worker visits the points of its chunks and contributes the change of their statistics when the
sync policy asks for it. It computes new parameters from the sum that the servers publish.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from polyrhythm.core.batches import least_of
from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.lead.data.chunks import announced
from polyrhythm.core.model import file_of
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.window import Window
from polyrhythm.errors import UsageError
from polyrhythm.learn.contributor import Contributor
from polyrhythm.learn.fingerprint import fingerprint_of
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, joined
from polyrhythm.learn.pointwise.chunks import Chunks
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.m_step import MStep
from polyrhythm.learn.pointwise.source import Source
from polyrhythm.learn.worker import Worker
from polyrhythm.store.model_file import load_into

BATCH = 32_768
"""How many points a worker visits at a time, unless the sync policy wants fewer."""
BLOCK = 8_192
"""How many points a block may have (`chunks.py`)."""
_SAMPLE_RANGES = 16
"""The number of ranges that form the sample for the first parameters."""
_RATES = (0.0,)
AfterPass = Callable[[int, float | None], None]


@dataclass(slots=True)
class Fit:
    """What `run_pointwise` returns on each worker.

    Example:
        >>> from polyrhythm.pointwise import Fit
        >>> fit = Fit({"mean": np.zeros(2)}, passes=3, terminated=True)
        >>> fit.passes
        3
    """

    parameter: Arrays
    passes: int
    """How often this worker has visited its points."""
    terminated: bool
    """Whether the algorithm has found the parameters to be final. False: another goal has ended the
    job."""
    objectives: list[float] = field(default_factory=list)
    """The objective after each pass of this worker."""


def run_pointwise(
    worker: Worker,
    algorithm: Algorithm,
    source: Source,
    *,
    parameter: Arrays | None = None,
    after_pass: AfterPass | None = None,
    batch: int = BATCH,
    block: int = BLOCK,
) -> Fit:
    """Run a point-wise algorithm on this worker until the job ends. Call it in the `main` of a
    job with `kind="statistics"`.

    Args:
        worker: the worker that `main` got.
        algorithm: the algorithm. All workers give an equal one.
        source: the points. All workers give the same ones, and the job divides them.
        parameter: the first parameters, in place of those of `Algorithm.init_parameter`. All
            workers use those of the first worker.
        after_pass: called after every pass of this worker with the number of passes and the
            objective.
        batch: how many points are visited at a time, unless the policy wants fewer.
        block: how many points are always visited together.

    Returns:
        The parameters, which are the same on all workers, and how the fit went on this worker.

    Raises:
        UsageError: the job has another kind, or the algorithm has returned wrong statistics.

    Example:
        >>> from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
        >>> from polyrhythm.pointwise import ArraySource, Batch, run_pointwise
        >>> def main(worker: pr.Worker) -> None:
        ...     points = np.repeat([[0.0, 0.0], [8.0, 8.0]], 50, axis=0)
        ...     fit = run_pointwise(worker, KMeansAlgorithm(2), ArraySource(Batch(points)))
        >>> options = {"kind": "statistics", "sync": "bspb", "epochs": 20}
        >>> result = pr.train(main, workers=1, servers=1, **options)
        >>> result.state_dict()["centers"].sort(dim=0).values.tolist()
        [[0.0, 0.0], [8.0, 8.0]]
    """
    _, job, _ = worker.inside
    if not keeps_rows(job.kind):
        raise UsageError(
            f"a point-wise algorithm needs --kind statistics, and the job has --kind {job.kind}"
        )
    if not traits_of(job.sync).rounds:
        worker.say(
            f"--sync {job.sync} --kind {job.kind} is for comparison only: workers compute parameters"
            " from sums of different moments, so the job may diverge; use --sync fsp or --sync bsp"
        )
    if parameter is None:
        parameter = first_parameter(algorithm, source, job.seed)
    if job.init:
        parameter = _loaded(parameter, Path(job.init))
    return _Loop(worker, algorithm, source, parameter, batch, block, after_pass).run()


def _loaded(parameter: Arrays, init: Path) -> Arrays:
    """The parameters of `--init`, a model's file or the folder of a run."""
    module = torch.nn.Module()
    for name, array in parameter.items():
        module.register_buffer(name, torch.from_numpy(np.array(array, np.float64)))
    load_into(module, init / file_of("") if init.is_dir() else init)
    return {name: buffer.numpy() for name, buffer in module.named_buffers()}


def first_parameter(algorithm: Algorithm, source: Source, seed: int) -> Arrays:
    """The first parameters, from a sample that is the same on every worker."""
    rng = np.random.default_rng((seed, 5))
    return algorithm.init_parameter(sample_source(source, algorithm.sample_points, rng), rng)


def expected_statistics(
    algorithm: Algorithm, source: Source, parameter: Arrays, seed: int
) -> Arrays:
    """The statistics of all points at these parameters, estimated from a sample that is the same on
    every worker."""
    sample = sample_source(source, algorithm.sample_points, np.random.default_rng((seed, 6)))
    found = algorithm.update_points(sample, parameter, algorithm.memory(len(sample)))
    return {name: array * (len(source) / len(sample)) for name, array in found.items()}


def sample_source(source: Source, most: int | None, rng: np.random.Generator) -> Batch:
    """A sample of at most this many points: one range of each of several equal parts of the source.
    Ranges, because a file is read in ranges; several of them, because the order of the points may
    follow their values or labels."""
    count = len(source)
    if most is None or count <= most:
        return source.read(0, count)
    parts = min(_SAMPLE_RANGES, most)
    each = most // parts
    bounds = [count * part // parts for part in range(parts + 1)]
    firsts = [
        int(rng.integers(lower, upper - each + 1)) for lower, upper in itertools.pairwise(bounds)
    ]
    return joined([source.read(first, first + each) for first in firsts])


class _Loop:
    def __init__(
        self,
        worker: Worker,
        algorithm: Algorithm,
        source: Source,
        parameter: Arrays,
        batch: int,
        block: int,
        after_pass: AfterPass | None,
    ) -> None:
        node, job, pacer = worker.inside
        self._worker = worker
        self._source = source
        self._node = node
        self._loop = node.loop
        self._pacer = pacer
        self._after_pass = after_pass
        self._batch = max(1, min(batch, len(source)))
        self._count = len(source)
        self._window = Window()
        self._contributor = Contributor(node, self._window, pacer)
        self._least = least_of(min(job.min_batch, self._batch), self._batch)
        self._block = max(1, min(block, self._batch))
        expected = None
        if algorithm.starts_from_sample:
            expected = expected_statistics(algorithm, source, parameter, job.seed)
        self._m_step = MStep(
            algorithm,
            parameter,
            len(source),
            job.resume_number,
            rounds=self._contributor.traits.rounds,
            expected=expected,
        )
        size = self._m_step.row_size
        self._chunks = Chunks(algorithm, source, size, self._block, node.points)
        self._fit = Fit(parameter, 0, terminated=False)

    def run(self) -> Fit:
        node, window, contributor = self._node, self._window, self._contributor
        self._flat = node.attach(self._m_step.spec, self._m_step.tensors)
        data = fingerprint_of(self._source)
        lease = node.enrol(self._count, self._batch, announced(self._source.groups()), data)
        longest = max((chunk.last - chunk.first for chunk in lease.chunks), default=self._block)
        # A batch has at least one whole block, and a block is never larger than a chunk.
        contributor.cadence.begin(self._batch, max(self._least, min(self._block, longest)))
        if self._pacer is not None:
            self._pacer.begin()
        self._chunks.take(lease)
        self._take_version(joined=True)
        for rejoined in contributor.iterations(self._chunks, lease, lambda: self._worker.stopped):
            if rejoined:
                self._take_version(joined=True)
            if self._m_step.terminated and node.evaluates:
                self._contribute()
            elif self._visit():
                if not self._loop.asked and contributor.due():
                    self._contribute()
            elif window.has_points or self._chunks.remembered.pending or self._owes:
                self._contribute()
            else:
                contributor.abstain()
                self._take_version(joined=False)
        self._fit.parameter = self._m_step.parameter
        self._fit.passes = self._chunks.passes
        self._fit.terminated = self._m_step.final
        return self._fit

    @property
    def _owes(self) -> bool:
        """Whether this worker must send parameters, although it has no points to visit."""
        return self._node.evaluates and self._m_step.unsent

    def _visit(self) -> bool:
        """Visit the points of one step. Returns False if no points are left."""
        contributor, window = self._contributor, self._window
        cadence, standing = contributor.cadence, contributor.standing()
        count = cadence.next_points(standing, self._loop.terms)
        # Before the last micro-batches of an interval, the number of points in a visit does not
        # matter.
        loose = contributor.traits.timed and cadence.takes_ns(2 * count) < standing.left_ns
        step = self._m_step
        points, progress = self._chunks.visit(
            count, step.parameter, loose=loose, generation=step.generation
        )
        if not points:
            return False
        window.note(points, progress)
        window.end_steps()
        window.end_batches()
        contributor.set_share(points, self._batch)
        contributor.pace()
        contributor.measure(points)
        if cadence.looks(in_flight=False):
            self._node.look()
        return True

    def _contribute(self) -> None:
        """Send the difference since the last contribution, and wait for the next version."""
        began_ns, node = time.monotonic_ns(), self._node
        sends = node.evaluates
        difference = self._chunks.remembered.collect()
        self._flat.fill_values(node.push, self._m_step.values(difference, sends=sends))
        objective = self._m_step.objective
        points = max(1, int(self._window.points))
        probed = objective is not None and self._loop.terms.probe[1] > 0
        report = replace(
            self._contributor.report(),
            objective=objective,
            probe=objective if probed else None,
            probe_points=points if probed else 0,
            terminated=self._m_step.terminated if sends else "",
        )
        node.contribute(report, _RATES, began_ns)
        self._take_version(joined=False)

    def _take_version(self, *, joined: bool) -> None:
        """Use a version. The worker continues with it unless it was told to leave. `joined`: the
        worker has just joined."""
        node, before = self._node, self._fit.passes
        if self._loop.asked:
            return
        self._flat.remember(parameters=False)
        passes = self._chunks.passes
        final = self._loop.stopped
        terms = self._loop.terms
        self._m_step.on_version(
            self._loop.version,
            joined=joined,
            final=final,
            torn=terms.torn,
            whole_only=terms.whole_only,
        )
        if passes > before:
            self._end_pass(passes)
        self._contributor.resume_pace()
        node.timesheet.begin_interval()

    def _end_pass(self, passes: int) -> None:
        self._fit.passes = passes
        objective = self._m_step.total_objective
        if objective is not None:
            self._fit.objectives.append(objective)
        if self._after_pass is not None:
            self._after_pass(passes, objective)

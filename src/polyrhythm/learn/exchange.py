"""The steps and contributions of a worker: a step contributes, or waits, as the sync policy demands.

The user's code calls `step()` of the optimizer that `worker.attach` returned (`learn/attached.py`).
"""

import time
from collections.abc import Callable, Sequence

import torch

from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.cadence import Due, Standing, after_step, choose_cadence, decide
from polyrhythm.errors import NotFinite
from polyrhythm.learn.attached import AttachedOptimizer
from polyrhythm.learn.left_out import LeftOut, reason_of
from polyrhythm.learn.objective import ObjectiveReport
from polyrhythm.learn.staging import Pacer
from polyrhythm.learn.visits import Visits
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.kinds import KINDS
from polyrhythm.wire.messages import ChunkProgress


class Exchange:
    def __init__(
        self,
        inner: torch.optim.Optimizer,
        node: WorkerNode,
        flat: FlatModel,
        visits: Visits,
        model: torch.nn.Module,
        pacer: Pacer | None = None,
    ) -> None:
        job = node.job
        assert job is not None
        self._node = node
        self._loop = node.loop
        self._flat = flat
        self._visits = visits
        self._pacer = pacer
        self._kind = KINDS[job.kind]
        self.cadence = choose_cadence(job)
        self.traits = traits_of(job.sync)
        self._abandoned_ns = 0
        self._step = 0
        self._micro_ns = 0
        self._gathered = 0.0
        self._on_its_way = False
        """Whether this worker trains although the version that contains its last contribution has
        not arrived yet. Only a policy with the trait `trains_through` permits that."""
        self._stepped = 0.0
        """The number of points between the last contribution and the last step."""
        self._batch = 0
        """The number of points that were asked for as the present batch."""
        self._points: float | None = None
        self._left_out = LeftOut(node.name, flat, job.on_nan)
        self.objective = ObjectiveReport()
        self.before_step: Callable[[], None] = node.end_iteration
        self._kind.remember(self._flat)
        self.model = AttachedOptimizer(inner, model, self)

    def step(
        self,
        model: AttachedOptimizer,
        objective: torch.Tensor | float | None,
        points: float | None,
    ) -> None:
        """The user's code has computed the gradients of a step. See `AttachedOptimizer.step`."""
        if self._loop.stopped:
            self._drop_steps()
            return
        if points is not None:
            self._points = (self._points or 0.0) + points
        skipped = self._left_out.step(self._visited() - self._stepped)
        if objective is not None and not skipped:
            self.objective.add(objective, self._visited() - self._stepped)
            if not self._kind.steps_on_servers and self.traits.timed and not self._step:
                self.objective.keep_first(round(self._visited()))
        self._stepped = self._visited()
        if not self._kind.steps_on_servers and not skipped:
            model.step_locally(self._share())
        self._step += 1
        if self._pacer is not None:
            self._pacer.pace(self._visited())
        if self.traits.gathers and self._abandons():
            self._leave_out(objective is not None and not skipped)
        elif self.traits.gathers:
            self._end_micro_batch(skipped=skipped)
        elif self.traits.trains_through and self._on_its_way:
            self._look()
        elif self.cadence.looks(in_flight=self._on_its_way):
            self._node.look()
        self._visits.stepped()
        if self._due() is not Due.NO:
            self._contribute()
        model.drop_gradients()
        if self._loop.stopped:
            # With `trains_through`, the final version may have arrived without being taken over.
            self.settle()

    def _share(self) -> float:
        """The fraction of a whole step: less than 1 if the step has fewer points."""
        if self._points is not None:
            return 1.0
        return self.cadence.share(self._visited() - self._gathered)

    def _visited(self) -> float:
        """Return the number of points since the last contribution."""
        return self._points if self._points is not None else self._visits.points

    def _standing(self) -> Standing:
        return Standing(
            self._step,
            self._visited(),
            self._visits.everything,
            self._on_its_way,
            self._node.interval_left_ns(),
        )

    def next_points(self, ahead: Sequence[int] = ()) -> int:
        """Return the number of points of the next batch. `ahead`: the points of batches that are
        loaded and come before it. Batches whose gradients the user accumulates have the same
        number of points, so that the mean of their gradients is the mean over their points."""
        if self._visits.unstepped and not ahead:
            return self._batch
        standing = self._standing()
        for points in ahead:
            standing = after_step(self.cadence, standing, self._loop.terms, points)
        return self.cadence.next_points(standing, self._loop.terms)

    def fits(self, points: int) -> bool:
        """Whether a batch that was loaded ahead, and planned with this many points, may be the next
        one."""
        if self._visits.unstepped:
            return points == self._batch
        return self.cadence.fits(points, self._standing(), self._loop.terms)

    def begin_batch(self, points: int) -> None:
        """The training loop gets a batch for which this many points were asked."""
        self._batch = points

    def _due(self) -> Due:
        node, loop = self._node, self._loop
        if loop.stopped:
            return Due.NO
        called = loop.hurried or node.stopping
        due = decide(self.cadence, self._standing(), loop.terms, asked=loop.asked, called=called)
        if due is Due.PASSED_ALL:
            node.ask_for_barrier()
        return due

    def _abandons(self) -> bool:
        """Whether to abandon the step that was just computed because it took too long. Only points
        from `worker.batches` are abandoned, because only these can be visited again."""
        if self._points is not None or not self._visits.returnable:
            return False
        return self.cadence.abandons(-self._node.interval_left_ns(), self._gathered)

    def _leave_out(self, objective: bool) -> None:
        self._visits.take_back()
        self._stepped = self._visited()
        self._step -= 1
        if objective:
            self.objective.remove_last()
        self._abandoned_ns += self._node.timesheet.computed_ns() - self._micro_ns
        self._node.look()

    def _end_micro_batch(self, *, skipped: bool) -> None:
        """End a micro-batch of a round that ends by the clock: gather the gradients unless the step
        is `skipped`, measure the time, and read whether the lead has asked all workers to
        contribute."""
        points = self._visited() - self._gathered
        self._gathered += points
        if not skipped:
            self._kind.gather(self._flat, points or 1.0)
        now_ns = self._node.timesheet.computed_ns()
        self.cadence.measured(points, now_ns - self._micro_ns)
        self._micro_ns = now_ns
        self._node.look()

    def _look(self) -> None:
        """With `trains_through`: continue from the awaited version if it has arrived. An evicted
        worker waits for it instead of training, because its steps would not count."""
        if self._node.look():
            self._rebase()
        elif self._node.displaced:
            self.settle()

    def _rebase(self) -> None:
        self._on_its_way = False
        with torch.no_grad():
            took_ns = self._node.rebase()
        if self._loop.terms.anew:
            self._forget_steps()
            self.resume_pace()
        elif self._pacer is not None:
            self._pacer.exclude_time(took_ns)

    def _forget_steps(self) -> None:
        """Forget the steps since the last contribution: they will never count."""
        self._left_out.take(self._step)
        self._step, self._points = 0, None
        self.objective.clear()
        self._stepped = 0.0
        self._visits.drop()

    def _drop_steps(self) -> None:
        """Drop the steps since the last contribution. The job has stopped, and the worker takes the
        final parameters."""
        self.settle()
        self._forget_steps()
        self.model.drop_gradients()

    def settle(self) -> None:
        """Wait for the version that answers a contribution in flight, unless this worker was told
        to leave."""
        if self._on_its_way:
            took_ns = self._node.await_version()
            if self._pacer is not None:
                self._pacer.exclude_time(took_ns)
            if self._node.look():
                self._rebase()

    @property
    def has_version(self) -> bool:
        """Whether the worker's parameters are exactly those of a version: they include no steps
        that only this worker has made."""
        if self._loop.stopped:
            return True
        local = not self._kind.steps_on_servers and self.pending
        return not local and not self.traits.trains_through

    @property
    def pending(self) -> bool:
        """Whether this worker has taken steps since its last contribution."""
        return self._step > 0

    def exclude_time(self, nanoseconds: int) -> None:
        """Do not count this time as computing, because the user's code did other work."""
        self._node.timesheet.exclude_time(nanoseconds)
        if self._pacer is not None:
            self._pacer.exclude_time(nanoseconds)

    def contribute_rest(self) -> None:
        """Contribute the points since the last contribution, because no points are left. A worker
        that was told to leave does not wait for a version first."""
        if self._loop.stopped:
            self._drop_steps()
            return
        if not self._loop.asked:
            self.settle()
        if self._visits.unstepped:
            self._finish_accumulation()
        self._contribute()
        self.model.drop_gradients()

    def _finish_accumulation(self) -> None:
        """Make a step with the gradients that the user's code has accumulated since its last step.
        Otherwise their points would count, but not their gradients."""
        skipped = self._left_out.step(self._visited() - self._stepped)
        if not self._kind.steps_on_servers and not skipped:
            self.model.step_locally(self._share())
        self._step += 1
        if self.traits.gathers:
            self._end_micro_batch(skipped=skipped)
        self._visits.stepped()

    def _contribute(self) -> None:
        began_ns = time.monotonic_ns()
        with self._left_out.naming():
            self.model.check_tensors()
            self._flat.check_homes()
        visited, progress, lease = self._visits.collect()
        weight = self._points if self._points is not None else visited or 1.0
        self._points = None
        left_out, points, why = self._left_out.take(self._step)
        weight = weight - points if weight > points else 1.0
        if why is not None and not self.traits.trains_through:
            self._abstain(why, progress, lease)
            return
        with self._left_out.naming():
            self.model.check_options(steps_on_servers=self._kind.steps_on_servers)
        rates = self.model.rates
        objective = self.objective.take_mean()
        self._stepped = 0.0
        if self._on_its_way:
            self._node.set_apart()
        gathered = weight if self.traits.gathers and self._step else None
        try:
            self._kind.fill(self._flat, self._node.push, gathered)
        except NotFinite as error:
            named = self._left_out.named(error)
            if not self._left_out.skips or self.traits.trains_through:
                raise named from None
            self.model.inner.state.clear()  # it led to these parameters
            self._abstain(named, progress, lease)
            return
        steps, self._step = max(1, self._step), 0
        probe = self.objective.take_first(asked=self._loop.terms.probe[1] > 0)
        wait = not self.traits.trains_through or self._loop.asked
        abandoned_ns, self._abandoned_ns = self._abandoned_ns, 0
        self._node.contribute(
            weight,
            rates,
            objective,
            progress,
            lease,
            began_ns,
            steps,
            probe,
            abandoned_ns=abandoned_ns,
            micro=self.cadence.micro_batch(),
            skipped=left_out,
            wait=wait,
        )
        self._on_its_way = not wait
        if self._on_its_way and self._node.displaced:
            self.settle()
        if wait:
            self._kind.remember(self._flat)
        self.resume_pace()
        self.begin_round()

    def _abstain(self, why: NotFinite, progress: tuple[ChunkProgress, ...], lease: int) -> None:
        """Leave out what was computed since the last contribution, and continue with the parameters
        of the next version. The lead counts the contribution as left out."""
        self._step = 0
        self.objective.take_mean()
        self._stepped = 0.0
        self._flat.restore_buffers()
        self._node.abstain(lease, reason_of(why), progress)
        self._kind.remember(self._flat)
        self.resume_pace()
        self.begin_round()

    def take_version(self) -> None:
        """Take the present parameters as the base from which changes are computed. The worker has
        waited without contributing, and new parameters may have arrived."""
        self._kind.remember(self._flat)
        self.resume_pace()

    def resume_pace(self) -> None:
        """The worker computes again. If its steps are made longer (staging), the next one counts
        from this time."""
        if self._pacer is not None:
            self._pacer.resume(self._node.timesheet.resumed_ns)

    def begin_round(self) -> None:
        """A round begins with the present parameters: evaluate the probe sample if the policy asks
        for it."""
        self._micro_ns = 0
        self._gathered = 0.0
        if took_ns := self.objective.begin_round(*self._loop.terms.probe):
            self.exclude_time(took_ns)
        self._node.timesheet.begin_interval()

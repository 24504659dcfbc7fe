"""The steps and contributions of a worker: a step contributes, or waits, as the sync policy demands.

The user's code calls `step()` of the optimizer that `worker.attach` returned (`learn/attached.py`).
"""

import sys
import time
from collections.abc import Callable, Sequence

import torch

from polyrhythm.core.placement.slices import LOCAL
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.cadence import NO, PASSED_ALL, Due, Standing, choose_cadence, decide
from polyrhythm.core.worker.job_steps import JobSteps
from polyrhythm.errors import ModelChanged, NotFinite
from polyrhythm.learn.attached import AttachedModels, AttachedOptimizer
from polyrhythm.learn.batch_plan import BatchPlan, Dropping
from polyrhythm.learn.buffers import quoted
from polyrhythm.learn.objective import ObjectiveReport
from polyrhythm.learn.staging import Pacer
from polyrhythm.learn.steps import StepMaker
from polyrhythm.learn.window import (
    SCALER_SKIPPED,
    LeftOut,
    MicroBatches,
    Uncontributed,
    Visits,
    not_made,
    reason_of,
)
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.kinds import KINDS
from polyrhythm.wire.messages import ChunkProgress, ContributionReport


class Exchange:
    def __init__(
        self,
        node: WorkerNode,
        flat: FlatModel,
        visits: Visits,
        models: Sequence[AttachedOptimizer],
        names: Sequence[str],
        pacer: Pacer | None = None,
        *,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        """`models`: the optimizers of the worker's models. `names`: the names of the models. `say`
        prints a message once for all workers of a job."""
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
        self._since = Uncontributed(visits, self.cadence)
        self._on_its_way = False
        """Whether this worker trains although the version that contains its last contribution has
        not arrived yet. Only a policy with the trait `trains_through` permits that."""
        self.plan = BatchPlan(self.cadence, visits, node.loop, self._standing)
        self._left_out = LeftOut(node.name, flat, job.on_nan)
        self._copies = copies = flat.copies
        self.objective = ObjectiveReport(None if copies is None else copies.fetch)
        on_servers = self._kind.steps_on_servers
        self._models = AttachedModels(node.name, models, names, steps_on_servers=on_servers)
        self._several = self._models.several
        estimates = not (self.traits.rounds and self._kind.steps_on_servers)
        told, resumed = node.loop.progress.steps, bool(job.resume)
        self.job_steps = JobSteps(told, estimates=estimates, resumed=resumed)
        self._incarnation = node.incarnation
        if not self._several:
            models[0].schedules.begin(self, say)
        self._dropping = Dropping(visits, self.plan, models[0], say)
        self._maker = StepMaker(
            node, flat, self._models, models, self._left_out, say, on_servers=on_servers
        )
        self._micro = MicroBatches(
            node, flat, visits, self._kind, self.cadence, several=self._several
        )
        self._own_changed = 0
        """How many buffers that are not averaged this worker has sent so far."""
        self._remember()

    def step(
        self,
        model: AttachedOptimizer,
        objective: torch.Tensor | float | None,
        points: float | None,
    ) -> None:
        """The user's code has computed the gradients of a step. See `AttachedOptimizer.step`."""
        for before in self._models.take_scaled():
            # with one model, the points of a step that a GradScaler left out count with this step
            if self._several and not self._loop.stopped:
                self._skip(before, SCALER_SKIPPED)
        if self._loop.stopped:
            self._drop_steps()
            return
        stepped = self._models.begin_step(model)
        if points is not None:
            self._since.give(points)
        in_step = self._since.in_step
        skipped = not self._maker.make(model, self._unweighed(), self._since.share)
        if objective is None:
            objective = model.loss
        if objective is not None and not skipped:
            self.objective.add(objective, in_step or self._visits.in_step)
            if not self._kind.steps_on_servers and self.traits.timed and not self._since.steps:
                self.objective.keep_first(round(self._since.weighed))
        self._end_step(stepped, skipped=skipped, objective=objective is not None)
        model.drop_gradients()

    def _unweighed(self) -> float:
        """How many points lose their weight if this step is left out. With several models it is
        none, because another model may have made a step with the same points."""
        return 0.0 if self._several else self._since.in_step

    def before_batch(self) -> None:
        """The training loop asks for the next batch. If a GradScaler has made no step with the last
        batch, that step is left out. If the loop has dropped its last batches, the worker may have
        to contribute although it has made no step with them."""
        for model in self._models.take_scaled():
            if not self._loop.stopped:
                self._skip(model, SCALER_SKIPPED)
                model.drop_gradients()
        if self._loop.stopped or self._several or not self._visits.unstepped:
            return
        if self._dropping.all_dropped() and self.traits.gathers:
            self._micro.drop()
            if self._due() is not NO:
                self._contribute_steps()

    def count_steps(self) -> JobSteps:
        """The steps of the job, as far as this worker knows them now."""
        if self._incarnation != self._node.incarnation:
            # the job has gone on without this worker
            self._incarnation = self._node.incarnation
            self.job_steps.rejoin(self._loop.progress.steps)
        self.job_steps.tell(self._loop.progress.steps)
        return self.job_steps

    @property
    def catches_up(self) -> int:
        """See `CountsSteps`."""
        progress = self._loop.progress
        if not (self._loop.progress_read and progress.data_set):
            return 0
        return progress.points // progress.data_set

    def _skip(self, model: AttachedOptimizer, why: str) -> None:
        """Leave out a step that the user's code has not made. The gradients remain, because the
        next step may use them."""
        stepped = self._models.begin_step(model)
        self._left_out.leave(self._unweighed(), NotFinite(why))
        self._end_step(stepped, skipped=True, objective=False)

    def _end_step(self, stepped: int | None, *, skipped: bool, objective: bool) -> None:
        """End a step. `stepped`: see `_contribute`. `objective`: whether its loss is known."""
        whole = self._whole()
        self._since.end_step(whole)
        self.job_steps.step(whole)
        if self._copies is not None and (self._pacer is not None or self.traits.gathers):
            self._copies.await_computing()  # the time of a step ends when the device is done
        if self._pacer is not None:
            self._pacer.pace(self._since.visited)
        if self.traits.gathers and self._since.given is None and self._micro.abandons():
            self._leave_out(objective and not skipped, whole)
        elif self.traits.gathers:
            self._micro.end(self._since.weighed, skipped=skipped)
        elif self.traits.trains_through and self._on_its_way:
            self._look()
        elif self.cadence.looks(in_flight=self._on_its_way):
            self._node.look()
        self._dropping.stepped()
        self._visits.stepped()
        if self._due() is not NO:
            self._contribute(stepped)
        elif self._copies is not None:
            self._copies.await_computing()  # do not let the loop run ahead of the device
        if self._loop.stopped:
            # With `trains_through`, the final version may have arrived during the last steps.
            self.settle()

    def _standing(self) -> Standing:
        return Standing(
            self._since.steps,
            self._since.visited,
            self._visits.everything,
            self._on_its_way,
            self._node.interval_left_ns(),
        )

    def _due(self) -> Due:
        node, loop = self._node, self._loop
        if loop.stopped:
            return NO
        called = loop.hurried or node.stopping
        due = decide(self.cadence, self._standing(), loop.terms, asked=loop.asked, called=called)
        if due is PASSED_ALL:
            node.ask_for_barrier()
        return due

    def _whole(self) -> float:
        """The size of the step that was just made, as a share of a step over whole batches. Only
        policies that choose the size of batches make smaller steps."""
        return self.plan.share() if self.traits.gathers and self._visits.in_step else 1.0

    def _leave_out(self, objective: bool, whole: float) -> None:
        self._visits.take_back()
        self._since.take_back(whole)
        if objective:
            self.objective.remove_last()
        self._micro.abandon()

    def _look(self) -> None:
        """With `trains_through`: continue from the next version if it has arrived. An evicted
        worker waits for that version instead of training, because its steps would not count."""
        if self._node.look():
            self._rebase()
        elif self._node.displaced:
            self.settle()

    def _rebase(self) -> None:
        self._on_its_way = False
        with torch.no_grad():
            took_ns = self._node.rebase()
        self._models.version_came(final=self._loop.stopped)
        if self._loop.terms.anew:
            self._forget_steps()
            self.resume_pace()
        elif self._pacer is not None:
            self._pacer.exclude_time(took_ns)

    def _forget_steps(self) -> None:
        """Forget the steps since the last contribution: they will never count."""
        self._left_out.take(self._since.steps)
        self._since.forget()
        self.objective.clear()
        self._visits.drop()

    def _drop_steps(self) -> None:
        """Drop the steps since the last contribution: the worker takes the final parameters."""
        self.settle()
        self._forget_steps()
        self._models.drop_gradients()

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
        return self._since.steps > 0

    @property
    def unreported(self) -> bool:
        """Whether this worker has steps that it has not contributed, or, with several models,
        points that it has not reported."""
        return self.pending or (self._several and self._visits.pending)

    def exclude_time(self, nanoseconds: int) -> None:
        """Do not count this time as computing, because the user's code did other work."""
        self._node.timesheet.exclude_time(nanoseconds)
        if self._pacer is not None:
            self._pacer.exclude_time(nanoseconds)

    def contribute_rest(self) -> None:
        """Contribute what was computed since the last contribution, because no points are left. A
        worker that was told to leave does not wait for a version first."""
        if self._loop.stopped:
            self._drop_steps()
            return
        if not self._loop.asked:
            self.settle()
        if self._several:
            self._visits.close()
            if self._since.steps:
                self._contribute(None)
            else:
                self._report_rest()
            return
        if self._visits.unstepped:
            self._finish_accumulation()
        self._contribute_steps()
        self._models.drop_gradients()

    def _contribute_steps(self) -> None:
        """Contribute the steps since the last contribution. If the training loop has visited points
        without making a step, leave these points out."""
        if not self._since.steps:
            self._left_out.leave(0.0, not_made())
            self._since.steps = 1
        self._contribute()

    def _report_rest(self) -> None:
        """Report the points of the last batches. Their steps have all been contributed."""
        _, progress, lease = self._visits.collect()
        self._visits.stepped()
        self._node.abstain(lease, progress=progress)
        self._continue()

    def _finish_accumulation(self) -> None:
        """Make a step with the gradients that the user's code has accumulated since its last step.
        Otherwise their points would count, but not their gradients."""
        skipped = not self._maker.finish(self._unweighed(), self._since.share)
        self._since.end_step(self._whole())
        if self.traits.gathers:
            self._micro.end(self._since.weighed, skipped=skipped)
        self._visits.stepped()

    def _contribute(self, stepped: int | None = None) -> None:
        """Send a contribution. `stepped`: the number of the model whose step it contains; None: it
        contains the steps of all models."""
        began_ns = time.monotonic_ns()
        self._maker.check()
        collected, progress, lease = self._visits.collect()
        first = self._models.steps_first(stepped)
        visited = self._since.reported(several=self._several, first=first)
        weight = self._since.take_weight(collected)
        left_out, points, why = self._left_out.take(self._since.steps)
        weight = weight - points if weight > points else 1.0
        if why is not None and not self.traits.trains_through:
            self._abstain(why, progress, lease, stepped)
            return
        try:
            self._models.check_options()
        except ModelChanged as error:
            raise self._left_out.changed(error) from None
        rates = self._models.rates
        self._since.stepped = 0.0
        if self._on_its_way:
            self._node.set_apart()
        gathered = weight if self.traits.gathers and self._since.steps else None
        try:
            self._kind.fill(self._flat, self._node.push, gathered, stepped)
        except NotFinite as error:
            named = self._left_out.named(error)
            if not self._left_out.skips or self.traits.trains_through:
                raise named from None
            self._models.forget_state()  # the optimizer's state may not be finite either
            self._abstain(named, progress, lease, stepped)
            return
        if len(self._flat.own_changed) != self._own_changed:
            self._say_own()
        if self._copies is not None:
            began_ns = self._copies.computed_ns(began_ns)
            self._node.timesheet.resumed_late(self._copies.take_late_ns())
        objective = self.objective.take_mean()
        steps, whole_steps = self._since.take_steps()
        probe, probe_points, probe_ns = self.objective.take_first(
            asked=self._loop.terms.probe[1] > 0
        )
        wait = not self.traits.trains_through or self._loop.asked
        batch, micro_ns = self.cadence.micro_batch()
        report = ContributionReport(
            weight=weight,
            objective=objective,
            progress=progress,
            lease=lease,
            steps=steps,
            probe=probe,
            probe_points=probe_points,
            probe_ns=probe_ns,
            abandoned_ns=self._micro.take_abandoned_ns(),
            batch=batch,
            micro_ns=micro_ns,
            skipped=left_out,
            model=-1 if stepped is None else stepped,
            visited=visited,
            whole_steps=whole_steps if self.traits.gathers else -1.0,
        )
        self._node.contribute(report, rates, began_ns, wait=wait)
        self._on_its_way = not wait
        if self._on_its_way and self._node.displaced:
            self.settle()
        if wait:
            self._remember()
        self.resume_pace()
        self.begin_round()

    def _say_own(self) -> None:
        """This worker evaluates, and has sent buffers that are not averaged for the first time. Say
        which of them stay each worker's own, if one has floating-point numbers."""
        found = list(self._flat.own_changed.values())[self._own_changed :]
        self._own_changed += len(found)
        local = [each.tensor for each in found if each.tensor.sharing == LOCAL]
        if any("float" in each.dtype for each in local):
            names = [each.name for each in local]
            print(
                f"polyrhythm: every worker keeps its own {quoted(names)}: only the running"
                " statistics of normalisation layers are averaged. The saved model has the values of"
                f" {self._node.name}. Choose with attach(..., buffers={{{names[0]!r}: 'mean'}}),"
                " 'first' or 'local'.",
                file=sys.stderr,
                flush=True,
            )

    def _abstain(
        self,
        why: NotFinite,
        progress: tuple[ChunkProgress, ...],
        lease: int,
        stepped: int | None,
    ) -> None:
        """Leave out what was computed since the last contribution, and continue with the parameters
        of the next version. The lead counts the contribution as left out."""
        self._since.forget()
        self.objective.clear()
        self._flat.restore_buffers()
        self._node.abstain(lease, reason_of(why), progress, -1 if stepped is None else stepped)
        self._continue()

    def _continue(self) -> None:
        """The worker has abstained, and continues with the parameters of the next version."""
        self.take_version()
        self.begin_round()

    def take_version(self) -> None:
        """Take the present parameters as the base from which changes are computed. The worker has
        waited without contributing, and new parameters may have arrived."""
        self._remember()
        self.resume_pace()

    def _remember(self) -> None:
        """The worker continues with a version: changes are computed from its parameters."""
        self._kind.remember(self._flat)
        self._models.version_came(final=self._loop.stopped)
        self._maker.version_came()

    def resume_pace(self) -> None:
        """The worker computes again. If its steps are made longer (staging), the length of the next
        step is measured from this time."""
        if self._pacer is not None:
            self._pacer.resume(self._node.timesheet.resumed_ns)

    def begin_round(self) -> None:
        """A round begins with the present parameters: evaluate the probe sample if the policy asks
        for it."""
        self._micro.begin_round()
        if took_ns := self.objective.begin_round(*self._loop.terms.probe):
            self.exclude_time(took_ns)
        self._node.timesheet.begin_interval()

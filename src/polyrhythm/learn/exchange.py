"""The steps and contributions of a worker: after each step it contributes, waits or continues, as
the sync policy requires.

The user's code calls `step()` of the optimizer that `worker.attach` returned (`learn/attached.py`).
"""

import sys
import time
from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace

from polyrhythm.core.placement.slices import LOCAL
from polyrhythm.core.worker.job_steps import JobSteps
from polyrhythm.core.worker.window import Window
from polyrhythm.errors import ModelChanged, NotFinite, UsageError
from polyrhythm.learn.attached import AttachedModels, AttachedOptimizer
from polyrhythm.learn.batch_plan import BatchPlan, Dropping
from polyrhythm.learn.buffers import quoted
from polyrhythm.learn.contributor import Contributor
from polyrhythm.learn.objective import NOT_PROBED, Probe
from polyrhythm.learn.slowdowns import Pacer
from polyrhythm.learn.steps import SCALER_SKIPPED, StepMaker, not_made, reason_of
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.kinds import KINDS
from polyrhythm.wire.messages.reasons import Reason


class Exchange:
    def __init__(
        self,
        node: WorkerNode,
        flat: FlatModel,
        window: Window,
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
        self.window = window
        self._kind = KINDS[job.kind]
        self.contributor = Contributor(node, window, pacer)
        self.traits = self.contributor.traits
        self._times_steps = pacer is not None or self.traits.gathers
        self.plan = BatchPlan(self.contributor, window, node.loop)
        self._copies = flat.copies
        self.probe: Probe | None = None
        """The sample of points on which the loss at the beginning of a round is measured, if the
        user's code has provided one."""
        on_servers = self._kind.steps_on_servers
        self._models = AttachedModels(node.name, models, names, steps_on_servers=on_servers)
        self._several = self._models.several
        estimates = not (self.traits.rounds and on_servers)
        told, resumed = node.loop.progress.steps, bool(job.resume)
        self.job_steps = JobSteps(told, estimates=estimates, resumed=resumed)
        self._incarnation = node.incarnation
        if not self._several:
            models[0].schedules.begin(self, say)
        self._dropping = Dropping(window, self.plan, models[0], say)
        self._maker = StepMaker(node, flat, self._models, models, window, say)
        self._own_changed = 0
        """The number of local buffers that this worker has sent so far."""
        self._remember()

    def step(
        self,
        model: AttachedOptimizer,
        objective: torch.Tensor | float | None,
        points: float | None,
    ) -> None:
        """Make a step with the gradients that the user's code has computed. See
        `AttachedOptimizer.step`."""
        for before in self._models.take_scaled():
            # with one model, the points of a step that a GradScaler left out count with this step
            if self._several and not self._loop.stopped:
                self._skip(before, SCALER_SKIPPED)
        if self._loop.stopped:
            self._drop_steps()
            return
        window = self.window
        stepped = self._models.begin_step(model)
        if points is not None:
            window.give(points)
        new_points = window.new_points
        skipped = not self._maker.make(model, self._unweighed(), self._share)
        if objective is None:
            objective = model.loss
        if objective is not None and not skipped:
            window.add_loss(self._read(objective), new_points or window.batch_points)
            if not self._kind.steps_on_servers and self.traits.timed and not window.steps:
                window.keep_first_loss()
        self._end_step(stepped, skipped=skipped)
        model.drop_gradients()

    def _read(self, loss: torch.Tensor | float) -> torch.Tensor | float:
        """The value of a loss. If the model is on a device, the host first waits for the device."""
        if not isinstance(loss, torch.Tensor):
            return loss
        if loss.numel() != 1:
            raise UsageError(
                f"step(objective=...) got a tensor of shape {tuple(loss.shape)}: give the mean loss, a"
                " number or a tensor with one element"
            )
        return loss.detach().item() if self._copies is None else self._copies.fetch(loss)

    def _unweighed(self) -> float:
        """How many points lose their weight if this step is left out. With several models it is
        none, because another model may have made a step with the same points."""
        return 0.0 if self._several else self.window.new_points

    def _share(self) -> float:
        """The size of the step as a share of a whole step: less than 1 if it has fewer points than a
        whole step."""
        window = self.window
        return 1.0 if window.is_given else self.contributor.cadence.share(window.batch_points)

    def before_batch(self) -> None:
        """Prepare for the next batch, which the training loop asks for. If a GradScaler has left
        out the step with the last batch, leave the step out here, too. If the loop has dropped its
        last batches, the worker may have to contribute without a step."""
        for model in self._models.take_scaled():
            if not self._loop.stopped:
                self._skip(model, SCALER_SKIPPED)
                model.drop_gradients()
        if self._loop.stopped or self._several or not self.window.batches:
            return
        if self._dropping.all_dropped() and self.traits.gathers:
            # the time of dropped micro-batches does not count as time of the next one
            self.window.lap(self._node.timesheet.computed_ns())
            self._node.look()
            if self.contributor.due():
                self._contribute_steps()

    def count_steps(self) -> JobSteps:
        """The steps of the job, as far as this worker knows them now."""
        if self._incarnation != self._node.incarnation:
            # the job has made steps without this worker
            self._incarnation = self._node.incarnation
            self.job_steps.on_rejoined(self._loop.progress.steps)
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
        """Leave out a step that the user's code has not made. The gradients stay, because the next
        step may use them."""
        stepped = self._models.begin_step(model)
        self._maker.leave_out(self._unweighed(), NotFinite(why))
        self._end_step(stepped, skipped=True)

    def _end_step(self, stepped: int | None, *, skipped: bool) -> None:
        """End a step. `stepped`: see `_contribute`."""
        contributor, window = self.contributor, self.window
        whole = self._whole()
        window.end_steps(whole=whole)
        self.job_steps.on_step(whole)
        if self._copies is not None and self._times_steps:
            self._copies.await_computing()  # the time of a step ends when the device is done
        contributor.pace()
        if self._abandons():
            window.take_back(self._node.timesheet.computed_ns())
            self._node.look()
        elif self.traits.gathers:
            self._end_micro_batch(skipped=skipped)
        elif self.traits.trains_through and contributor.in_flight:
            self._look()
        elif contributor.cadence.looks(in_flight=contributor.in_flight):
            self._node.look()
        self._dropping.on_stepped()
        window.end_batches()
        if contributor.due():
            self._contribute(stepped)
        elif self._copies is not None:
            self._copies.await_computing()  # do not let the loop run ahead of the device
        if self._loop.stopped:
            # With `trains_through`, the final version may have arrived during the last steps.
            self.settle()

    def _whole(self) -> float:
        """The size of the last step as a share of a step over whole batches. It is below 1 only
        under policies that choose the size of batches."""
        return self.plan.share() if self.traits.gathers and self.window.batch_points else 1.0

    def _abandons(self) -> bool:
        """Whether to abandon the step that was just computed because it took too long."""
        if not self.window.can_take_back:
            return False
        late_ns = -self._node.interval_left_ns()
        return self.contributor.cadence.abandons(late_ns, self.window.gathered)

    def _end_micro_batch(self, *, skipped: bool) -> None:
        """Collect the gradients unless the step is `skipped`, measure the time, and check whether
        the lead has asked all workers to contribute."""
        points = self.window.gather()
        if not skipped:
            self._kind.gather(self._flat, points or 1.0)
        # The time of a further step with the same points is added to the time of the next points.
        if points or not self._several:
            self.contributor.measure(points)
        self._node.look()

    def _look(self) -> None:
        """With `trains_through`: continue with the next version if it has arrived. An evicted
        worker waits for that version instead of training, because its steps would not count."""
        if self._node.look():
            self._rebase()
        elif self._node.displaced:
            self.settle()

    def _rebase(self) -> None:
        self.contributor.in_flight = False
        with torch.no_grad():
            took_ns = self._node.rebase()
        self._models.on_version(final=self._loop.stopped)
        if self._loop.terms.rejoined:
            self.window.drop()
            self.contributor.resume_pace()
        else:
            self.contributor.exclude_from_pace(took_ns)

    def _drop_steps(self) -> None:
        """Drop the steps since the last contribution: the worker uses the final parameters."""
        self.settle()
        self.window.drop()
        self._models.drop_gradients()

    def settle(self) -> None:
        """Wait for the version that answers a contribution in flight, unless this worker was told
        to leave."""
        if self.contributor.in_flight:
            self.contributor.exclude_from_pace(self._node.await_version())
            if self._node.look():
                self._rebase()

    @property
    def has_version(self) -> bool:
        """Whether the worker's parameters are exactly those of a version, without local steps."""
        if self._loop.stopped:
            return True
        local = not self._kind.steps_on_servers and self.pending
        return not local and not self.traits.trains_through

    @property
    def pending(self) -> bool:
        """Whether this worker has made steps since its last contribution."""
        return self.window.steps > 0

    @property
    def unreported(self) -> bool:
        """Whether this worker has steps that it has not contributed, or, with several models,
        points that it has not reported."""
        return self.pending or (self._several and self.window.has_points)

    def exclude_time(self, nanoseconds: int) -> None:
        """Do not count this time as computing: the user's code did other work."""
        self._node.timesheet.exclude_time(nanoseconds)
        self.contributor.exclude_from_pace(nanoseconds)

    def contribute_rest(self) -> None:
        """Contribute the work since the last contribution: no points are left. A worker that was
        told to leave does not wait for a version first."""
        if self._loop.stopped:
            self._drop_steps()
            return
        if not self._loop.asked:
            self.settle()
        window = self.window
        if self._several:
            window.close_batches()
            if window.steps:
                self._contribute(None)
            else:
                # the steps with the last batches have all been contributed
                self._abstain()
            return
        if window.batches:
            self._finish_accumulation()
        self._contribute_steps()
        self._models.drop_gradients()

    def _contribute_steps(self) -> None:
        """Contribute the steps since the last contribution. If the training loop has visited points
        without making a step, leave these points out."""
        if not self.window.steps:
            self._maker.leave_out(0.0, not_made())
            self.window.end_steps()
        self._contribute()

    def _finish_accumulation(self) -> None:
        """Make a step with the gradients that the user's code has accumulated since its last step.
        Without it, their points would count, but the gradients would not."""
        skipped = not self._maker.finish(self._unweighed(), self._share)
        self.window.end_steps(whole=self._whole())
        if self.traits.gathers:
            self._end_micro_batch(skipped=skipped)
        self.window.end_batches()

    def _contribute(self, stepped: int | None = None) -> None:
        """Send a contribution. `stepped`: the number of the model whose step it contains; None: it
        contains the steps of all models."""
        began_ns = time.monotonic_ns()
        contributor, window = self.contributor, self.window
        self._maker.check()
        model = -1 if stepped is None else stepped
        why = window.void
        if why is not None and not self.traits.trains_through:
            self._leave_out(why, model)
            return
        try:
            self._models.check_options()
        except ModelChanged as error:
            raise self._maker.changed(error) from None
        rates = self._models.rates
        if contributor.in_flight:
            self._node.set_apart()
        gathered = window.weight if self.traits.gathers else None
        try:
            self._kind.fill(self._flat, self._node.push, gathered, stepped)
        except NotFinite as error:
            named = self._maker.named(error)
            if not self._maker.skips or self.traits.trains_through:
                raise named from None
            self._models.forget_state()  # the optimizer's state may not be finite either
            self._leave_out(named, model)
            return
        if len(self._flat.own_changed) != self._own_changed:
            self._say_own()
        if self._copies is not None:
            began_ns = self._copies.computed_ns(began_ns)
            self._node.timesheet.resumed_late(self._copies.take_late_ns())
        loss, points, took_ns = self._take_probe()
        first = self._models.steps_first(stepped)
        report = replace(
            contributor.report(first=first),
            model=model,
            probe=loss,
            probe_points=points,
            probe_ns=took_ns,
        )
        wait = not self.traits.trains_through or self._loop.asked
        self._node.contribute(report, rates, began_ns, wait=wait)
        contributor.in_flight = not wait
        if contributor.in_flight and self._node.displaced:
            self.settle()
        if wait:
            self._remember()
        contributor.resume_pace()
        self.begin_round()

    def _take_probe(self) -> tuple[float | None, int, int]:
        """Return the objective at the parameters with which this round began: the loss, the number
        of points, and the time in nanoseconds that measuring it took. It is measured on the probe
        sample or, without a sample, it is the loss of the first local step, if the sync policy has
        asked for it. (The mean loss of several local steps would not show how averaging the
        workers' models changes the objective.)"""
        if self.probe is not None:
            return self.probe.result()
        first = self.window.first_loss
        if first is None or not self._loop.terms.probe[1]:
            return NOT_PROBED
        loss, points = first
        return float(loss), points, 0

    def _say_own(self) -> None:
        """Tell the user which buffers are local, when this worker, the evaluator, sends such
        buffers for the first time. Say nothing if none of them has floating-point numbers."""
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

    def _leave_out(self, why: NotFinite, model: int) -> None:
        """Leave out the work since the last contribution. The lead counts the contribution as left
        out. `model`: see `ContributionReport.model`."""
        self._flat.restore_buffers()
        self._abstain(reason_of(why), model)

    def _abstain(self, skipped: Reason | None = None, model: int = -1) -> None:
        """Contribute nothing to this round, and continue with the parameters of the next version."""
        self.contributor.abstain(skipped, model)
        self.take_version()
        self.begin_round()

    def take_version(self) -> None:
        """Use the present parameters as the base of later changes. The worker has waited without
        contributing, and new parameters may have arrived."""
        self._remember()
        self.contributor.resume_pace()

    def _remember(self) -> None:
        """Remember the parameters of the version with which the worker continues: the base of later
        changes."""
        self._kind.remember(self._flat)
        self._models.on_version(final=self._loop.stopped)
        self._maker.on_version()

    def begin_round(self) -> None:
        """Begin a round with the present parameters: evaluate the probe sample if the policy asks
        for it."""
        part, parts = self._loop.terms.probe
        if self.probe is not None and parts:
            self.exclude_time(self.probe.evaluate(part, parts))
        self._node.timesheet.begin_interval()

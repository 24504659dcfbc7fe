"""A worker's process as the user's training loop sees it: the loop attaches a model, asks for
chunks, contributes and waits. `host.py` runs the worker's machine below it.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace

from polyrhythm.core import events as ev
from polyrhythm.core.kinds import sums_only
from polyrhythm.core.model import nbytes_of
from polyrhythm.core.placement.slices import layout_of
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.runtime.worker.host import ME, MachineHost
from polyrhythm.runtime.worker.own_steps import OwnSteps
from polyrhythm.tensors.device_model import flatten
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE, Reason


class WorkerNode(MachineHost):
    def attach(self, spec: m.ModelSpec, tensors: Sequence[torch.Tensor]) -> FlatModel:
        """Attach the user's model, and wait for the parameters of the first version that the lead
        releases to this worker."""
        job = self.job
        assert job is not None
        if self._machine.division is None:
            self._driver.post(ME, ev.Sizing(nbytes_of(spec)))
            self.loop.begin(lambda: self._machine.division is not None)
        spec = self.state.spec = replace(spec, division=self._machine.division)
        layout = layout_of(spec, job)
        aside = traits_of(job.sync).trains_through
        self._model = flatten(
            layout,
            tensors,
            job.wire_dtype,
            aside=aside,
            models=spec.models,
            evaluates=lambda: self._machine.evaluates,
        )
        self._pushing.attach(self._model, layout, job)
        if sums_only(job):
            self._own = OwnSteps(self._model, layout, job, spec, self._send_shared, self._me)
        self._landing.attach(self._model, layout, self._own, in_place=job.in_place)
        self.loop.resumed = False
        self._driver.post(ME, ev.Attaching(spec))
        # this applies even if the lead refuses the worker and the user's code continues
        self.loop.done = DONE
        self.loop.begin(lambda: self.loop.resumed)
        self._book()
        return self._model

    def enrol(
        self, points: int, batch: int = 0, groups: tuple[int, ...] = (), data: str = ""
    ) -> m.Leased:
        """Ask for chunks of a data set of this many points, and wait for them. `batch`: the batch
        size of the user's loop. `groups`: where row groups begin. `data`: a fingerprint of the data
        set. A worker that must join again does so first."""
        self.loop.lease = None
        listens = None if self.points is None else self.points.address
        self._driver.post(ME, ev.Enrolling(points, batch, listens, groups, self.shares, data))
        self.loop.begin(
            lambda: self.loop.lease is not None and self._machine.state is Phase.COMPUTING
        )
        assert self.loop.lease is not None
        return self.loop.lease

    def _me(self) -> tuple[int, int]:
        return self.number, self.incarnation

    @property
    def number(self) -> int:
        """The number of this worker in the job."""
        return self._machine.worker

    @property
    def incarnation(self) -> int:
        return self._machine.incarnation

    @property
    def landed(self) -> int:
        """How many slices of versions have been written to the parameters, including those that are
        being written now."""
        return self._landing.count

    @property
    def displaced(self) -> bool:
        """Whether the worker is not a member, because it was evicted and is joining again."""
        return self._machine.state in (Phase.JOINING, Phase.ADMITTED, Phase.PLACING)

    @property
    def stopping(self) -> bool:
        """Whether the lead has said that the job ends. The worker may still lack the final
        version."""
        return self._machine.stopping

    @property
    def evaluates(self) -> bool:
        return self._machine.evaluates

    @property
    def acknowledged(self) -> int:
        return self._machine.acknowledged

    @property
    def push(self) -> list[torch.Tensor]:
        """The push buffers to fill for the next contribution, one per space."""
        return self._push.turn

    @property
    def exact_to(self) -> tuple[str, ...]:
        return self._pushing.exact_to

    def push_buffers(self) -> list[list[torch.Tensor]]:
        return self._push.tensors()

    def contribute(
        self,
        report: m.ContributionReport,
        rates: tuple[float, ...],
        began_ns: int,
        *,
        wait: bool = True,
    ) -> None:
        """Send the contribution in `push`, with this report, to which this method adds the times
        and the size. With `wait`, also wait until the sync policy lets this worker continue.
        `rates`: the learning rates of the parameter groups. `began_ns`: when the user's code
        stopped computing and began to fill `push`."""
        assert self._model is not None
        buffer, nbytes = self._pushing.lend()
        timesheet = self.timesheet
        report = replace(
            report,
            compute_ns=timesheet.computed_ns(began_ns),
            wait_ns=timesheet.waited_ns,
            transfer_ns=timesheet.transferred_ns,
            nbytes=nbytes,
        )
        event = ev.Computed(buffer, rates, report)
        if wait:
            self._exchange(event, began_ns)
        elif self._parting:
            self.timesheet.resume()
        else:
            self.loop.resumed = False
            self._driver.post(ME, event)
            self.timesheet.trained_through(began_ns)
        self._push.turn_to_next(self._machine.unacknowledged)
        if self._unproven and self._machine.acknowledged:
            self._unproven = False
            self._options.contributed()

    def look(self) -> bool:
        """Handle the messages that have arrived, without waiting. Returns whether the worker has
        the next version."""
        self._land_kept()
        self.loop.look()
        return self.loop.resumed

    def await_version(self) -> int:
        """Wait for the next version, and return how long that took. For a worker that contributes
        without waiting and has no points left."""
        began_ns = time.monotonic_ns()
        self.loop.await_version()
        return self.timesheet.waited_for_version(began_ns)

    def rebase(self) -> int:
        """Rebase: a version has arrived in a buffer beside the parameters. Make it the base of the
        parameters, and keep the changes since the last contribution. After a rejoin, and at the end
        of the job, these changes are discarded. Returns how long this took; the time counts as
        transferring."""
        assert self._model is not None
        began_ns = time.monotonic_ns()
        if self.loop.terms.rejoined or self.loop.terms.stop:
            self._model.adopt()
        else:
            self._model.rebase(self._push.sent)
        return self.timesheet.on_rebased(began_ns, rejoined=self.loop.terms.rejoined)

    def set_apart(self) -> None:
        """Do not send the changes of the last contribution again with the next one. For a worker
        that has not yet received a version with the last contribution."""
        assert self._model is not None
        self._model.set_apart(self._push.sent)

    def interval_left_ns(self) -> int:
        return self.timesheet.interval_left_ns(self.loop.terms.interval_ns)

    def ask_for_barrier(self) -> None:
        self._driver.post(ME, ev.PassedAll())

    def abstain(
        self,
        lease: int,
        skipped: Reason | None = None,
        progress: tuple[m.ChunkProgress, ...] = (),
        model: int = -1,
    ) -> None:
        """Contribute nothing to this round, and wait until the sync policy lets this worker
        continue. `skipped`: why a contribution is left out; `progress`: its points; `model`: see
        `ContributionReport`."""
        self._exchange(ev.Exhausted(lease, skipped, progress, model), time.monotonic_ns())

    def _exchange(self, event: Any, began_ns: int) -> None:
        if self._parting:
            self.timesheet.resume()
            return
        self.loop.resumed = False
        idle_ns = self._links.idle_ns
        self._driver.post(ME, event)
        self.loop.await_version()
        self._parting = self.loop.asked
        self._book()
        self.timesheet.on_exchanged(began_ns, self._links.idle_ns - idle_ns)

    def _book(self) -> None:
        """Use a version whose slices have all arrived, and begin to count computing time."""
        assert self._model is not None
        if self._own is not None:
            self._own.apply(self.loop.version)
        if self._landing.in_place is not None:
            self._model.read_in_place(self._landing.in_place)
        if self._model.aside and self.loop.resumed:
            self._model.adopt()
        self.timesheet.resume()

    def report(
        self, metrics: dict[str, float], version: int = -1, *, evaluated: bool = False
    ) -> None:
        """Report values such as an accuracy. `version`: the version with which they were measured;
        -1 if they belong to no version."""
        self._driver.post(ME, ev.Reporting(metrics, version, evaluated))

    def leave(self, reason: Reason, *, failed: bool = False, at_once: bool = False) -> None:
        """Leave the job when all contributions are acknowledged, or after a time limit. `at_once`:
        do not wait."""
        self._driver.post(ME, ev.Leaving(reason, failed, at_once))
        while self._machine.state is not Phase.ENDED and not at_once:
            self._links.poll(1.0)

    def ask_to_leave(self) -> None:
        """Make the user's loop contribute what it has computed, and end. Any thread may call
        this."""
        self.loop.asked = True
        self._driver.post(ME, ev.LeaveAsked())

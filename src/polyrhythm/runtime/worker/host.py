"""The part of a worker's process that runs the worker's machine: it joins the job, reads the links
and performs the effects of the machine.

The thread of the user's training loop runs the machine. While it waits, it reads the links, so no
message has to pass from one thread to another. While the user's code computes, no link is read.
`node.py` has the calls of the training loop.
"""

import time
from functools import partial

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.liveness import HeardThrottle
from polyrhythm.core.machine import Effect
from polyrhythm.core.migration import DELIVERING, migration_of
from polyrhythm.core.names import LEAD, server_name
from polyrhythm.core.performers import WORKER_EFFECTS, performers_of
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.io.link import Link, Payload
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.dial import Dialer
from polyrhythm.runtime.net.meter import Meter
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.trace import Origin, Trace
from polyrhythm.runtime.worker.deliveries import PointsCarrier
from polyrhythm.runtime.worker.joining import Joiner
from polyrhythm.runtime.worker.kept_state import StateCarrier
from polyrhythm.runtime.worker.landing import Landing
from polyrhythm.runtime.worker.loop import UserLoop
from polyrhythm.runtime.worker.own_steps import OwnSteps
from polyrhythm.runtime.worker.push import Pushing
from polyrhythm.runtime.worker.timesheet import Timesheet
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire import messages as m

ME = "worker"


class MachineHost:
    def __init__(self, name: str, job: str, dialer: Dialer, options: NodeOptions) -> None:
        self.name = name
        self.device = options.device
        self.shares = options.share_data
        """Whether points of private data may leave this worker."""
        self.job: m.JobSpec | None = None
        self._machine = WorkerMachine(name)
        self._report = options.report
        self._trace: Trace | None = None
        if options.trace_dir is not None:
            origin = Origin(ME, "worker", -1, name, m.JobSpec(job=job))
            file = f"{name.replace('/', '_')}.trace"
            self._trace = Trace(options.trace_dir / file, [origin], options.report)
        self._driver = Driver(
            {ME: self._machine},
            self._perform,
            settle=lambda: self._links.settle(),
            trace=self._trace,
            check=options.check,
            before_tick=self._say_if_unread,
        )
        put = partial(self._driver.put, ME)
        self._meter = Meter()
        self._landing = Landing(put, self._divert)
        self._links = WorkerLinks(
            dialer,
            options,
            self._driver,
            post=partial(self._driver.post, ME),
            take=self._take,
            place_of=self._landing.place_of,
            seat=lambda: self._machine.seat,
            measure=self._meter.add,
        )
        self._heard_throttle = HeardThrottle()
        self._joining = Joiner(
            name,
            job,
            options.device,
            self._machine,
            self._links,
            self._heard_throttle,
            put,
            self._driver.run,
        )
        self.state = StateCarrier(
            self._links, partial(self._driver.post, ME), lambda until: self.loop.begin(until)
        )
        self.loop = UserLoop(name, self._links, self._meanwhile)
        self.points: PointsCarrier | None = None
        """Carries points from worker to worker; None if no points are sent."""
        self._lead: m.Address | None = None
        self._dialer, self._options = dialer, options
        self._model: FlatModel | None = None
        self._own: OwnSteps | None = None
        """With `--optimizer-on workers`: the steps that this worker makes."""
        self._pushing = Pushing(self._machine, self._links, shared=dialer.shared)
        self._push = self._pushing.buffers
        self.timesheet = Timesheet()
        self._parting = False
        self._unproven = True
        """Whether no contribution of this process has been acknowledged yet."""

    # -- joining -------------------------------------------------------------------------------

    def join(self, lead: m.Address) -> m.JobSpec:
        """Connect to the lead, wait until this worker is admitted, and connect to every server."""
        self._joining.reach_lead(lead)
        self._driver.run()
        self.loop.begin(lambda: self.job is not None and self._machine.linked)
        assert self.job is not None
        self._lead = lead
        if migration_of(self.job, traits_of(self.job.sync)) in DELIVERING:
            self.points = self._carrier()
        return self.job

    def _carrier(self) -> PointsCarrier:
        assert self.job is not None and self._lead is not None
        return PointsCarrier.begin(
            self.name,
            self.job,
            (self._lead, self._links.to(LEAD)),
            self._dialer,
            self._options,
            partial(self._driver.post, ME),
            self._links.settle,
        )

    def _meanwhile(self) -> bool:
        """Called repeatedly while the user's loop waits. Returns whether there is more to do
        now."""
        self.state.send_if_asked(waiting=True)
        self._land_kept()
        return self.points is not None and self.points.while_waiting()

    def _land_kept(self) -> None:
        if self._landing.land_kept():
            self._driver.run()

    @property
    def servers(self) -> tuple[m.Address, ...]:
        return self._joining.servers

    def _take(self, link: Link, message: m.Message, payload: Payload | None) -> None:
        lead = self._machine.seat.name
        if link.peer == lead and self._heard_throttle.due(time.monotonic_ns()):
            self._driver.put(ME, ev.LeadHeard())
        if isinstance(message, m.Parameters):
            self._landing.take(link, message, payload)
        elif isinstance(message, m.Given):
            self._landing.take_given(message, payload)
        elif isinstance(message, m.Restored):
            if self.state.take(message, payload):
                self._driver.put(ME, ev.StateRestored())
        else:
            self._driver.put(ME, message)

    # -- effects of the machine ----------------------------------------------------------------

    def _perform(self, machine: str, effect: Effect) -> None:
        _EFFECTS[type(effect)](self, effect)

    def send(self, effect: fx.Send) -> None:
        link = self._links.to(effect.to)
        if link is None:
            return
        if effect.to == LEAD and self._machine.worker >= 0:
            self._report_bursts(link)
        link.send(effect.message, flush=False)
        self._links.touch(link)

    def _report_bursts(self, lead: Link) -> None:
        """Before a message to the lead, queue the new measurements of this worker, if there are
        any."""
        received = self._meter.take()
        if received is not None:
            machine = self._machine
            who = {"worker": machine.worker, "incarnation": machine.incarnation}
            lead.send(
                m.RatesMeasured(term=machine.seat.term, **who, received=received), flush=False
            )

    def dial(self, effect: fx.Dial) -> None:
        self.job = self._machine.job
        assert self.job is not None
        self.timesheet.look_every(self.job.heartbeat_s)
        self._joining.dial(effect)

    def beat(self, effect: fx.Beat) -> None:
        self.send(fx.Send(LEAD, effect.message))
        self._links.keep_alive(effect.message)

    def _say_if_unread(self) -> None:
        """If unread messages of the lead have arrived, tell the machine that the lead is alive.
        While the user's code computes, no link is read."""
        self.timesheet.look()
        if self._links.unread(LEAD):
            self._driver.put(ME, ev.LeadHeard())

    def prepare_buffers(self, effect: fx.PrepareBuffers) -> None:
        self._pushing.prepare(effect.routes)
        self._landing.follow(effect.routes, effect.early_since)

    def rejoin(self, effect: fx.Rejoin) -> None:
        self._joining.rejoin(effect)

    def note(self, effect: fx.Note) -> None:
        self._report(effect)

    def seed_slices(self, effect: fx.SeedSlices) -> None:
        self._pushing.seed(effect)

    def push_slices(self, effect: fx.PushSlices) -> None:
        self._pushing.push(effect)

    def expect(self, effect: fx.Expect) -> None:
        self._landing.expect(effect)

    def capture_state(self, effect: fx.CaptureState) -> None:
        self.state.ask(effect)

    def share_state(self, effect: fx.ShareState) -> None:
        assert self._own is not None
        self._own.share(effect)

    def _divert(self, late: m.Parameters) -> None:
        link = self._links.to(server_name(late.server))
        if link is not None and link.pollable is not None:
            link.pollable.divert(late)

    def _send_shared(self, server: int, message: m.Shared, data: memoryview | None) -> None:
        link = self._links.to(server_name(server))
        if link is not None:
            link.send(message, () if data is None else (data,))
            self._links.touch(link)

    def take_chunks(self, effect: fx.TakeChunks) -> None:
        self.loop.take_lease(effect)

    def fail(self, effect: fx.Fail) -> None:
        self.loop.fail(effect)

    def end(self, effect: fx.End) -> None:
        """Does nothing: the user's code has ended, or `UserLoop.fail` has set the exception that
        ends it."""

    @property
    def cut_off(self) -> bool:
        """Whether the lead has ended its link to this worker, while the user's code runs and has
        not noticed."""
        return self._links.hung_up(LEAD)

    def close(self) -> None:
        self._links.stop_reporting()
        if self.points is not None:
            self.points.close()
        self._driver.close()
        self._links.close()
        if self._model is not None and self._model.copies is not None:
            self._model.copies.close()
        self._pushing.close()
        if self._trace is not None:
            self._trace.close()


_EFFECTS = performers_of(MachineHost, WORKER_EFFECTS)

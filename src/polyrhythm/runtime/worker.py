"""A worker's process below the user's loop: links, push buffers, and the worker's machine.

The user's own thread drives: while it waits it reads the links itself, so that nothing is handed from
thread to thread on the way of a contribution. While it computes nothing is read; nothing is owed.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Effect
from polyrhythm.core.placement.slices import Layout, Slice, lay_out, pack
from polyrhythm.core.sync.choose import trains_through
from polyrhythm.core.worker import State, WorkerMachine
from polyrhythm.errors import FrameError, JobFailed, LinkError, Refused, ToldToLeave
from polyrhythm.io.link import Link, Payload
from polyrhythm.io.poll import Poller
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.io.stream import StreamLink
from polyrhythm.runtime.bonjour import introduce, offers, patience
from polyrhythm.runtime.dial import Dialer
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.peers import Peers, hang_up
from polyrhythm.runtime.trace import Origin, Trace
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire import messages as m

_ME = "worker"
_PUSH_BUFFERS = m.WINDOW + 1
"""What is unacknowledged belongs to the servers, and one more is filled meanwhile."""
_BAD_PEER = (FrameError, LinkError)


class _PushBuffer:
    """Memory for one contribution and its slices, ready to be sent."""

    def __init__(self, model: FlatModel, layout: Layout, *, shared: bool) -> None:
        segments: list[Segment] = []

        def allocate(nbytes: int) -> memoryview:
            segments.append(Segment(nbytes, shared=shared))
            return segments[-1].memory

        _, self.tensors = model.push_buffers(allocate)
        self.segments = segments
        self.pieces: list[Piece] = [
            segments[slice_.space].piece(*model.wire_range(slice_)) for slice_ in layout.slices
        ]


class WorkerNode:
    def __init__(self, name: str, job: str, dialer: Dialer, options: NodeOptions) -> None:
        self.name = name
        self.job: m.JobSpec | None = None
        self.stopped = False
        self.asked = False
        """Somebody wants this worker to leave."""
        self.servers: tuple[m.Address, ...] = ()
        self.version = -1
        self.lease: m.Leased | None = None
        self.terms = fx.Resume(-1, stop=False)
        """When to contribute next, as the lead said with the version at hand."""
        self.hurried = False
        """The interval is over."""
        self._job_id = job
        self._dialer = dialer
        self._options = options
        self._machine = WorkerMachine(name)
        self._trace: Trace | None = None
        if options.trace_dir is not None:
            origin = Origin(_ME, "worker", -1, name, m.JobSpec(job=job))
            file = f"{name.replace('/', '_')}.trace"
            self._trace = Trace(options.trace_dir / file, [origin])
        self._peers = Peers()
        self._poller = Poller()
        self._driver = Driver(
            {_ME: self._machine},
            self._perform,
            settle=self._settle,
            trace=self._trace,
            check=options.check,
        )
        self._model: FlatModel | None = None
        self._layout: Layout | None = None
        self._push: list[_PushBuffer] = []
        self._turn = 0
        self._sent = 0
        self._lent: deque[int] = deque(maxlen=m.WINDOW)
        self._expected: int | None = None
        self._keeps: int | None = None
        self._kept: list[tuple[m.Parameters, memoryview]] = []
        self._keeping = threading.Lock()
        self._resumed = False
        self._failure: str | None = None
        self._all_stopped = False
        self._in_place: memoryview | None = None
        self._holdings: dict[int, tuple[int, ...]] = {}
        self._packed: dict[tuple[int, ...], list[tuple[Slice, int, int]]] = {}
        """Where slices lie that a server sends side by side."""
        self._first_landing_ns = 0
        self._resumed_ns = time.monotonic_ns()
        self._waited_ns = 0
        self._transferred_ns = 0
        self._closing = False
        self._lead: m.Address | None = None
        self._let_go = False
        """It was told to leave, and need not wait for a version."""
        self._parting = False
        self._interval_ns = 0

    def _settle(self) -> None:
        """Everything at hand is done: it leaves, and the user's thread looks at what it waits for."""
        self._peers.flush()
        self._poller.wake()

    # -- joining -------------------------------------------------------------------------------

    def join(self, lead: m.Address) -> m.JobSpec:
        """Link to the lead, be admitted, link to every server."""
        self._lead = lead
        self._link(lead, fx.LEAD)
        self._begin(lambda: self.job is not None and self._machine.linked)
        assert self.job is not None
        return self.job

    def _link(
        self, address: m.Address, peer: str, incarnation: int = 0, *, before: int = 0
    ) -> None:
        """`incarnation` is the peer's; `before`: this worker's own, when it joins again."""
        link = self._dialer.dial(address, peer)
        bonjour = m.WorkerBonjour(
            worker=self._machine.worker,
            incarnation=self._machine.incarnation or before,
            name=self.name,
            job=self._job_id,
            identity=address.identity,
            digests=offers(self._options.digest, link.kind),
        )
        with patience(link):
            introduce(link, bonjour)
        link.incarnation = incarnation
        link.land_with(self._place_of)
        replaced = self._peers.get(peer)
        if replaced is not None:
            self._forget(replaced)  # of one whose place another has taken
        self._peers.add(link)
        if isinstance(link, StreamLink):
            for message, payload in link.take_buffered():
                self._take(link, message, payload)
            self._driver.run()
            self._poller.add(link, lambda: self._ready(link))
        else:
            threading.Thread(
                target=self._read, args=(link,), name=f"read-{peer}", daemon=True
            ).start()

    def _read(self, link: Link) -> None:
        torch.set_num_threads(1)
        try:
            while True:
                self._take(link, *link.receive())
                self._driver.run()
        except _BAD_PEER as error:
            self._part(link, error)

    def _ready(self, link: StreamLink) -> None:
        try:
            for message, payload in link.receive_ready(finish=True):
                self._take(link, message, payload)
            self._driver.run()
        except _BAD_PEER as error:
            self._poller.remove(link)
            lead = self._peers.get(fx.LEAD)
            if isinstance(lead, StreamLink) and lead is not link:
                self._ready(lead)  # it may have said already why servers go
            self._part(link, error)

    def _part(self, link: Link, error: Exception) -> None:
        if not self._closing and self._peers.remove(link):
            closed = ev.LinkClosed(link.peer, str(error), link.incarnation)
            self._driver.post(_ME, closed)
        link.close()

    def _forget(self, link: Link) -> None:
        self._peers.remove(link)
        if isinstance(link, StreamLink):
            self._poller.remove(link)
        hang_up(link)

    # -- what comes in -------------------------------------------------------------------------

    def _take(self, link: Link, message: m.Message, payload: Payload | None) -> None:
        if isinstance(message, m.Parameters):
            self._take_slice(link, message, payload)
        else:
            self._driver.put(_ME, message)

    def _awaited(self, message: m.Parameters) -> bool:
        return self._expected is not None and message.round >= self._expected

    def _place_of(self, message: m.Message, nbytes: int) -> memoryview | None:
        """Where a slice that travels as bytes is received: its final place, if it is awaited."""
        if not isinstance(message, m.Parameters) or not self._awaited(message):
            return None
        if self._model is None or self._layout is None:
            return None
        if not 0 <= message.slice < len(self._layout.slices):
            return None
        memory = self._model.memory_of(self._layout.slices[message.slice])
        return memory if memory is not None and len(memory) == nbytes else None

    def _take_slice(self, link: Link, message: m.Parameters, payload: Payload | None) -> None:
        if payload is None:
            raise FrameError("parameters came without their bytes")
        with self._keeping:
            awaited = self._awaited(message)
            keeps = not awaited and message.round == self._keeps
            if keeps:
                view = payload.view()
                self._kept.append((message, view if link.by_reference else memoryview(bytes(view))))
        if not awaited:
            if not keeps:
                self._skip(message)
            return
        if self._model is None or self._layout is None:
            raise FrameError("parameters came before the model was attached")
        in_place = not link.by_reference and message.slice != m.EVERY_SLICE
        if in_place and self._model.memory_of(self._layout.slices[message.slice]) is not None:
            self._landed(message)
        else:
            self._land(message, payload.view())
        payload.done()

    def _land(self, message: m.Parameters, view: memoryview) -> None:
        """What lies elsewhere is copied to its place."""
        assert self._model is not None and self._layout is not None
        if not self._first_landing_ns:
            self._first_landing_ns = time.monotonic_ns()
        if message.slice == m.EVERY_SLICE:
            self._take_all(message, view)
        else:
            self._model.land(self._layout.slices[message.slice], view)
        self._landed(message)

    def _skip(self, message: m.Parameters) -> None:
        skipped = ev.Skipped(message.server, message.sequence, message.routing, message.incarnation)
        self._driver.put(_ME, skipped)

    def _landed(self, message: m.Parameters) -> None:
        if not self._first_landing_ns:
            self._first_landing_ns = time.monotonic_ns()
        landed = ev.Landed(
            message.server,
            message.slice,
            message.round,
            message.sequence,
            message.routing,
            message.holds,
            message.incarnation,
        )
        self._driver.put(_ME, landed)

    def _take_all(self, message: m.Parameters, view: memoryview) -> None:
        """A server's slices side by side, in its own memory: copy them, or read them there."""
        assert self._model is not None and self.job is not None
        if self.job.in_place:
            self._in_place = view
            return
        for slice_, offset, nbytes in self._pack(message.server, message.holds):
            self._model.land(slice_, view[offset : offset + nbytes])

    # -- the user's side -----------------------------------------------------------------------

    def attach(self, spec: m.ModelSpec, tensors: Sequence[torch.Tensor]) -> FlatModel:
        """Hand in the model and wait for the parameters of the version that is released."""
        assert self.job is not None
        self._layout = lay_out(spec, self.job.servers, self.job.slice_nbytes)
        aside = trains_through(self.job.sync)
        self._model = FlatModel(self._layout, tensors, self.job.wire_dtype, aside=aside)
        self._resumed = False
        self._driver.post(_ME, ev.Attaching(spec))
        self._begin(lambda: self._resumed)
        self._book()
        return self._model

    def enrol(self, points: int, batch: int = 0) -> m.Leased:
        """Ask for chunks of so many points, which are taken `batch` at a time, and wait for them; if
        this worker must first join again, for that too."""
        self.lease = None
        self._driver.post(_ME, ev.Enrolling(points, batch))
        self._begin(lambda: self.lease is not None and self._machine.state is State.COMPUTING)
        assert self.lease is not None
        return self.lease

    @property
    def incarnation(self) -> int:
        return self._machine.incarnation

    @property
    def displaced(self) -> bool:
        """It has lost its place in the job, and joins again."""
        return self._machine.state in (State.JOINING, State.ADMITTED, State.PLACING)

    @property
    def acknowledged(self) -> int:
        return self._machine.acknowledged

    @property
    def push(self) -> list[torch.Tensor]:
        """The push buffers to fill for the next contribution, one per space."""
        return self._push[self._turn].tensors

    def push_buffers(self) -> list[list[torch.Tensor]]:
        return [buffer.tensors for buffer in self._push]

    def contribute(
        self,
        weight: float,
        rates: tuple[float, ...],
        objective: float | None,
        progress: tuple[m.Progress, ...],
        lease: int,
        began_ns: int,
        steps: int = 1,
        probe: tuple[float | None, int, int] = (None, 0, 0),
        *,
        abandoned_ns: int = 0,
        wait: bool = True,
    ) -> None:
        """Send what lies in `push`, and wait until the sync policy lets this worker go on, unless
        it trains through. `began_ns` is when the user's computing ended and the filling of `push`
        began; `probe` is the loss on the probe sample, over how many points, and how long it took."""
        event = ev.Computed(
            self._turn,
            weight,
            rates,
            objective,
            began_ns - self._resumed_ns,
            self._waited_ns,
            self._transferred_ns,
            progress,
            lease,
            steps,
            *probe,
            abandoned_ns,
        )
        self._sent = self._turn
        self._lent.append(self._turn)
        if wait:
            self._exchange(event, began_ns)
        elif not self._parting:
            self._resumed = False
            self._driver.post(_ME, event)
            self._waited_ns = 0
            self._resumed_ns = time.monotonic_ns()
            self._transferred_ns = self._resumed_ns - began_ns
        self._turn = self._next_buffer()

    def look(self) -> bool:
        """Take in what has come, without waiting: whether the next version is here."""
        if self._failure is not None:
            raise (JobFailed if self._all_stopped else Refused)(self._failure)
        self._poller.poll(0.0)
        return self._resumed

    def await_version(self) -> None:
        """It trained through, and has nothing left to train on until the next version is here."""
        began_ns = time.monotonic_ns()
        self._wait(lambda: self._resumed or self._let_go)
        took_ns = time.monotonic_ns() - began_ns
        self._waited_ns += took_ns
        self._resumed_ns += took_ns

    def rebase(self) -> None:
        """Move the parameters to the version that came aside, keeping what was learned since the
        last contribution was sent. Its time is booked as transfer."""
        assert self._model is not None
        began_ns = time.monotonic_ns()
        if self.terms.anew:
            self._model.adopt()
            self._waited_ns = self._transferred_ns = 0
            self._resumed_ns = (
                began_ns  # what it computed before was for an incarnation that is over
            )
        else:
            self._model.rebase(self._push[self._sent].tensors)
        took_ns = time.monotonic_ns() - began_ns
        self._transferred_ns += took_ns
        self._resumed_ns += took_ns

    def set_apart(self) -> None:
        """The last contribution has not come back as a version: the next one leaves it out."""
        assert self._model is not None
        self._model.set_apart(self._push[self._sent].tensors)

    def pass_over(self, nanoseconds: int) -> None:
        """So much of the time since it resumed was not computing."""
        self._resumed_ns += nanoseconds

    def computed_ns(self) -> int:
        """How long the user's code has had the parameters."""
        return time.monotonic_ns() - self._resumed_ns

    def begin_interval(self) -> None:
        """Where rounds end by the clock: it begins to run."""
        self._interval_ns = time.monotonic_ns()

    def interval_left_ns(self) -> int:
        return self._interval_ns + self.terms.interval_ns - time.monotonic_ns()

    def ask_for_barrier(self) -> None:
        self._driver.post(_ME, ev.PassedAll())

    def _next_buffer(self) -> int:
        """The first two in turn, and the third when a server may still read the one whose turn it
        is; so its memory is only taken by who runs ahead of its acknowledgements."""
        unacknowledged = self._machine.unacknowledged
        busy = list(self._lent)[-unacknowledged:] if unacknowledged else []
        other: int = 1 - self._turn if self._turn < 2 else 0
        choices: list[int] = [other, *range(_PUSH_BUFFERS)]
        return next(buffer for buffer in choices if buffer not in busy)

    def abstain(self, reason: str, lease: int) -> None:
        self._exchange(ev.Exhausted(reason, lease), time.monotonic_ns())

    def _exchange(self, event: Any, began_ns: int) -> None:
        if self._parting:
            return
        self._resumed = False
        self._first_landing_ns = 0
        self._driver.post(_ME, event)
        sent_ns = time.monotonic_ns()
        self._wait(lambda: self._resumed or self._let_go)
        self._parting = self.asked
        self._book()
        landing_ns = max(sent_ns, self._first_landing_ns or self._resumed_ns)
        self._waited_ns = landing_ns - sent_ns
        self._transferred_ns = sent_ns - began_ns + self._resumed_ns - landing_ns

    def _book(self) -> None:
        """The version is whole: take it in place if so asked, and start the clock of computing."""
        assert self._model is not None
        if self._in_place is not None:
            self._model.read_in_place(self._in_place)
        if self._model.aside and self._resumed:
            self._model.adopt()
        self._resumed_ns = time.monotonic_ns()

    def report(self, metrics: dict[str, float]) -> None:
        self._driver.post(_ME, ev.Reporting(metrics))

    def leave(self, reason: str, *, failed: bool = False, at_once: bool = False) -> None:
        """Leave when what was sent is acknowledged, or has been waited for long enough."""
        self._driver.post(_ME, ev.Leaving(reason, failed, at_once))
        while self._machine.state is not State.ENDED and not at_once:
            self._poller.poll(1.0)

    def ask_to_leave(self) -> None:
        """From any thread: the user's loop is to contribute what it has, and end."""
        self.asked = True
        self._driver.post(_ME, ev.LeaveAsked())

    def _begin(self, done: Callable[[], bool]) -> None:
        """Wait for something without which there is no loop that could end in order."""
        self._wait(lambda: done() or self.asked)
        if not done():
            raise ToldToLeave(f"{self.name} was told to leave before it had begun")

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done():
            if self._failure is not None:
                raise (JobFailed if self._all_stopped else Refused)(self._failure)
            self._poller.poll(1.0)

    # -- what the machine wants done -----------------------------------------------------------

    def _perform(self, machine: str, effect: Effect) -> None:
        _EFFECTS[type(effect)](self, effect)

    def _send(self, effect: fx.Send) -> None:
        link = self._peers.get(effect.to) or self._lead_or_none(effect.to)
        if link is not None:
            link.send(effect.message, flush=False)
            self._peers.touch(link)

    def _lead_or_none(self, peer: str) -> Link | None:
        """The lead's own server is reached over the lead's link."""
        return self._peers.get(fx.LEAD) if peer == self._lead_server else None

    _lead_server = fx.server_name(0)

    def _dial(self, effect: fx.Dial) -> None:
        self.job = self._machine.job
        assert self.job is not None
        self._job_id = self.job.job
        self.servers = self.servers or tuple(spec.address for spec in effect.servers)
        for spec in effect.servers:
            name = fx.server_name(spec.server)
            try:
                if name != self._lead_server:
                    self._link(spec.address, name, spec.incarnation)
            except (LinkError, FrameError, Refused) as error:
                self._driver.put(_ME, ev.LinkClosed(name, str(error), spec.incarnation))
            else:
                self._driver.put(_ME, ev.Linked(spec.server, spec.incarnation))

    def _rejoin(self, effect: fx.Rejoin) -> None:
        assert self._lead is not None
        for link in self._peers.all():
            self._forget(link)
        try:
            self._link(self._lead, fx.LEAD, before=effect.incarnation)
        except (LinkError, FrameError, Refused) as error:
            reason = f"it could not join again: {error}"
            self._driver.put(_ME, ev.LinkClosed(fx.LEAD, reason))

    def _beat(self, effect: fx.Beat) -> None:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        self._send(fx.Send(fx.LEAD, msgspec.structs.replace(effect.message, load=load)))

    def _arrange(self, effect: fx.Arrange) -> None:
        assert self._model is not None and self._layout is not None
        if not self._push:
            self._push = [
                _PushBuffer(self._model, self._layout, shared=self._dialer.shared)
                for _ in range(_PUSH_BUFFERS)
            ]
        self._holdings = {}
        for slice_ in self._layout.slices:
            server = effect.routes[slice_.id].primary
            self._holdings[server] = (*self._holdings.get(server, ()), slice_.id)

    def _pack(self, server: int, holds: tuple[int, ...]) -> list[tuple[Slice, int, int]]:
        """Where each of the slices lies that a server sends side by side."""
        assert self._model is not None and self._layout is not None
        ids = holds or self._holdings[server]
        packed = self._packed.get(ids)
        if packed is None:
            held = [self._layout.slices[id_] for id_ in ids]
            places, _ = pack(held, [self._model.wire_range(s)[1] // s.length for s in held])
            packed = self._packed[ids] = [
                (slice_, offset, nbytes)
                for slice_, (offset, nbytes) in zip(held, places, strict=True)
            ]
        return packed

    def _seed(self, effect: fx.SeedSlices) -> None:
        assert self._model is not None and self._layout is not None
        link = self._server_link(effect.server)
        if link is None:
            return
        buffer = self._push[0]
        for number in effect.slices:
            slice_ = self._layout.slices[number]
            piece = buffer.pieces[number]
            offset, length = slice_.offset, slice_.length
            buffer.tensors[slice_.space][offset : offset + length].copy_(self._model.seed(slice_))
            seed = m.Seed(
                routing=effect.routing,
                worker=self._machine.worker,
                incarnation=self._machine.incarnation,
                slice=number,
            )
            link.send(seed, (piece,), flush=False)
        self._peers.touch(link)

    def _server_link(self, server: int) -> Link | None:
        name = fx.server_name(server)
        return self._peers.get(name) or self._lead_or_none(name)

    def _push_slices(self, effect: fx.PushSlices) -> None:
        link = self._server_link(effect.server)
        if link is None or self._layout is None:
            return
        pieces = self._push[effect.buffer].pieces
        slices = self._layout.slices
        for number in effect.slices:
            group = slices[number].group
            contribution = m.Contribution(
                view=effect.view,
                routing=effect.routing,
                worker=self._machine.worker,
                incarnation=self._machine.incarnation,
                sequence=effect.sequence,
                round=effect.round,
                slice=number,
                weight=effect.weight,
                slices=len(effect.slices),
                rate=effect.rates[group] if group >= 0 else 0.0,
            )
            link.send(contribution, (pieces[number],), flush=False)
        self._peers.touch(link)

    def _expect(self, effect: fx.Expect) -> None:
        with self._keeping:
            self._expected, self._keeps = effect.round, effect.keep
            kept, self._kept = self._kept, []
        if effect.round is not None:
            self._first_landing_ns = 0  # what came before it was asked for again was not awaited
        for message, view in kept:
            if self._awaited(message):
                self._land(message, view)
            else:
                self._skip(message)

    def _resume(self, effect: fx.Resume) -> None:
        self.version = effect.round
        self.terms = effect
        self.hurried = False
        self.stopped = self.stopped or effect.stop
        self._resumed = True

    def _allow_to_go(self, effect: fx.LetGo) -> None:
        self._let_go = True

    def _hurry(self, effect: fx.Hurry) -> None:
        self.hurried = True

    def _take_chunks(self, effect: fx.TakeChunks) -> None:
        self.lease = effect.lease

    def _fail(self, effect: fx.Fail) -> None:
        self._all_stopped = effect.stopped
        self._failure = str(effect.reason)

    def _end(self, effect: fx.End) -> None:
        pass  # nothing is left to do: the user's code has ended, or will hear why it must

    @property
    def fault(self) -> str | None:
        """Why it cannot record what happens any more."""
        return None if self._trace is None else self._trace.fault

    def close(self) -> None:
        self._closing = True
        self._driver.close()
        self._peers.close()
        self._peers.dispose()
        self._poller.close()
        for buffer in self._push:
            for segment in buffer.segments:
                segment.close()
        if self._trace is not None:
            self._trace.close()


_EFFECTS: dict[type[Effect], Callable[[WorkerNode, Any], None]] = {
    fx.Send: WorkerNode._send,
    fx.Dial: WorkerNode._dial,
    fx.Rejoin: WorkerNode._rejoin,
    fx.Beat: WorkerNode._beat,
    fx.Arrange: WorkerNode._arrange,
    fx.SeedSlices: WorkerNode._seed,
    fx.PushSlices: WorkerNode._push_slices,
    fx.Expect: WorkerNode._expect,
    fx.Resume: WorkerNode._resume,
    fx.LetGo: WorkerNode._allow_to_go,
    fx.Hurry: WorkerNode._hurry,
    fx.TakeChunks: WorkerNode._take_chunks,
    fx.Fail: WorkerNode._fail,
    fx.End: WorkerNode._end,
}

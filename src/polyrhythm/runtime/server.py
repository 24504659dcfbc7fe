"""A server's process: links, holdings, and the machines that decide over them.

The lead's machine runs in one of the servers; everything it says to its own server stays in the
process, and everything else goes over links.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead import LeadMachine
from polyrhythm.core.machine import Effect, Machine
from polyrhythm.core.server import ServerMachine
from polyrhythm.core.sync.choose import has_rounds
from polyrhythm.errors import FrameError, LinkEnded, LinkError, NotFinite, Refused
from polyrhythm.io.link import Link, Payload, Sendable
from polyrhythm.io.poll import Poller
from polyrhythm.io.segments import Segment
from polyrhythm.io.stream import StreamLink
from polyrhythm.observe.journal import Journal
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.bonjour import introduce, offers, patience
from polyrhythm.runtime.dial import Dialer
from polyrhythm.runtime.door import Door, Listeners
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.holdings import Holdings
from polyrhythm.runtime.lanes import Lanes
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.peers import Peers, hang_up
from polyrhythm.runtime.speech import for_the_lead
from polyrhythm.runtime.trace import Origin, Trace
from polyrhythm.wire import messages as m

_SMALL_NBYTES = 256 * 1024
"""Below this, adding and folding on the thread at hand beats handing over to another."""
_BAD_PEER = (FrameError, LinkError, NotFinite)
_DAMPING = 0.2
_LEADS = 0
"""The server that the lead runs in, and its incarnation: it was there first."""
_FIRST = 1
_Slice = tuple[Link, m.Contribution, memoryview, threading.Event | None]


class ServerNode:
    def __init__(
        self,
        server: int,
        job: m.JobSpec,
        address: m.Address,
        *,
        lead: bool,
        options: NodeOptions,
        journal: Journal | None = None,
        shared: bool = True,
    ) -> None:
        self.name = fx.server_name(server)
        self.address = address
        self.ended = threading.Event()
        self.outcome: fx.End | None = None
        self._server = server
        self._job = job
        self._options = options
        self._journal = journal
        self._shared = shared
        self._leads = lead
        self._rounds = has_rounds(job.sync)
        self._dialer: Dialer | None = None
        self._peers = Peers()
        self._holdings: Holdings | None = None
        self._lanes: Lanes[_Slice] | None = None
        self._fold_lane: Lanes[fx.StartFold] | None = None
        self._poller = Poller()
        self._folds = 0
        self._load = 0.0
        self._closing = False
        machines: dict[str, Machine] = {self.name: ServerMachine(server, job)}
        if lead:
            machines[fx.LEAD] = LeadMachine(job)
        self._trace = _trace(options, self.name, machines, job, server)
        self._driver = Driver(
            machines,
            self._perform,
            settle=self._peers.flush,
            trace=self._trace,
            check=options.check,
        )
        self._door = Door(self.name, job, address, options.digest, self._let_in, self._part)
        self._poll_thread = threading.Thread(target=self._poll, name="poll", daemon=True)
        self._poll_thread.start()
        if lead:
            bonjour = m.ServerBonjour(
                server=server, name=self.name, job=job.job, address=address, identity=""
            )
            self._driver.post(fx.LEAD, ev.ServerKnocked(self.name, bonjour))

    # -- links ---------------------------------------------------------------------------------

    def listen(self, listeners: Listeners) -> None:
        self._door.listen(listeners)

    def welcome(self, link: Link) -> None:
        self._door.welcome(link)

    def _let_in(self, link: Link, bonjour: m.WorkerBonjour | m.ServerBonjour) -> None:
        """A stranger was greeted. The lead decides what to make of it; other servers know whom to
        expect by the incarnation that the lead gave it."""
        if self._leads:
            self._peers.add(link)
            if isinstance(bonjour, m.WorkerBonjour):
                self._driver.post(fx.LEAD, ev.WorkerKnocked(link.peer, bonjour))
            else:
                self._driver.post(fx.LEAD, ev.ServerKnocked(link.peer, bonjour))
        else:
            link.peer = (
                fx.worker_name(bonjour.worker)
                if isinstance(bonjour, m.WorkerBonjour)
                else fx.server_name(bonjour.server)
            )
            link.incarnation = bonjour.incarnation
            replaced = self._peers.add(link)
            if replaced is link:
                self._part(link, LinkError(f"{link.peer} is linked to {self.name} already"))
                return
            self._replace(replaced)
            if isinstance(bonjour, m.ServerBonjour):
                self._driver.post(self.name, ev.Linked(bonjour.server, bonjour.incarnation))
        self._read(link)

    def reach_lead(self, dialer: Dialer, address: m.Address) -> None:
        """Link this server to the one that runs the lead."""
        self._dialer = dialer
        link = dialer.dial(address, fx.LEAD)
        with patience(link):
            introduce(link, self._bonjour(link, 0))
        self.heed_lead(link)

    def _bonjour(self, link: Link, incarnation: int) -> m.ServerBonjour:
        return m.ServerBonjour(
            server=self._server,
            incarnation=incarnation,
            name=self.name,
            job=self._job.job,
            address=self.address,
            identity=self.address.identity,
            digests=offers(self._options.digest, link.kind),
        )

    def heed_lead(self, link: Link) -> None:
        """Do what the lead says over this link, which is agreed on."""
        self._peers.add(link)
        self._driver.post(self.name, ev.Linked(_LEADS, _FIRST))
        self._begin_reading(link)

    def _begin_reading(self, link: Link) -> None:
        if not self._read_by_poller(link):
            name = f"read-{link.peer}"
            threading.Thread(target=self._read, args=(link,), name=name, daemon=True).start()

    def _read_by_poller(self, link: Link) -> bool:
        if not isinstance(link, StreamLink) or self._needs_thread(link):
            return False
        try:
            for message, payload in link.take_buffered():
                self._take(link, message, payload, wait=False)
            self._driver.run()
        except _BAD_PEER as error:
            self._part(link, error)
        else:
            self._poller.add(link, lambda: self._ready(link))
        return True

    def _needs_thread(self, link: Link) -> bool:
        """Large tensors that travel as bytes are received and added on a thread per link; what is
        small, or a reference, is quicker under the poller."""
        large = self._holdings is not None and self._holdings.nbytes > _SMALL_NBYTES
        return large and not link.by_reference

    def _read(self, link: Link) -> None:
        """Read a link to its end: under the poller, or on this thread."""
        if self._read_by_poller(link):
            return
        torch.set_num_threads(1)
        try:
            while True:
                message, payload = link.receive()
                self._take(link, message, payload, wait=True)
                self._driver.run()
        except _BAD_PEER as error:
            self._part(link, error)

    def _poll(self) -> None:
        torch.set_num_threads(1)
        while not self._closing:
            self._poller.poll(1.0)
            self._driver.run()

    def _ready(self, link: StreamLink) -> None:
        if self._needs_thread(link):
            self._poller.remove(link)
            threading.Thread(
                target=self._read, args=(link,), name=f"read-{link.peer}", daemon=True
            ).start()
            return
        try:
            for message, payload in link.receive_ready():
                self._take(link, message, payload, wait=False)
        except _BAD_PEER as error:
            self._poller.remove(link)
            self._part(link, error)

    def _part(self, link: Link, error: Exception) -> None:
        """The link is over: tell the peer why if it was its fault, and the machines in any case."""
        if not isinstance(error, LinkEnded):
            link.send(m.Refusal(reason=f"{self.name}: {error}"))
        known = self._peers.remove(link)
        hang_up(link)
        if self._journal is not None and not self._closing:
            self._journal.note("link-closed", peer=link.peer, reason=str(error))
        if known and not self._closing:
            closed = ev.LinkClosed(link.peer, str(error), link.incarnation)
            if self._leads:
                self._driver.post(fx.LEAD, closed)
            self._driver.post(self.name, closed)

    def _replace(self, link: Link | None) -> None:
        """Its peer came back over another link: this one has ended without our noticing."""
        if link is not None:
            self._driver.post(self.name, ev.LinkClosed(link.peer, "it came back", link.incarnation))
            if isinstance(link, StreamLink):
                self._poller.remove(link)
            hang_up(link)

    # -- what comes in -------------------------------------------------------------------------

    def _take(self, link: Link, message: m.Message, payload: Payload | None, wait: bool) -> None:
        if isinstance(message, m.Refusal):
            raise LinkError(message.reason)
        if for_the_lead(link, message):
            if not self._leads:
                raise LinkError(f"{link.peer} spoke to the lead, which does not run here")
            self._driver.put(fx.LEAD, message)
        elif isinstance(message, m.Contribution):
            self._take_contribution(link, message, payload, wait)
        elif isinstance(message, m.Copy | m.State):
            self._take_copy(message, payload)
        elif isinstance(message, m.Seed):
            event = self._placed().seed(message, _payload(message, payload))
            if event is not None:
                self._driver.put(self.name, event)
        else:
            crashpoint.reach(self.name, "took", message)
            self._driver.put(self.name, message)

    def _placed(self) -> Holdings:
        if self._holdings is None:
            raise LinkError("slices came before this server was told to hold any")
        return self._holdings

    def _take_contribution(
        self, link: Link, message: m.Contribution, payload: Payload | None, wait: bool
    ) -> None:
        data = _payload(message, payload)
        if self._lanes is None or (wait and self._rounds):
            self._add(link, message, data)
        elif wait:  # its memory is the link's, and is read into again after this
            done = threading.Event()
            self._lanes.put(message.slice, (link, message, data, done))
            done.wait()
        else:
            self._lanes.put(message.slice, (link, message, data, None))

    def _add(self, link: Link, message: m.Contribution, data: memoryview) -> bool:
        """Whether there is something to tell the machine, which `run` does."""
        event = self._placed().add(message, data, verify=not link.by_reference)
        crashpoint.reach(self.name, "took", message)
        return event is not None

    def _take_copy(self, message: m.Copy | m.State, payload: Payload | None) -> None:
        """What a primary sends to its replicas, on the thread that reads its link: in order."""
        holdings = self._placed()
        data = None if payload is None else payload.view()
        if isinstance(message, m.Copy):
            holdings.copy(message, data)
        else:
            holdings.adopt(message, data)
        crashpoint.reach(self.name, "took", message)

    def _tell_server(self, server: int, message: m.Message, payload: Sequence[Sendable]) -> None:
        link = self._server_link(server)
        if link is not None:
            link.send(message, payload)
            crashpoint.reach(self.name, "sent", message)

    def _server_link(self, server: int) -> Link | None:
        """The lead's own server is reached over the lead's link."""
        link = self._peers.get(fx.server_name(server))
        return self._peers.get(fx.LEAD) if link is None and server == _LEADS else link

    def _add_gathered(self, items: list[_Slice]) -> None:
        for link, message, data, done in items:
            told = False
            if not self._rounds:
                self._pause(message.slices)
            try:
                told = self._add(link, message, data)
            except _BAD_PEER as error:
                link.send(m.Refusal(reason=f"{self.name}: {error}"))
                link.close()  # the thread that reads it notices, and parts with it
            if done is not None:
                done.set()
            if told:
                self._driver.run()

    # -- what machines want done ---------------------------------------------------------------

    def _perform(self, machine: str, effect: Effect) -> None:
        _EFFECTS[type(effect)](self, effect)

    def _send(self, effect: fx.Send) -> None:
        if effect.to == self.name or (effect.to == fx.LEAD and self._leads):
            self._driver.put(effect.to, effect.message)
            return
        server = fx.server_number(effect.to)
        link = self._peers.get(effect.to) if server is None else self._server_link(server)
        if link is not None:
            link.send(effect.message, flush=crashpoint.ON)
            self._peers.touch(link)
            crashpoint.reach(self.name, "sent", effect.message)

    def _bind(self, effect: fx.Bind) -> None:
        if effect.link != self.name:
            self._replace(self._peers.rename(effect.link, effect.peer, effect.incarnation))
            link = self._peers.get(effect.peer)
            if self._journal is not None and link is not None:
                self._journal.note("linked", peer=effect.peer, link=link.kind)
            server = fx.server_number(effect.peer)
            if server is not None:
                self._driver.put(self.name, ev.Linked(server, effect.incarnation))

    def _drop(self, effect: fx.Drop) -> None:
        link = self._peers.get(effect.peer)
        if link is not None:
            self._peers.remove(link)
            threading.Thread(target=link.close, name="close", daemon=True).start()

    def _note(self, effect: fx.Note) -> None:
        if self._journal is not None:
            self._journal.note(effect.what, **effect.fields)

    def _end(self, effect: fx.End) -> None:
        self.outcome = self.outcome or effect
        self.ended.set()

    def _build(self, effect: fx.Build) -> None:
        if self._holdings is not None:  # the seeder died; no version of these has been published
            self._holdings.close()
        self._holdings = Holdings(
            self._server,
            effect.spec,
            effect.routes,
            effect.routing,
            self._job,
            lambda nbytes: Segment(nbytes, shared=self._shared),
            tell=self._tell_server,
            put=lambda event: self._driver.put(self.name, event),
            fresh=effect.fresh,
        )
        self._make_lanes(self._holdings)

    def _make_lanes(self, holdings: Holdings) -> None:
        slow = holdings.nbytes > _SMALL_NBYTES or self._options.fold_pause_s > 0
        if slow and self._lanes is None:
            cores = os.cpu_count() or 1
            if self._rounds:
                self._lanes = Lanes(cores, lambda: torch.set_num_threads(1), self._add_gathered)
                self._fold_lane = Lanes(1, lambda: torch.set_num_threads(cores), self._fold_all)
            else:  # single slices are folded by one thread
                self._lanes = Lanes(1, lambda: torch.set_num_threads(cores), self._add_gathered)

    def _reach(self, effect: fx.Reach) -> None:
        for spec in effect.servers:
            if spec.server < self._server:
                name = f"dial-{fx.server_name(spec.server)}"
                args = (spec, effect.incarnation)
                threading.Thread(target=self._dial, args=args, name=name, daemon=True).start()

    def _dial(self, spec: m.ServerSpec, incarnation: int) -> None:
        """On a thread of its own: a server that was stopped does not answer for a while."""
        name = fx.server_name(spec.server)
        assert self._dialer is not None
        try:
            link = self._dialer.dial(spec.address, name)
            with patience(link):
                introduce(link, self._bonjour(link, incarnation))
        except (*_BAD_PEER, Refused) as error:
            self._driver.post(self.name, ev.LinkClosed(name, str(error), spec.incarnation))
            return
        link.incarnation = spec.incarnation
        replaced = self._peers.add(link)
        if replaced is link:
            hang_up(link)
            return
        self._replace(replaced)
        self._driver.post(self.name, ev.Linked(spec.server, spec.incarnation))
        self._begin_reading(link)

    def _reroute(self, effect: fx.Reroute) -> None:
        holdings = self._placed()
        _, old = holdings.reroute(effect.routes, effect.routing)
        self._withdraw(old)
        self._make_lanes(holdings)

    def _send_state(self, effect: fx.SendState) -> None:
        self._placed().send_state(effect.to, effect.held, effect.routing)

    def _fetch_state(self, effect: fx.FetchState) -> None:
        fetch = self._placed().fetch(effect.slices, effect.routing)
        self._tell_server(effect.primary, fetch, ())

    def _enlist(self, effect: fx.Enlist) -> None:
        if self._holdings is not None:
            self._holdings.enlist(effect.members)

    def _start_fold(self, effect: fx.StartFold) -> None:
        if self._fold_lane is None:
            self._fold(effect)
        else:
            self._fold_lane.put(0, effect)

    def _fold_all(self, effects: list[fx.StartFold]) -> None:
        for effect in effects:
            self._fold(effect)

    def _fold(self, effect: fx.StartFold) -> None:
        weight = self._placed().fold(effect.round, effect.slot, effect.fill)
        self._pause()
        self._folds += 1
        self._driver.post(self.name, ev.FoldDone(effect.round, weight))

    def _pause(self, parts: int = 1) -> None:
        """Staging: this server takes longer for a fold, or for each of its parts."""
        if self._options.fold_pause_s:
            time.sleep(self._options.fold_pause_s / max(1, parts))

    def _reader(self, effect: fx.Publish | fx.PublishLatest) -> Link | None:
        link = self._peers.get(fx.worker_name(effect.worker))
        return link if link is not None and link.incarnation == effect.incarnation else None

    def _publish(self, effect: fx.Publish) -> None:
        link = self._reader(effect)
        if link is None:  # nothing leaves, so nothing is read
            self._driver.put(self.name, ev.Sent(effect.worker, effect.round))
            return
        slots = [effect.slot] * len(self._placed().slices)
        self._send_slices(link, slots, effect.round, effect)

    def _publish_latest(self, effect: fx.PublishLatest) -> None:
        link = self._reader(effect)
        if link is not None:
            slots = self._placed().lease(effect.worker, effect.ticket)
            self._send_slices(link, slots, effect.ticket, effect)

    def _send_slices(
        self, link: Link, slots: list[int], round_: int, effect: fx.Publish | fx.PublishLatest
    ) -> None:
        """Every slice in its slot; in one piece where the link carries references to it."""
        holdings = self._placed()
        slices = list(holdings.ids)
        holds = holdings.ids if self._job.replicas else ()
        if link.by_reference and len(set(slots)) == 1:
            slices, slots, pieces = [m.EVERY_SLICE], slots[:1], [holdings.whole(slots[0])]
        else:
            pieces = [holdings.piece(index, slot) for index, slot in enumerate(slots)]
        for slice_, slot, piece in zip(slices, slots, pieces, strict=True):
            message = m.Parameters(
                view=effect.view,
                routing=effect.routing,
                worker=effect.worker,
                incarnation=effect.incarnation,
                sequence=effect.sequence,
                round=round_,
                slice=slice_,
                server=self._server,
                slot=slot,
                holds=holds,
            )
            last = slice_ == slices[-1] and not link.by_reference
            done = self._sent_event(effect.worker, round_) if last else None
            link.send(message, (piece,), flush=crashpoint.ON, done=done)
            crashpoint.reach(self.name, "sent", message)
        self._peers.touch(link)

    def _sent_event(self, worker: int, round_: int) -> Callable[[], None]:
        return lambda: self._driver.post(self.name, ev.Sent(worker, round_))

    def _unlease(self, effect: fx.Unlease) -> None:
        if self._holdings is not None:
            self._withdraw(self._holdings.unlease(effect.worker, effect.ticket))

    def _free_slots(self, effect: fx.FreeSlots) -> None:
        self._withdraw(self._placed().free(effect.slots))

    def _withdraw(self, segments: list[Segment]) -> None:
        for segment in segments:
            for link in self._peers.all():
                link.withdraw(segment.id)

    def _freeze(self, effect: fx.Freeze) -> None:
        self._placed().freeze()

    def _beat(self, effect: fx.Beat) -> None:
        waiting = self._lanes.waiting if self._lanes is not None else 0
        self._load += _DAMPING * (waiting - self._load)
        alive = msgspec.structs.replace(effect.message, load=self._load)
        self._send(fx.Send(fx.LEAD, alive))

    # -- the end -------------------------------------------------------------------------------

    @property
    def fault(self) -> str | None:
        """Why it cannot record what happens any more."""
        return None if self._trace is None else self._trace.fault

    def stop(self, reason: str) -> None:
        """Ask the lead to end the job, or end this server if the lead is elsewhere."""
        if self._leads:
            self._driver.post(fx.LEAD, ev.StopAsked(reason))
        else:
            self._driver.post(self.name, m.Stop(reason=reason))

    def close(self) -> None:
        self._closing = True
        self._door.close()
        self._driver.close()
        self._peers.close()
        self._poller.wake()
        self._poll_thread.join()
        self._peers.dispose()
        self._poller.close()
        for lanes in (self._lanes, self._fold_lane):
            if lanes is not None:
                lanes.close()
        if self._holdings is not None:
            self._holdings.close()
        if self._trace is not None:
            self._trace.close()


_EFFECTS: dict[type[Effect], Callable[[ServerNode, Any], None]] = {
    fx.Send: ServerNode._send,
    fx.Bind: ServerNode._bind,
    fx.Drop: ServerNode._drop,
    fx.Note: ServerNode._note,
    fx.End: ServerNode._end,
    fx.Build: ServerNode._build,
    fx.Enlist: ServerNode._enlist,
    fx.StartFold: ServerNode._start_fold,
    fx.Publish: ServerNode._publish,
    fx.PublishLatest: ServerNode._publish_latest,
    fx.Unlease: ServerNode._unlease,
    fx.FreeSlots: ServerNode._free_slots,
    fx.Freeze: ServerNode._freeze,
    fx.Beat: ServerNode._beat,
    fx.Reach: ServerNode._reach,
    fx.Reroute: ServerNode._reroute,
    fx.SendState: ServerNode._send_state,
    fx.FetchState: ServerNode._fetch_state,
}


def _payload(message: m.Message, payload: Payload | None) -> memoryview:
    if payload is None:
        raise FrameError(f"a {type(message).__name__} came without its slice")
    return payload.view()


def _trace(
    options: NodeOptions, name: str, machines: dict[str, Machine], job: m.JobSpec, server: int
) -> Trace | None:
    if options.trace_dir is None:
        return None
    origins = [
        Origin(machine, "lead" if machine == fx.LEAD else "server", server, machine, job)
        for machine in machines
    ]
    return Trace(options.trace_dir / f"{name}.trace", origins)

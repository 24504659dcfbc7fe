"""How a worker joins the job: it connects to the lead and to every server. After an eviction it
does so again."""

import os
import socket
import threading
from collections.abc import Callable

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.liveness import HeardThrottle
from polyrhythm.core.machine import Event
from polyrhythm.core.names import LEAD, server_name
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.errors import FrameError, LinkError, Refused
from polyrhythm.io.local import host_identity
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.wire import messages as m

_UNREACHABLE = (LinkError, FrameError, Refused)


class Joiner:
    def __init__(
        self,
        name: str,
        job: str,
        device: str,
        machine: WorkerMachine,
        links: WorkerLinks,
        heard_throttle: HeardThrottle,
        put: Callable[[Event], None],
        run: Callable[[], None],
    ) -> None:
        """`job`: the job's identifier, or empty if it is not known. `machine` knows this worker's
        number in the job. `put` queues an event for the machine, and `run` handles the queue."""
        self.servers: tuple[m.Address, ...] = ()
        """The servers that the job had when this worker joined."""
        self._name = name
        self._job = job
        self._device = device
        self._machine = machine
        self._links = links
        self._heard_throttle = heard_throttle
        self._put = put
        self._run = run
        self._addresses: dict[int, m.Address] = {}
        """The address of every server that this worker knows. The worker would need it if the
        lead's seat moved to that server."""

    def reach_lead(self, lead: m.Address) -> None:
        self._addresses[self._machine.seat.server] = lead
        self._reach_lead(lead, 0)

    def _reach_lead(self, lead: m.Address, before: int) -> None:
        reply = self._links.reach(lead, LEAD, self._hello(lead, before))
        self._heard_throttle.follow(reply.heartbeat_s, reply.lead_timeout_s)
        self._put(ev.LeadLinked(reply.heartbeat_s, reply.lead_timeout_s))

    def dial(self, effect: fx.Dial) -> None:
        """Connect to the servers. The server that runs the lead is reached over the lead's link. A
        new thread connects to the others, because a server may take long to answer, and the worker
        must send heartbeats meanwhile."""
        assert self._machine.job is not None
        self._job = self._machine.job.job
        self.servers = self.servers or tuple(spec.address for spec in effect.servers)
        lead = self._machine.seat.server
        for spec in effect.servers:
            if spec.server == lead:  # the link exists; it may have been opened to another address
                self._put(ev.Linked(spec.server, spec.incarnation))
            else:
                self._addresses[spec.server] = spec.address
        others = tuple(spec for spec in effect.servers if spec.server != lead)
        if others:
            args = (others, self._machine.incarnation)
            threading.Thread(target=self._dial, args=args, name="dial", daemon=True).start()

    def _dial(self, servers: tuple[m.ServerSpec, ...], incarnation: int) -> None:
        """Connect to servers, unless the worker has rejoined in the meantime."""

        def present() -> bool:
            return self._machine.incarnation == incarnation

        for spec in servers:
            name, hello = server_name(spec.server), self._hello(spec.address)
            if not present():
                return
            try:
                self._links.reach(spec.address, name, hello, spec.incarnation, wanted=present)
                event: Event = ev.Linked(spec.server, spec.incarnation)
            except _UNREACHABLE as error:
                event = ev.LinkClosed(name, str(error), spec.incarnation)
            if present():
                self._put(event)
                self._run()

    def rejoin(self, effect: fx.Rejoin) -> None:
        seat = self._machine.seat
        self._links.forget_all()
        try:
            self._reach_lead(self._addresses[seat.server], effect.incarnation)
        except _UNREACHABLE as error:
            self._put(ev.LinkClosed(seat.name, f"it could not join again: {error}"))

    def _hello(self, address: m.Address, before: int = 0) -> m.WorkerHello:
        """The hello of this worker. `before`: its last incarnation, if it joins again."""
        return m.WorkerHello(
            pid=os.getpid(),
            host=socket.gethostname(),
            device=self._device,
            worker=self._machine.worker,
            incarnation=self._machine.incarnation or before,
            name=self._name,
            job=self._job,
            identity=host_identity(),
        )

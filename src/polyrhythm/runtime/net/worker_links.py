"""A worker's links to the lead and to the servers.

The thread of the user's training loop reads the links while it waits. Only a link that a poller
cannot read (a memory link) has its own thread.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from polyrhythm.core import events as ev
from polyrhythm.core.liveness import link_timeout_s
from polyrhythm.core.machine import Event
from polyrhythm.core.names import LEAD
from polyrhythm.core.seat import Seat
from polyrhythm.core.values import plain
from polyrhythm.io.link import Link, Measure, Payload, PollableLink
from polyrhythm.io.poll import Poller
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.boundary import fault_of
from polyrhythm.runtime.net.dial import Dialer
from polyrhythm.runtime.net.handshake import introduce, offers, patience
from polyrhythm.runtime.net.peers import Peers, hang_up
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.tensors.threads import work_with
from polyrhythm.wire import messages as m
from polyrhythm.wire.frames import Land


class WorkerLinks:
    def __init__(
        self,
        dialer: Dialer,
        options: NodeOptions,
        driver: Driver,
        *,
        post: Callable[[Event], None],
        take: Callable[[Link, m.Message, Payload | None], None],
        place_of: Land,
        seat: Callable[[], Seat],
        measure: Measure = lambda *burst: None,
    ) -> None:
        """`post` gives the worker's machine an event. `take` is called with every message.
        `place_of` returns the memory into which a slice is received. `seat`: where the lead runs,
        as far as this worker knows. `measure`: see `Link.measure_with`."""
        self._dialer = dialer
        self._digest, self._secret = options.digest, options.secret
        self._take = take
        self._place_of = place_of
        self._driver = driver
        self._post = post
        self._seat = seat
        self._measure = measure
        self._peers = Peers()
        self._poller = Poller()
        self._reaching_ns = 0
        self._closing = False

    def to(self, peer: str) -> Link | None:
        """The link to this peer, which may be the lead."""
        return self._peers.get(self._seat().process_of(peer))

    def touch(self, link: Link) -> None:
        """Note that a message was queued on this link, so that `settle` sends it."""
        self._peers.touch(link)

    def settle(self) -> None:
        """Flush all links, and wake the user's thread to check its condition again."""
        self._peers.flush()
        self._poller.wake()

    def keep_alive(self, message: m.Alive) -> None:
        """Send a heartbeat over the links that need it."""
        self._peers.keep_alive(message, self._seat())

    def poll(self, timeout_s: float) -> None:
        self._poller.poll(timeout_s)

    def unread(self, peer: str) -> bool:
        """Whether bytes from `peer` wait unread, because the user's thread computes."""
        link = self.to(peer)
        pollable = None if link is None else link.pollable
        return pollable is not None and pollable.readable()

    def hung_up(self, peer: str) -> bool:
        """Whether `peer` has ended its link, and the user's thread has not noticed that yet."""
        link = self.to(peer)
        pollable = None if link is None else link.pollable
        return pollable is not None and pollable.hung_up()

    @property
    def idle_ns(self) -> int:
        """The total time spent on waiting for messages and on connecting."""
        return self._poller.idle_ns + self._reaching_ns

    # -- beginnings and ends -------------------------------------------------------------------

    def reach(
        self,
        address: m.Address,
        peer: str,
        hello: m.WorkerHello,
        incarnation: int = 0,
        wanted: Callable[[], bool] = lambda: True,
    ) -> m.HelloReply:
        """Connect to a peer, and begin to read the link. `incarnation`: the incarnation of the
        peer. `wanted`: whether the link is still needed when the peer has answered."""
        began_ns = time.monotonic_ns()
        link = self._dialer.dial(address, peer)
        digests = offers(self._digest, link.kind)
        with patience(link):
            hello = msgspec.structs.replace(hello, digests=digests)
            greeting = introduce(link, hello, self._secret, self._seat())
        self._reaching_ns += time.monotonic_ns() - began_ns
        if not wanted():
            hang_up(link)
            return greeting
        link.peer, link.incarnation = self._seat().process_of(peer), incarnation
        link.outlast(link_timeout_s(greeting.lead_timeout_s))
        link.land_with(self._place_of)
        link.measure_with(self._measure)
        unused = self._peers.add(link)
        if unused is not None:
            self._forget(unused)
        if unused is link:
            return greeting
        if (pollable := link.pollable) is not None:
            try:
                for message, payload in pollable.take_buffered():
                    self._take(link, message, payload)
            except Exception as error:
                self._peers.remove(link)
                self._forget(link)
                raise fault_of(peer, error) from None
            self._driver.run()
            self._poller.add(pollable, lambda: self._ready(pollable))
        else:
            threading.Thread(
                target=self._read, args=(link,), name=f"read-{peer}", daemon=True
            ).start()
        return greeting

    def _read(self, link: Link) -> None:
        work_with(1)
        while self._take_next(link):
            self._driver.run()

    def _take_next(self, link: Link) -> bool:
        """Receive and handle the next message. Returns False if the link has ended."""
        try:
            self._take(link, *link.receive())
        except Exception as error:
            self._end_link(link, fault_of(link.peer, error))
            return False
        return True

    def _ready(self, link: PollableLink) -> bool:
        try:
            # If this link waited for the rest of a payload, the other links would not be read, and
            # the network cards of their servers would be idle.
            alone = len(self._peers.all()) == 1
            for message, payload in link.receive_ready(finish=alone):
                self._take(link, message, payload)
        except Exception as error:
            fault = fault_of(link.peer, error)
            self._poller.remove(link)
            lead = self.to(LEAD)
            if lead is not None and lead is not link and lead.pollable is not None:
                # the lead may have sent a message that says why this link has ended
                self._ready(lead.pollable)
            # An earlier message may be the lead's order to rejoin over a new link. It must be
            # handled before the end of this link is reported, even if another thread handles it.
            self._driver.catch_up()
            self._end_link(link, fault)
            # the traceback of the error refers to this stack frame, and so keeps the link's memory
            del fault
        self._driver.run()
        return False

    def _end_link(self, link: Link, error: Exception) -> None:
        if not self._closing and self._peers.remove(link):
            self._post(ev.LinkClosed(link.peer, plain(str(error)), link.incarnation))
        link.close()

    def _forget(self, link: Link) -> None:
        if link.pollable is not None:
            self._poller.remove(link.pollable)
        hang_up(link)

    def forget_all(self) -> None:
        for link in self._peers.all():
            self._peers.remove(link)
            self._forget(link)

    def shut(self) -> None:
        """End all links, so that a thread that waits for a message of a silent peer returns."""
        self._closing = True
        for link in self._peers.all():
            threading.Thread(target=link.close, name="close", daemon=True).start()

    def stop_reporting(self) -> None:
        """From now on, do not report the end of a link: this worker itself is ending."""
        self._closing = True

    def close(self) -> None:
        self._peers.close()
        self._peers.dispose()
        self._poller.close()

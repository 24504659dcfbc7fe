"""A simulated server's links to everybody else: who is let in, whom it reaches, what is told at an end.

It is `runtime/net/server_links.py` again, over ways.
"""

from collections.abc import Callable

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.peers import SEAT
from polyrhythm.core.senders import called, hello_event
from polyrhythm.observe.journal import Journal
from polyrhythm.observe.reasons import in_words
from polyrhythm.sim.model.link import Channel
from polyrhythm.sim.process import Process
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import refused
from polyrhythm.wire.proof import Hello

_FIRST = 1
"""The incarnation of a server that was there from the beginning."""


class SimServerLinks:
    def __init__(
        self,
        process: Process,
        me: m.ServerHello,
        journal: Journal | None,
        dial: Callable[[m.ServerSpec], Channel | None],
    ) -> None:
        """`me`: how this server says hello. `journal`: only the server that runs the lead has one.
        `dial` gives the way to another server, if that is there."""
        self.peers: dict[str, Channel] = {}
        self._process = process
        self._me = me
        self._name = me.name
        self._journal = journal
        self._dial = dial
        self._strangers = 0

    def to(self, peer: str) -> Channel | None:
        """The lead's own server is reached over the lead's link."""
        return self.peers.get(peer) or self.peers.get(SEAT.link_to(peer))

    # -- beginnings ----------------------------------------------------------------------------

    def say_hello(self, lead: Channel | None) -> None:
        """Join the job: over a link to the lead, or at once if the lead runs here."""
        if lead is None:
            self._process.post(fx.LEAD, ev.ServerHelloReceived(self._name, self._me))
        else:
            self.peers[fx.LEAD] = lead
            lead.send(self._me)
            self._process.put(self._name, ev.Linked(SEAT.server, _FIRST))

    def hear_hello(self, way: Channel, hello: Hello) -> None:
        self._take_stranger(way)
        if self._journal is not None:
            self._process.put(fx.LEAD, hello_event(way.peer, hello))
        else:
            self._process.put(self._name, called(way.peer, hello))

    def _take_stranger(self, way: Channel) -> None:
        self._strangers += 1
        way.peer = f"link-{self._strangers}"
        self.peers[way.peer] = way.back

    def _greet(self, way: Channel, peer: str, incarnation: int) -> bool:
        """True if the peer has the link now, False if it is linked already."""
        way.peer, way.incarnation = peer, incarnation
        before = self.peers.get(peer)
        if before is not None and incarnation <= before.back.incarnation:
            self.end_link(way, f"{peer} is linked to {self._name} already")
            return False
        self._replace(before)
        self.peers[peer] = way.back
        me = self._me
        greeting = m.HelloReply(server=me.server, name=me.name, digest=0, address=me.address)
        way.back.send(greeting)
        return True

    def bind(self, effect: fx.Bind) -> None:
        way = self.peers.pop(effect.link, None)
        if way is not None and self._journal is None:
            server = fx.server_number(effect.peer)
            if self._greet(way.back, effect.peer, effect.incarnation) and server is not None:
                self._process.put(self._name, ev.Linked(server, effect.incarnation))
        elif way is not None and self._journal is not None:
            self._replace(self.peers.get(effect.peer))
            way.back.peer, way.back.incarnation = effect.peer, effect.incarnation
            self.peers[effect.peer] = way
            self._journal.note("linked", peer=effect.peer, link="simulated")
            server = fx.server_number(effect.peer)
            if server is not None:
                self._process.put(self._name, ev.Linked(server, effect.incarnation))

    def reach(self, effect: fx.Reach) -> None:
        for spec in effect.servers:
            if spec.server >= self._me.server:
                continue  # it will come
            way = self._dial(spec)
            if way is None:
                closed = ev.LinkClosed(fx.server_name(spec.server), "nobody answers")
                self._process.put(self._name, closed)
                continue
            way.back.incarnation = spec.incarnation
            self.peers[way.back.peer] = way
            way.send(msgspec.structs.replace(self._me, incarnation=effect.incarnation))

    # -- ends ----------------------------------------------------------------------------------

    def end_link(self, way: Channel, fault: str) -> None:
        """Refuse a peer that broke the protocol, tell it why and end the link."""
        way.back.send(m.Refusal(reason=refused(f"{self._name}: {fault}")))
        way.back.hang_up(fault)
        self.forget(way, fault)

    def forget(self, way: Channel, detail: str) -> None:
        if self._journal is not None:
            self._journal.note("link-closed", peer=way.peer, detail=detail)
        if self.peers.get(way.peer) is not way.back:
            return
        del self.peers[way.peer]
        for name in reversed(self._process.machines):  # the lead hears it first
            self._process.put(name, ev.LinkClosed(way.peer, detail, way.incarnation))

    def _replace(self, before: Channel | None) -> None:
        """Its peer came back over another link: this one has ended without our noticing."""
        if before is not None:
            way = before.back
            closed = ev.LinkClosed(way.peer, "it came back", way.incarnation)
            self._process.put(self._name, closed)
            before.hang_up("its peer came back")

    def drop(self, effect: fx.Drop) -> None:
        way = self.peers.pop(effect.peer, None)
        if way is not None:
            way.hang_up(in_words(effect.reason))

    def cut(self, peers: set[str]) -> None:
        """Break the links to these peers."""
        for name in peers & self.peers.keys():
            self.peers[name].cut("the link was cut")

    def break_off(self) -> None:
        for way in self.peers.values():
            way.break_off(f"the link to {self._name} broke")

    def hang_up(self, reason: str) -> None:
        for way in self.peers.values():
            way.hang_up(reason)

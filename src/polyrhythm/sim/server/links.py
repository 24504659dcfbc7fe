"""The links of a simulated server to workers and other servers: how they begin and how they end.

This file mirrors `runtime/net/server_links.py`, with channels in place of sockets.
"""

from collections.abc import Callable

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.links import LinkTable
from polyrhythm.core.names import LEAD, operator_name, server_name, server_number
from polyrhythm.core.seat import Seat
from polyrhythm.core.senders import called, hello_event
from polyrhythm.observe.journal import Journal
from polyrhythm.observe.reasons import in_words
from polyrhythm.sim.model.link import Channel
from polyrhythm.sim.process import Process
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import refused
from polyrhythm.wire.proof import Hello


class SimServerLinks:
    def __init__(
        self,
        process: Process,
        me: m.ServerHello,
        journal: Journal | None,
        dial: Callable[[m.ServerSpec], Channel | None],
        seat: Callable[[], Seat],
    ) -> None:
        """`me`: the hello of this server. `journal`: None unless the lead runs in this server.
        `dial` returns the channel to another server, or None if that server is not running. `seat`:
        where the lead runs, as far as this server knows."""
        self.table: LinkTable[Channel] = LinkTable()
        """The channels by which this server receives."""
        self._process = process
        self._me = me
        self._name = me.name
        self._journal = journal
        self._dial = dial
        self._seat = seat
        self._strangers = 0

    def to(self, peer: str) -> Channel | None:
        """The channel to a peer, which may be the lead."""
        channel = self.table.links.get(self._seat().name if peer == LEAD else peer)
        return None if channel is None else channel.back

    # -- beginnings ----------------------------------------------------------------------------

    def say_hello(self, lead: Channel | None) -> None:
        """Join the job: over a link to the lead, or directly if the lead runs in this process."""
        if lead is None:
            self._process.post(LEAD, ev.ServerHelloReceived(self._name, self._me))
        else:
            self.table.add(lead.back)
            lead.send(self._me)

    def hear_hello(self, channel: Channel, hello: Hello) -> None:
        self._strangers += 1
        operator = isinstance(hello, m.OperatorHello)
        channel.peer = (operator_name if operator else "link-{}".format)(self._strangers)
        if self._journal is not None:
            self.table.add(channel)
            self._process.put(LEAD, hello_event(channel.peer, hello))
        else:
            self.table.add_unnamed(channel)
            self._process.put(self._name, called(channel.peer, hello))

    def bind(self, effect: fx.Bind) -> None:
        """Give the channel the name of its peer, as a machine has decided."""
        if effect.link not in self.table.links:
            return
        if self._journal is not None:
            self._replace(self.table.rename(effect.link, effect.peer, effect.incarnation))
            self._journal.note("linked", peer=effect.peer, link="simulated")
        elif not self._bind_caller(effect):
            return
        server = server_number(effect.peer)
        if server is not None:
            self._process.put(self._name, ev.Linked(server, effect.incarnation))

    def _bind_caller(self, effect: fx.Bind) -> bool:
        """Name the peer of this channel, as the lead has announced, and answer its hello. Returns
        False if the channel is not used, because the peer has a link already."""
        channel, unused = self.table.name(effect.link, effect.peer, effect.incarnation)
        if channel is None:
            return False
        if unused is channel:
            self.end_link(channel, f"{effect.peer} is linked to {self._name} already")
            return False
        self._replace(unused)
        me = self._me
        channel.back.send(
            m.HelloReply(server=me.server, name=me.name, digest=0, address=me.address)
        )
        return True

    def reach(self, effect: fx.Reach) -> None:
        for spec in effect.servers:
            if spec.server >= self._me.server:
                continue  # servers with a higher number dial this one
            channel = self._dial(spec)
            if channel is None:
                closed = ev.LinkClosed(server_name(spec.server), "no process answers")
                self._process.put(self._name, closed)
                continue
            channel.back.incarnation = spec.incarnation
            replaced = self.table.add(channel.back)
            if replaced is channel.back:
                channel.hang_up("the server is linked already")
                continue
            self._replace(replaced)
            channel.send(msgspec.structs.replace(self._me, incarnation=effect.incarnation))

    # -- ends ----------------------------------------------------------------------------------

    def end_link(self, channel: Channel, fault: str) -> None:
        """Refuse a peer that broke the protocol: tell it why and end the link."""
        channel.back.send(m.Refusal(reason=refused(f"{self._name}: {fault}")))
        channel.back.hang_up(fault)
        self.forget(channel, fault)

    def forget(self, channel: Channel, detail: str) -> None:
        if self._journal is not None:
            self._journal.note("link-closed", peer=channel.peer, detail=detail)
        if not self.table.remove(channel):
            return
        # the lead's machine, which was added last, gets the event first
        for name in reversed(self._process.machines):
            self._process.put(name, ev.LinkClosed(channel.peer, detail, channel.incarnation))

    def _replace(self, channel: Channel | None) -> None:
        """Close the old link of a peer that has opened a new one: this server did not notice that
        the old link broke."""
        if channel is not None:
            closed = ev.LinkClosed(channel.peer, "it came back", channel.incarnation)
            self._process.put(self._name, closed)
            channel.back.hang_up("its peer came back")

    def drop(self, effect: fx.Drop) -> None:
        channel = self.table.links.get(effect.peer)
        if channel is not None:
            self.table.remove(channel)
            channel.back.hang_up(in_words(effect.reason))

    def silent(self) -> tuple[tuple[str, int], ...]:
        """The peers with silent links."""
        peers = self.table.links.items()
        lead = self._seat().name  # the lead's heartbeats are watched
        return tuple(
            (name, each.incarnation) for name, each in peers if each.back.silent and name != lead
        )

    def cut(self, peers: set[str]) -> None:
        """Break the links to these peers."""
        for name in peers & self.table.links.keys():
            self.table.links[name].back.cut("the link was cut")

    def break_off(self) -> None:
        for channel in self.table.links.values():
            channel.back.break_off(f"the link to {self._name} broke")

    def hang_up(self, reason: str) -> None:
        for channel in self.table.links.values():
            channel.back.hang_up(reason)

"""What the lead says to members, servers, strangers and the journal.

*Every word carries the term and the epochs of view and routing in which it is given.* It is gathered
per event, in order.
"""

from collections.abc import Iterable
from typing import Any

from polyrhythm.core.effects import Drop, Note, Send, server_name, worker_name
from polyrhythm.core.lead.members import Member, View
from polyrhythm.core.lead.routing import Routing
from polyrhythm.core.machine import Effect
from polyrhythm.core.text import plain
from polyrhythm.wire import messages as m

TERM = 1


class LeadOutbox:
    def __init__(self, view: View, placing: Routing) -> None:
        self._view = view
        self._placing = placing
        self._out: list[Effect] = []

    def begin(self) -> list[Effect]:
        """An event has come: where its effects are gathered."""
        self._out = []
        return self._out

    def do(self, effect: Effect) -> None:
        self._out.append(effect)

    def identity(self, member: Member) -> dict[str, Any]:
        return {
            "term": TERM,
            "view": self._view.epoch,
            "routing": self._placing.epoch,
            "worker": member.worker,
            "incarnation": member.incarnation,
        }

    def tell(self, member: Member, message: m.Message) -> None:
        self._out.append(Send(worker_name(member.worker), message))

    def tell_servers(self, message: m.Message, servers: Iterable[int] | None = None) -> None:
        """These, or all."""
        for server in self._placing.servers if servers is None else sorted(servers):
            self._out.append(Send(server_name(server), message))

    def refuse(self, link: str, reason: str, *, ending: bool = False) -> None:
        reason = plain(reason)
        self._out.append(Send(link, m.Refusal(term=TERM, reason=reason, ending=ending)))
        self._out.append(Drop(link, reason))
        self.note("refused", reason=reason)

    def note(self, what: str, **fields: Any) -> None:
        self._out.append(Note(what, fields))

    def place(self, members: tuple[m.MemberSpec, ...]) -> None:
        """All servers hold what the routes say; `members` as they know them."""
        placing = self._placing
        assert placing.spec is not None
        place = m.Place(
            term=TERM,
            view=self._view.epoch,
            routing=placing.epoch,
            spec=placing.spec,
            routes=placing.routes,
            servers=placing.specs,
            members=members,
            fresh=not placing.all_seeded,
        )
        self.tell_servers(place)

    def introduce(self, member: Member, servers: Iterable[int] | None = None) -> None:
        """Name an admitted worker to these servers, or to all: they take no other worker's link."""
        introduced = m.Introduced(**self.identity(member))
        self.tell_servers(introduced, servers)

    def introduce_all(self, server: int) -> None:
        """A server has come: name every member to it."""
        for member in self._view.members():
            self.introduce(member, (server,))

    def dismissed(self, worker: int, incarnation: int) -> m.Dismissed:
        view, routing = self._view.epoch, self._placing.epoch
        return m.Dismissed(
            term=TERM, view=view, routing=routing, worker=worker, incarnation=incarnation
        )

    def route(self, member: Member) -> None:
        """Where slices live, and whether this member seeds them."""
        member.routed = True
        seed = self._placing.seeds(member.worker)
        routing = m.Routing(
            **self.identity(member),
            routes=self._placing.routes,
            seed=seed,
            servers=self._placing.specs,
        )
        self.tell(member, routing)

    def stop(self, reason: str, *, failed: bool) -> None:
        """The job is over, for everybody."""
        stop = m.Stop(term=TERM, view=self._view.epoch, reason=reason, failed=failed)
        for member in self._view.members():
            self.tell(member, stop)
        self.tell_servers(stop)

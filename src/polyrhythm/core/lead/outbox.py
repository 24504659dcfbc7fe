"""Collects the effects of one event, in the order in which they are performed: messages of the lead
to members, servers and processes without admission, and entries of the journal.

*Every message contains the term, and the view epoch and routing epoch in which it was sent.*
"""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from polyrhythm.core.effects import Drop, Note, Send
from polyrhythm.core.lead.members.view import Member, View
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.machine import Effect, Reason
from polyrhythm.core.names import server_name, worker_name
from polyrhythm.core.seat import FIRST_SEAT, Seat
from polyrhythm.core.values import plain_reason
from polyrhythm.wire import messages as m


class LeadOutbox:
    def __init__(self, view: View, routing: RoutingTable, seat: Seat = FIRST_SEAT) -> None:
        self.seat = seat
        """Where this lead runs."""
        self._view = view
        self._routing = routing
        self.out: list[Effect] = []
        """The effects of the event that is being handled."""

    def do(self, effect: Effect) -> None:
        self.out.append(effect)

    def identity(self, member: Member) -> dict[str, Any]:
        return {
            "term": self.seat.term,
            "view": self._view.epoch,
            "routing": self._routing.epoch,
            "worker": member.worker,
            "incarnation": member.incarnation,
        }

    def tell(self, member: Member, message: m.Message) -> None:
        self.out.append(Send(worker_name(member.worker), message))

    def tell_servers(self, message: m.Message, servers: Iterable[int] | None = None) -> None:
        """Send a message to these servers, or to all."""
        for server in self._routing.roster.servers if servers is None else sorted(servers):
            self.out.append(Send(server_name(server), message))

    def refuse(self, link: str, reason: Reason, *, ending: bool = False) -> None:
        reason = plain_reason(reason)
        self.send_away(link, reason, ending=ending)
        self.note("refused", **reason.noted())

    def send_away(self, link: str, reason: Reason, *, ending: bool) -> None:
        """Tell a process why it is not part of the job, and end its link. `ending`: the reason is
        the end of the job instead of a fault of the process."""
        self.out.append(Send(link, m.Refusal(term=self.seat.term, reason=reason, ending=ending)))
        self.out.append(Drop(link, reason))

    def note(self, what: str, **fields: Any) -> None:
        self.out.append(Note(what, fields))

    def place(self, members: tuple[m.MemberSpec, ...]) -> None:
        """Send the routes, and the members that take part, to all servers."""
        routing = self._routing
        assert routing.spec is not None
        place = m.Place(
            term=self.seat.term,
            view=self._view.epoch,
            routing=routing.epoch,
            spec=routing.spec,
            routes=routing.routes,
            servers=routing.roster.specs,
            members=members,
            fresh=not routing.all_seeded,
            seat=self.seat.server,
        )
        self.tell_servers(place)

    def introduce(self, member: Member, servers: Iterable[int] | None = None) -> None:
        """Announce an admitted worker to these servers, or to all. Servers accept links only from
        workers that were announced."""
        introduced = m.Introduced(**self.identity(member))
        self.tell_servers(introduced, servers)

    def introduce_all(self, server: int) -> None:
        """Announce every member to a server that has joined."""
        for member in self._view.members():
            self.introduce(member, (server,))

    def dismiss(self, worker: int, incarnation: int) -> None:
        """Tell all servers to close their links to a worker that is no longer a member."""
        view, routing = self._view.epoch, self._routing.epoch
        self.tell_servers(
            m.Dismissed(
                term=self.seat.term,
                view=view,
                routing=routing,
                worker=worker,
                incarnation=incarnation,
            )
        )

    def route(self, member: Member, secured: int = 0) -> None:
        """Send the routes to a member, and tell it whether it must seed the slices. `secured`: the
        last contribution that it need not send again."""
        member.routed = True
        seed = self._routing.seeding.seeds(member.worker)
        message = m.Routing(
            **self.identity(member),
            routes=self._routing.routes,
            seed=seed,
            servers=self._routing.roster.specs,
            seat=self.seat.server,
            secured=secured,
        )
        self.tell(member, message)

    def lease(self, member: Member, lease: m.Leased) -> None:
        """Send a member its lease, with the term and the epochs, which the data plan does not
        know."""
        self.tell(member, replace(lease, **self.identity(member)))

    def stop_members(self, reason: Reason, *, failed: bool) -> None:
        """Tell every member that the job is over."""
        stop = m.Stop(term=self.seat.term, view=self._view.epoch, reason=reason, failed=failed)
        for member in self._view.members():
            self.tell(member, stop)

    def stop_server(self, server: int, reason: Reason) -> None:
        """Tell one server that the job goes on without it."""
        stop = m.Stop(term=self.seat.term, view=self._view.epoch, reason=reason)
        self.out.append(Send(server_name(server), stop))

    def stop_servers(self, reason: Reason, *, failed: bool) -> None:
        """Tell every server that the job is over."""
        stop = m.Stop(term=self.seat.term, view=self._view.epoch, reason=reason, failed=failed)
        self.tell_servers(stop)

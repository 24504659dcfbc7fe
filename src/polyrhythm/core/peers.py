"""Which server the lead runs in, and how peers reach the lead and that server.

The lead's machine and the machine of one server share a process and its links: a peer that is
linked to the lead sends messages for that server over the same link. All other modules ask this one in
which server the lead runs. If the lead could move, only this module would change.
"""

from dataclasses import dataclass

from polyrhythm.core.names import LEAD, server_name, server_number


@dataclass(frozen=True, slots=True)
class LeadSeat:
    """The server in whose process the lead runs."""

    server: int
    name: str

    @classmethod
    def at(cls, server: int) -> "LeadSeat":
        return cls(server, server_name(server))

    def link_to(self, peer: str) -> str:
        """The name of the link over which `peer` is reached. The server in the lead's process has
        no link of its own: it is reached over the link to the lead."""
        return LEAD if peer == self.name else peer

    def server_at(self, link: str) -> int | None:
        """The server at the other end of a link with this name; None if no server is there."""
        return self.server if link == LEAD else server_number(link)

    def may_send_over(self, link: str, sender: str) -> bool:
        """Whether `sender` may send messages over a link with this name."""
        return link in (sender, self.link_to(sender))


SEAT = LeadSeat.at(0)
"""The lead runs in the first server, for as long as the job runs."""

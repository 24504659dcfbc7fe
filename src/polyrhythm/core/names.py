"""The names of peers: s0, s1, ... (servers), w0, w1, ... (workers), operator-1, ... (links of
operators), and `lead` (the process of the lead). A machine addresses a message with such a name.

Which server the lead runs in, and how peers reach the lead and that server.

The lead's machine and the machine of one server share a process and its links: a peer that is
linked to the lead sends messages for that server over the same link. All other modules ask this one in
which server the lead runs. If the lead could move, only this module would change.

What an address says about the processes that can reach it.
"""

from dataclasses import dataclass
from functools import cache

LEAD = "lead"
_OPERATOR = "operator-"


@cache
def server_name(server: int) -> str:
    return f"s{server}"


@cache
def worker_name(worker: int) -> str:
    return f"w{worker}"


@cache
def worker_number(peer: str) -> int | None:
    """The number of the worker with this name; None if it is not a worker's name."""
    return int(peer[1:]) if peer.startswith("w") and peer[1:].isdigit() else None


@cache
def server_number(peer: str) -> int | None:
    """The number of the server with this name; None if it is not a server's name."""
    return int(peer[1:]) if peer.startswith("s") and peer[1:].isdigit() else None


@cache
def own_number(name: str) -> int | None:
    """The number in a name that a worker keeps when it is started again: `worker-3` (started by the
    job) or `rank-3` (started by torchrun, Slurm or another launcher). None: the name has none."""
    prefix, _, number = name.rpartition("-")
    known = prefix in ("worker", "rank") and number.isascii() and number.isdigit()
    return int(number) if known and len(number) < 10 else None


def operator_name(number: int) -> str:
    return f"{_OPERATOR}{number}"


def is_operator(peer: str) -> bool:
    """Whether this is the name of an operator's link. A link gets such a name only after its peer
    has sent an operator's hello and was authorised."""
    return peer.startswith(_OPERATOR)


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


def is_loopback(host: str) -> bool:
    """Whether this address reaches only this machine itself."""
    return host in ("localhost", "::1") or host.startswith("127.")

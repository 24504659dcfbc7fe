"""The lead's seat: the server in whose process the lead runs, and the term in which it runs there.

*A process learns the seat from messages of the lead, and ignores messages of a lower term. It sends
every message for the lead to the process that has the seat.* The lead's machine and the machine of
that server share a process and its links: the link to that process carries the messages of both.

The seat does not move yet: the lead runs in the first server for as long as the job runs.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from polyrhythm.core.names import LEAD, server_name
from polyrhythm.wire.messages import Admitted, Place, Routing

Seating: TypeAlias = Admitted | Place | Routing
"""A message that names the server of the lead that sends it."""


@dataclass(frozen=True, slots=True)
class Seat:
    server: int
    term: int

    @property
    def name(self) -> str:
        """The name of the process that has the seat."""
        return server_name(self.server)

    def process_of(self, name: str) -> str:
        """The name of the process in which this machine runs. Only the lead's name differs from the
        name of its process."""
        return server_name(self.server) if name == LEAD else name

    def after(self, message: Seating) -> "Seat":
        """The seat after a message of the lead."""
        if message.term == self.term and message.seat == self.server:
            return self
        return Seat(message.seat, message.term) if message.term >= self.term else self

    def outranks(self, message: Any) -> bool:
        """Whether this message is an order of an earlier lead, which must not be followed any more."""
        return bool(message.term < self.term)


FIRST_SEAT = Seat(0, 1)
"""Where the lead runs when a job begins."""
UNKNOWN_SEAT = Seat(FIRST_SEAT.server, 0)
"""What a process knows before the lead has told it a term: the lead may be in the first server."""

"""The lead's seat: the server in whose process the lead runs, and the term, a number that grows
with each change of the seat.

*A process learns the seat from messages of the lead, and ignores messages of a lower term. It sends
every message for the lead to the process that has the seat.* The lead and the server in that
process share its links, so one link carries the messages of both.

At present the seat does not move: the lead runs in the first server for as long as the job runs.
"""

from typing import Any, TypeAlias

import msgspec

from polyrhythm.core.names import LEAD, server_name
from polyrhythm.wire.messages import Admitted, Place, Routing

Seating: TypeAlias = Admitted | Place | Routing
"""A message of a lead. It names the server in which this lead runs."""


class Seat(msgspec.Struct, frozen=True):
    server: int
    term: int

    @property
    def name(self) -> str:
        """The name of the process that has the seat."""
        return server_name(self.server)

    def process_of(self, name: str) -> str:
        """The name of the process in which this machine runs. It differs from the machine's name
        only for the lead."""
        return server_name(self.server) if name == LEAD else name

    def after(self, message: Seating) -> "Seat":
        """The seat that follows from a message of the lead."""
        if message.term == self.term and message.seat == self.server:
            return self
        return Seat(message.seat, message.term) if message.term >= self.term else self

    def outranks(self, message: Any) -> bool:
        """Whether this message comes from a lead with a lower term, so that its order must not be
        followed."""
        return bool(message.term < self.term)


FIRST_SEAT = Seat(0, 1)
"""Where the lead runs when a job begins."""
UNKNOWN_SEAT = Seat(FIRST_SEAT.server, 0)
"""The seat until the lead has told this process a term: the lead may be in the first server."""

"""The routing epoch of a server, and the epoch that it changes to.

*A change has three steps: the lead sends the server new routes; the server adds and removes slices as
these routes demand; the server reports that it follows the new routes. If further routes come before the
second step is complete, an epoch is skipped. Other servers may have applied the skipped epoch, and may
have sent fetches and confirmations in it.*
"""

from polyrhythm.core.events import Rerouted
from polyrhythm.wire.messages import MemberSpec, Place


class RoutingEpoch:
    def __init__(self) -> None:
        self.routing = 0
        """The epoch that this server has reported to the lead, so that other processes can rely on
        it."""
        self.held = 0
        """The epoch whose routes the slices follow."""
        self.since = 0
        """The epoch in which this server's set of primary slices last changed."""
        self.place: Place | None = None
        """The routes of the epoch that the server changes to; None if it is not changing."""
        self.rerouted: Rerouted | None = None
        """The event that says what the slices contain; None until the server has the slices that the
        routes of `place` demand."""
        self.introduced: tuple[MemberSpec, ...] | None = None
        """The members that came with the routes; None if a fold has named members since."""
        self._overtaken: list[Place] = []
        """The routes of skipped epochs: newer routes came before the server had the slices that these
        routes demand."""

    @property
    def changing(self) -> bool:
        """Whether the server does not have the slices yet that the newest routes demand."""
        return self.place is not None and self.rerouted is None

    def set_out(self, place: Place) -> None:
        if self.place is not None and self.rerouted is None:
            self._overtaken.append(self.place)
        self.place, self.rerouted = place, None
        self.introduced = place.members

    def begin(self, routing: int) -> None:
        """The slices of the first routes are allocated, and have no parameters yet."""
        self._overtaken.clear()
        self.rerouted = Rerouted(routing, 0, ())
        self.held = self.since = routing

    def hold(self, event: Rerouted) -> list[Place] | None:
        """The server has the slices that the routes of an epoch demand. Returns the routes of the
        skipped epochs and of this epoch; None if newer routes have come meanwhile."""
        place = self.place
        if place is None or event.routing != place.routing:
            return None
        self.rerouted, self.held = event, event.routing
        overtaken, self._overtaken = self._overtaken, []
        return [*overtaken, place]

    def arrive(self) -> None:
        """This server has reported the new epoch, so other processes can rely on it."""
        assert self.place is not None
        self.routing = self.place.routing
        self.place = None

"""The routing epoch of a server, and the epoch that it changes to.

*A change has three steps: the lead tells the server the new routes; the slices become as the routes
say; the server reports that other processes can rely on it. Further routes may come before the last
step, so that an epoch is skipped. Other servers may have applied the skipped epoch, and may have
sent fetches and confirmations in it.*
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
        """The event that says what the slices contain, once they are as the routes of `place`
        say."""
        self.introduced: tuple[MemberSpec, ...] | None = None
        """The members that came with the routes; None if a fold has named members since."""
        self._overtaken: list[Place] = []
        """Epochs that were replaced by the next one before the slices followed them."""

    @property
    def changing(self) -> bool:
        """Whether the slices are not yet as the newest routes say."""
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
        """The slices are as the routes of that epoch say. Returns the routes of the skipped epochs
        and of this one; None if this epoch was replaced meanwhile."""
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

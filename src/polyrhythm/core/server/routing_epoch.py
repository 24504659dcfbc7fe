"""The routing epoch of a server, and the one that it changes to.

*The server is told of an epoch, then its slices are what the routes say, then other processes can rely
on it. The next epoch may come before that. Other servers may have been in the epoch that was overtaken,
and may have sent fetches and confirmations in it.*
"""

from polyrhythm.core.events import Rerouted
from polyrhythm.wire.messages import MemberSpec, Place


class RoutingEpoch:
    def __init__(self) -> None:
        self.routing = 0
        """The epoch that other processes can rely on."""
        self.held = 0
        """The epoch that the slices are in."""
        self.since = 0
        """The epoch in which its set of primaries last changed."""
        self.place: Place | None = None
        """The epoch that the server changes to."""
        self.rerouted: Rerouted | None = None
        """What is in the slices, once they are what the routes of `place` say."""
        self.introduced: tuple[MemberSpec, ...] | None = None
        """The members that came with the routes, unless a fold has named others since."""
        self._overtaken: list[Place] = []
        """Epochs that were followed by the next before this server was in them."""

    @property
    def changing(self) -> bool:
        """The slices are not yet what the routes say."""
        return self.place is not None and self.rerouted is None

    def set_out(self, place: Place) -> None:
        if self.place is not None and self.rerouted is None:
            self._overtaken.append(self.place)
        self.place, self.rerouted = place, None
        self.introduced = place.members

    def begin(self, routing: int) -> None:
        """The slices are built, and empty."""
        self._overtaken.clear()
        self.rerouted = Rerouted(routing, 0, ())
        self.held = self.since = routing

    def hold(self, event: Rerouted) -> list[Place] | None:
        """The slices are what the routes of that epoch say. Returns the epochs that were overtaken, and
        this one; None if it was overtaken itself."""
        place = self.place
        if place is None or event.routing != place.routing:
            return None
        self.rerouted, self.held = event, event.routing
        overtaken, self._overtaken = self._overtaken, []
        return [*overtaken, place]

    def arrive(self) -> None:
        """Other processes can rely on the epoch."""
        assert self.place is not None
        self.routing = self.place.routing
        self.place = None

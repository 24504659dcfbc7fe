"""Which routing epoch a server is in, and which it is on its way to.

*It is told of an epoch, then its slices are what the routes say, then others can rely on that. An
epoch may be followed by the next before that: others may have been in it, and have asked and said
something there.*
"""

from polyrhythm.core.events import Rerouted
from polyrhythm.wire.messages import MemberSpec, Place


class RoutingEpoch:
    def __init__(self) -> None:
        self.routing = 0
        """The epoch that others can rely on."""
        self.held = 0
        """The epoch that the slices are in."""
        self.since = 0
        """The epoch since when it is the primary of what it is the primary of."""
        self.place: Place | None = None
        """Where it is on its way to."""
        self.rerouted: Rerouted | None = None
        """What the slices have in them, once they are what that epoch's routes say."""
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
        """The slices are new, and empty."""
        self._overtaken.clear()
        self.rerouted = Rerouted(routing, 0, ())
        self.held = self.since = routing

    def hold(self, event: Rerouted) -> list[Place] | None:
        """The slices are what the routes of that epoch say: the epochs that were overtaken on the
        way, and this one; None: it was overtaken itself."""
        place = self.place
        if place is None or event.routing != place.routing:
            return None
        self.rerouted, self.held = event, event.routing
        overtaken, self._overtaken = self._overtaken, []
        return [*overtaken, place]

    def arrive(self) -> None:
        """Others can rely on it."""
        assert self.place is not None
        self.routing = self.place.routing
        self.place = None

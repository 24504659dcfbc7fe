"""Which slices a server copies from which primary, and which of them it has asked for.

*A copy belongs to the primary that it was fetched from. If the primary changes, the copy is dropped and
fetched again if the new routes want it.*
"""

from polyrhythm.core.effects import FetchState
from polyrhythm.core.events import StateAdopted
from polyrhythm.wire.messages import Place


class ReplicaFetch:
    def __init__(self, server: int) -> None:
        self._server = server
        self._copies: dict[int, int] = {}
        """Per slice that is copied here, the primary that it was fetched from."""
        self._fetching: dict[int, tuple[int, frozenset[int]]] = {}
        """Per primary, the routing epoch in which it was asked last, and for what."""

    def begin(self, place: Place) -> None:
        """The slices are built. If they are fresh, all holders are seeded and nothing is fetched."""
        self._copies = {}
        if place.fresh:
            for slice_, route in enumerate(place.routes):
                if self._server in route.holders and self._server != route.primary:
                    self._copies[slice_] = route.primary

    def follow(self, place: Place) -> None:
        """Drop copies whose primary has changed; they are asked for again."""
        wanted = self._wanted(place)
        self._copies = {s: of for s, of in self._copies.items() if s in wanted.get(of, ())}
        self._fetching = {
            of: (routing, asked & wanted[of])
            for of, (routing, asked) in self._fetching.items()
            if of in wanted
        }

    def fetch(self, place: Place) -> list[FetchState]:
        """Ask every primary for the slices that are to be copied here and are not here yet."""
        asks = []
        for primary, slices in self._wanted(place).items():
            new = any(slice_ not in self._copies for slice_ in slices)
            if new and not slices <= self._fetching.get(primary, (0, frozenset()))[1]:
                self._fetching[primary] = (place.routing, frozenset(slices))
                asks.append(FetchState(primary, tuple(sorted(slices)), place.routing))
        return asks

    def adopted(self, event: StateAdopted) -> bool:
        """The slices that were fetched are here; False if more was asked for since then."""
        asked, slices = self._fetching.get(event.primary, (0, frozenset[int]()))
        if asked != event.routing:
            return False
        del self._fetching[event.primary]
        self._copies.update(dict.fromkeys(slices, event.primary))
        return True

    def _wanted(self, place: Place) -> dict[int, set[int]]:
        """Per primary, the slices that are to be copied from it here."""
        wanted: dict[int, set[int]] = {}
        for slice_, route in enumerate(place.routes):
            if self._server in (*route.replicas, *route.learners):
                wanted.setdefault(route.primary, set()).add(slice_)
        return wanted

"""What a server copies from others: which slices it holds of whom, and which it has asked for.

*A copy is of the primary that it was fetched from. If that changes it is dropped, and fetched anew
where it is wanted.*
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
        """The slices are new. If they are fresh everybody is seeded alike, and nothing is fetched."""
        self._copies = {}
        if place.fresh:
            for slice_, route in enumerate(place.routes):
                if self._server in route.holders and self._server != route.primary:
                    self._copies[slice_] = route.primary

    def follow(self, place: Place) -> None:
        """What is not to be copied from whom it was is dropped: if that changes again, it is asked
        for anew."""
        wanted = self._wanted(place)
        self._copies = {s: of for s, of in self._copies.items() if s in wanted.get(of, ())}
        self._fetching = {
            of: (routing, asked & wanted[of])
            for of, (routing, asked) in self._fetching.items()
            if of in wanted
        }

    def fetch(self, place: Place) -> list[FetchState]:
        """Ask every primary whose slices are to be copied here and are not."""
        asks = []
        for primary, slices in self._wanted(place).items():
            new = any(slice_ not in self._copies for slice_ in slices)
            if new and not slices <= self._fetching.get(primary, (0, frozenset()))[1]:
                self._fetching[primary] = (place.routing, frozenset(slices))
                asks.append(FetchState(primary, tuple(sorted(slices)), place.routing))
        return asks

    def adopted(self, event: StateAdopted) -> bool:
        """What was fetched is here; False if more was asked for since, and will come."""
        asked, slices = self._fetching.get(event.primary, (0, frozenset[int]()))
        if asked != event.routing:
            return False
        del self._fetching[event.primary]
        self._copies.update(dict.fromkeys(slices, event.primary))
        return True

    def _wanted(self, place: Place) -> dict[int, set[int]]:
        """Per primary, what is to be copied from it here."""
        wanted: dict[int, set[int]] = {}
        for slice_, route in enumerate(place.routes):
            if self._server in (*route.replicas, *route.learners):
                wanted.setdefault(route.primary, set()).add(slice_)
        return wanted

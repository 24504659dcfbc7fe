"""Which slices a server copies from which primary, and which of them it has requested.

*A copy belongs to the primary that it was fetched from. If the slice gets another primary, the copy
is dropped, and fetched again if the new routes name this server as a holder.*
"""

from polyrhythm.core.effects import FetchState
from polyrhythm.core.events import StateAdopted
from polyrhythm.wire.messages import Place


class ReplicaFetch:
    def __init__(self, server: int) -> None:
        self._server = server
        self._copies: dict[int, int] = {}
        """Per slice that this server copies, the primary that it was fetched from."""
        self._fetching: dict[int, tuple[int, frozenset[int]]] = {}
        """Per primary, the routing epoch of the last request to it, and the slices requested."""

    def begin(self, place: Place) -> None:
        """The slices are built. If the job is new, all holders get the initial parameters from a
        worker, and nothing is fetched."""
        self._copies = {}
        if place.fresh:
            for slice_, route in enumerate(place.routes):
                if self._server in route.holders and self._server != route.primary:
                    self._copies[slice_] = route.primary

    def follow(self, place: Place) -> None:
        """Drop copies whose primary has changed, so that they are requested again."""
        wanted = self._wanted(place)
        self._copies = {s: of for s, of in self._copies.items() if s in wanted.get(of, ())}
        self._fetching = {
            of: (routing, asked & wanted[of])
            for of, (routing, asked) in self._fetching.items()
            if of in wanted
        }

    def fetch(self, place: Place) -> list[FetchState]:
        """Request, from every primary, the slices that this server is to copy and does not have
        yet."""
        asks = []
        for primary, slices in self._wanted(place).items():
            new = any(slice_ not in self._copies for slice_ in slices)
            if new and not slices <= self._fetching.get(primary, (0, frozenset()))[1]:
                self._fetching[primary] = (place.routing, frozenset(slices))
                asks.append(FetchState(primary, tuple(sorted(slices)), place.routing))
        return asks

    def adopted(self, event: StateAdopted) -> bool:
        """The requested slices have arrived. Returns False if more slices were requested since
        then."""
        asked, slices = self._fetching.get(event.primary, (0, frozenset[int]()))
        if asked != event.routing:
            return False
        del self._fetching[event.primary]
        self._copies.update(dict.fromkeys(slices, event.primary))
        return True

    def _wanted(self, place: Place) -> dict[int, set[int]]:
        """Per primary, the slices that this server is to copy from it."""
        wanted: dict[int, set[int]] = {}
        for slice_, route in enumerate(place.routes):
            if self._server in (*route.replicas, *route.learners):
                wanted.setdefault(route.primary, set()).add(slice_)
        return wanted

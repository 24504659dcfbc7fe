"""A worker's contributions that are not acknowledged yet (rule 1 of the design's §9).

*A worker keeps a contribution until every slice acknowledged it, and after a routing change re-sends
only what was not.*
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from polyrhythm.core.events import Computed
from polyrhythm.wire.messages import Route


@dataclass(slots=True)
class Sent:
    sequence: int
    round: int
    computed: Computed
    owed: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    """Per primary and the routing epoch since when it is that, the slices."""


class Outstanding:
    def __init__(self) -> None:
        self._sent: dict[int, Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def first(self, default: int) -> int:
        """The oldest that is not acknowledged."""
        return min(self._sent, default=default)

    def servers(self) -> list[int]:
        """Who has not acknowledged something."""
        return sorted({server for sent in self._sent.values() for server in sent.owed})

    def send(
        self, sequence: int, round_: int, computed: Computed, routes: tuple[Route, ...]
    ) -> Sent:
        sent = self._sent[sequence] = Sent(sequence, round_, computed)
        _owe(sent, range(len(routes)), routes)
        return sent

    def acknowledge(self, server: int, sequence: int, routing: int) -> None:
        """A server has every slice that it is the primary of since this epoch or longer, of this and
        all before it."""
        for mine in [mine for mine in self._sent if mine <= sequence]:
            owed = self._sent[mine].owed
            parts = owed.get(server)
            if parts is None:
                continue
            for epoch in [epoch for epoch in parts if epoch <= routing]:
                del parts[epoch]
            if not parts:
                del owed[server]
            if not owed:
                del self._sent[mine]

    def reroute(
        self, routes: tuple[Route, ...], relinked: Collection[int] = ()
    ) -> list[tuple[Sent, dict[int, tuple[int, ...]]]]:
        """Other servers are primaries now: what must be sent again, oldest first, per server. Of what
        was on its way to those in `relinked`, nobody knows what has come."""
        again = []
        for _, sent in sorted(self._sent.items()):
            before = {
                slice_: (server, since)
                for server, parts in sent.owed.items()
                for since, slices in parts.items()
                for slice_ in slices
            }
            sent.owed = {}
            _owe(sent, sorted(before), routes)
            moved: dict[int, list[int]] = {}
            for slice_, owed in sorted(before.items()):
                route = routes[slice_]
                if (route.primary, route.since) != owed or route.primary in relinked:
                    moved.setdefault(route.primary, []).append(slice_)
            if moved:
                again.append((sent, {server: tuple(ids) for server, ids in moved.items()}))
        return again


def _owe(sent: Sent, slices: Iterable[int], routes: tuple[Route, ...]) -> None:
    for slice_ in slices:
        route = routes[slice_]
        parts = sent.owed.setdefault(route.primary, {})
        parts[route.since] = (*parts.get(route.since, ()), slice_)

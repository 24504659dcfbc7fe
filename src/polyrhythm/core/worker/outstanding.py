"""A worker's contributions that are not acknowledged yet (rule 1 of the design's §9).

*A worker keeps a contribution until every slice acknowledged it, and after a routing change re-sends
only what was not.*
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

import msgspec

from polyrhythm.core.events import Computed
from polyrhythm.wire.messages import Route

Owed = Mapping[int, Mapping[int, tuple[int, ...]]]
"""Per primary and the routing epoch since when it is that, the slices. Never changed, but replaced."""


class SentContribution(msgspec.Struct, eq=False):
    sequence: int
    round: int
    computed: Computed
    owed: Owed


class Outstanding:
    def __init__(self) -> None:
        self._sent: list[SentContribution] = []
        """The oldest first."""
        self._routes: tuple[Route, ...] = ()
        self._whole: Owed = {}
        """What is owed of a contribution that nobody has acknowledged, by these routes."""

    def __len__(self) -> int:
        return len(self._sent)

    def first(self, default: int) -> int:
        """The oldest that is not acknowledged."""
        return self._sent[0].sequence if self._sent else default

    def servers(self) -> list[int]:
        """Who has not acknowledged something."""
        return sorted({server for sent in self._sent for server in sent.owed})

    def send(
        self, sequence: int, round_: int, computed: Computed, routes: tuple[Route, ...]
    ) -> SentContribution:
        if routes is not self._routes:
            self._routes, self._whole = routes, _owed_by(routes)
        sent = SentContribution(sequence, round_, computed, self._whole)
        self._sent.append(sent)
        return sent

    def acknowledge(self, server: int, sequence: int, routing: int) -> None:
        """A server has every slice that it is the primary of since this epoch or longer, of this and
        all before it."""
        for sent in self._sent[:]:
            if sent.sequence > sequence:
                break
            owed = sent.owed
            parts = owed.get(server)
            if parts is None:
                continue
            if max(parts) > routing:
                later = {since: parts[since] for since in parts if since > routing}
                sent.owed = {**owed, server: later}
            elif len(owed) > 1:
                sent.owed = {other: owed[other] for other in owed if other != server}
            else:
                self._sent.remove(sent)

    def reroute(
        self, routes: tuple[Route, ...], relinked: Collection[int] = ()
    ) -> list[tuple[SentContribution, dict[int, tuple[int, ...]]]]:
        """Other servers are primaries now: what must be sent again, oldest first, per server. Of what
        was on its way to those in `relinked`, nobody knows what has come."""
        again = []
        for sent in self._sent:
            before = {
                slice_: (server, since)
                for server, parts in sent.owed.items()
                for since, slices in parts.items()
                for slice_ in slices
            }
            sent.owed = _owed(sorted(before), routes)
            moved: dict[int, list[int]] = {}
            for slice_, owed in sorted(before.items()):
                route = routes[slice_]
                if (route.primary, route.since) != owed or route.primary in relinked:
                    moved.setdefault(route.primary, []).append(slice_)
            if moved:
                again.append((sent, {server: tuple(ids) for server, ids in moved.items()}))
        return again


@lru_cache(maxsize=4)
def _owed_by(routes: tuple[Route, ...]) -> Owed:
    """Of all slices; one for all workers of a process."""
    return _owed(range(len(routes)), routes)


def _owed(slices: Iterable[int], routes: tuple[Route, ...]) -> Owed:
    owed: dict[int, dict[int, list[int]]] = {}
    for slice_ in slices:
        route = routes[slice_]
        owed.setdefault(route.primary, {}).setdefault(route.since, []).append(slice_)
    return {
        server: {since: tuple(ids) for since, ids in parts.items()}
        for server, parts in owed.items()
    }

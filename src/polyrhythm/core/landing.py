"""Which slices of which version lie in a worker's buffer.

Without rounds a version is the worker's own: the number of the pull that a slice answers.
"""

from polyrhythm.wire.messages import EVERY_SLICE, Route

NOTHING = -1


class Landing:
    def __init__(self, routes: tuple[Route, ...] = ()) -> None:
        self.routes = routes
        self.slices = _by_primary(routes)
        """Per server, what it is the primary of."""
        self._versions = [NOTHING] * len(routes)
        self._counts = {NOTHING: len(routes)} if routes else {}
        self.version = NOTHING
        """The oldest version that lies there."""
        self.newest = NOTHING
        self.whole = True
        """All slices are of one version."""

    def reroute(self, routes: tuple[Route, ...]) -> None:
        """Others are primaries now; what lies here stays what it is."""
        self.routes = routes
        self.slices = _by_primary(routes)

    def land(self, server: int, slice_: int, version: int, holds: tuple[int, ...] = ()) -> None:
        versions, counts = self._versions, self._counts
        every = holds or self.slices[server] if slice_ == EVERY_SLICE else (slice_,)
        for number in every:
            before = versions[number]
            counts[before] -= 1
            if not counts[before]:
                del counts[before]
            versions[number] = version
            counts[version] = counts.get(version, 0) + 1
        self.whole = len(counts) == 1
        self.version = version if self.whole else min(counts)
        self.newest = version if self.whole else max(counts)

    def of(self, server: int) -> int:
        """The oldest version of what this server holds."""
        return min(self._versions[slice_] for slice_ in self.slices[server])


def _by_primary(routes: tuple[Route, ...]) -> dict[int, tuple[int, ...]]:
    slices: dict[int, list[int]] = {}
    for slice_, route in enumerate(routes):
        slices.setdefault(route.primary, []).append(slice_)
    return {server: tuple(ids) for server, ids in sorted(slices.items())}

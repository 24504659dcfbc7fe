"""Which slices of which version lie in a worker's buffer.

Without rounds a version is the worker's own: the number of the pull that a slice answers.
"""

from collections import Counter

from polyrhythm.wire.messages import EVERY_SLICE, Route

NOTHING = -1


class Landing:
    def __init__(self, routes: tuple[Route, ...] = ()) -> None:
        self.routes = routes
        self.slices = _by_primary(routes)
        """Per server, what it is the primary of."""
        self._versions = [NOTHING] * len(routes)
        self._counts: Counter[int] = Counter({NOTHING: len(routes)} if routes else {})

    def reroute(self, routes: tuple[Route, ...]) -> None:
        """Others are primaries now; what lies here stays what it is."""
        self.routes = routes
        self.slices = _by_primary(routes)

    def land(self, server: int, slice_: int, version: int, holds: tuple[int, ...] = ()) -> None:
        every = holds or self.slices[server] if slice_ == EVERY_SLICE else (slice_,)
        for number in every:
            before = self._versions[number]
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
            self._versions[number] = version
            self._counts[version] += 1

    @property
    def version(self) -> int:
        """The oldest version that lies there."""
        return min(self._counts) if self._counts else NOTHING

    @property
    def newest(self) -> int:
        return max(self._counts) if self._counts else NOTHING

    @property
    def whole(self) -> bool:
        """All slices are of one version."""
        return len(self._counts) <= 1

    def of(self, server: int) -> int:
        """The oldest version of what this server holds."""
        return min(self._versions[slice_] for slice_ in self.slices[server])


def _by_primary(routes: tuple[Route, ...]) -> dict[int, tuple[int, ...]]:
    slices: dict[int, list[int]] = {}
    for slice_, route in enumerate(routes):
        slices.setdefault(route.primary, []).append(slice_)
    return {server: tuple(ids) for server, ids in sorted(slices.items())}

"""Which slices of which version lie in a worker's buffer.

Without rounds a version is the worker's own: the number of the pull that a slice answers.
"""

from collections.abc import Mapping
from functools import lru_cache

from polyrhythm.wire.messages import EVERY_SLICE, Route

NOTHING = -1


class Assembly:
    def __init__(self, routes: tuple[Route, ...] = ()) -> None:
        self.routes = routes
        self.slices = _by_primary(routes)
        """Per server, what it is the primary of."""
        self._versions: list[int] = []
        self._counts: dict[int, int] = {}
        """The version of each slice, and how many are of each; while they are not of one."""
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
        every = holds or self.slices[server] if slice_ == EVERY_SLICE else (slice_,)
        landed, total = len(every), len(self.routes)
        if landed == total:
            self.version = self.newest = version
            self.whole = True
            return
        if self.whole:
            self._versions, self._counts = [self.version] * total, {self.version: total}
        versions, counts = self._versions, self._counts
        changed = version not in counts
        counts[version] = landed if changed else counts[version] + landed
        for number in every:
            before = versions[number]
            versions[number] = version
            counts[before] -= 1
            if not counts[before]:
                del counts[before]
                changed = True
        if changed:  # which versions lie there, and not only of how many slices
            self.version, self.newest = min(counts), max(counts)
            self.whole = self.version == self.newest

    def of(self, server: int) -> int:
        """The oldest version of what this server holds."""
        if self.whole:
            return self.version
        return min(self._versions[slice_] for slice_ in self.slices[server])


@lru_cache(maxsize=4)
def _by_primary(routes: tuple[Route, ...]) -> Mapping[int, tuple[int, ...]]:
    """One for all workers of a process: nobody changes it."""
    slices: dict[int, list[int]] = {}
    for slice_, route in enumerate(routes):
        slices.setdefault(route.primary, []).append(slice_)
    return {server: tuple(ids) for server, ids in sorted(slices.items())}

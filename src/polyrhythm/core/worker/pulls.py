"""What one incarnation of a worker reads: the version that it has, the versions that it has
requested, and the version with which the lead lets it continue.

*Under every policy a worker computes with parameters that contain its own last contribution.*
`modes` has the two modes, with rounds and on arrival. This module has the parts that they share.
"""

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache

from polyrhythm.core.effects import Expect, Resume
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import EVERY_SLICE, Route

NOTHING = -1
_EXPECT_NOTHING = Expect(None)


class Missing(Enum):
    """What may never arrive at a worker because routes have changed."""

    NOTHING = "nothing"
    ANSWERS = "answers"
    """The servers that were asked for parameters may no longer be the primaries."""
    VERSIONS = "versions"
    """A server or a link is lost, and with it the versions that were sent over it without a
    request."""


class Assembly:
    """Records which version of each slice is in the worker's parameters. Without rounds, the
    version of a slice is the ticket of the pull that brought it."""

    __slots__ = (
        "_counts",
        "_early",
        "_versions",
        "early_since",
        "newest",
        "routes",
        "slices",
        "version",
        "whole",
    )

    def __init__(self, routes: tuple[Route, ...] = ()) -> None:
        self.routes = routes
        self.slices = _by_primary(routes)
        """Per server, the slices of which it is the primary."""
        self._versions: list[int] = []
        self._counts: dict[int, int] = {}
        """Used while slices have different versions: the version of each slice, and the number of
        slices of each version."""
        self.version = NOTHING
        """The version of the oldest slice."""
        self.newest = NOTHING
        self.whole = True
        """Whether all slices have one version."""
        self._early: dict[int, int] = {}
        """With `--optimizer-on workers`: the slices whose sum has arrived before the lead ordered
        the fold. The value is the version that the slice had before."""

        self.early_since = tuple(route.since for route in routes)
        """Per slice, the routing epoch since which such sums count. It rises only when the slice
        gets another primary because a server is lost: sums of the lost server are dropped. *When a
        slice moves between a fold and the release, a sum of its former primary may still arrive. It
        is part of the fold, and the new primary does not send it again.*"""

    def leads_elsewhere(self, routes: tuple[Route, ...]) -> bool:
        """Whether some slice has another primary in these routes, or has had one since. *A worker that
        could not follow several changes of routes follows them as one, and a slice may have come back
        to its server.*"""
        pairs = zip(routes, self.routes, strict=True)
        return any(_primary_of(now) != _primary_of(before) for now, before in pairs)

    def reroute(self, routes: tuple[Route, ...]) -> None:
        """Follow new primaries. The slices that have arrived keep their versions."""
        self.routes = routes
        self.slices = _by_primary(routes)

    def land_early(self, server: int, slice_: int, version: int, routing: int) -> None:
        """Record a sum that was sent before the lead ordered the fold. *Drop it if the slice's
        primary was lost since. Workers then send their contributions again to the new primary,
        which adds them up.*"""
        if not 0 <= slice_ < len(self.routes) or self.early_since[slice_] > routing:
            return
        before = self.version if self.whole else self._versions[slice_]
        self.land(server, slice_, version)
        self._early[slice_] = before

    def drop_early(self, routes: tuple[Route, ...]) -> None:
        """When routes change because a server is lost, drop the sums that arrived before the lead
        ordered the fold and whose slice has had another primary since. *The lost server may have sent
        such a sum to some workers only, and no other process has it.* If the slice has moved without a
        loss, the worker asks its new primary for the sum."""
        stays = [
            _primary_of(now) == _primary_of(before)
            for now, before in zip(routes, self.routes, strict=True)
        ]
        self.early_since = tuple(
            since if stay else now.since
            for now, since, stay in zip(routes, self.early_since, stays, strict=True)
        )
        early, self._early = self._early, {}
        for slice_, before in early.items():
            if stays[slice_]:
                self._early[slice_] = before
            else:
                self.land(self.routes[slice_].primary, slice_, before)

    def settle(self) -> None:
        """Treat all sums of a version as final, even early ones: the lead has released the
        version."""
        self._early.clear()

    def land(self, server: int, slice_: int, version: int, holds: tuple[int, ...] = ()) -> None:
        every = holds or self.slices[server] if slice_ == EVERY_SLICE else (slice_,)
        if self._early:
            for number in every:
                self._early.pop(number, None)
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
        if changed:  # a version was added to `counts`, or removed from it
            self.version, self.newest = min(counts), max(counts)
            self.whole = self.version == self.newest

    def of(self, server: int) -> int:
        """The lowest version of the slices whose primary this server is."""
        if self.whole:
            return self.version
        return min(self._versions[slice_] for slice_ in self.slices[server])


def _primary_of(route: Route) -> tuple[int, int]:
    """The primary of a slice, and since when it is that without a break."""
    return route.primary, route.since


@lru_cache(maxsize=4)
def _by_primary(routes: tuple[Route, ...]) -> Mapping[int, tuple[int, ...]]:
    """Per primary, its slices. The mapping is shared by all workers of a process and never
    changed."""
    slices: dict[int, list[int]] = {}
    for slice_, route in enumerate(routes):
        slices.setdefault(route.primary, []).append(slice_)
    return {server: tuple(ids) for server, ids in sorted(slices.items())}


class Pulls:
    __slots__ = (
        "_first",
        "_outbox",
        "ended",
        "landing",
        "must_pull",
        "resumed",
        "stop",
        "terms",
        "ticket",
    )

    def __init__(self, outbox: WorkerOutbox, ticket: int = 0) -> None:
        """`ticket`: the last ticket of the incarnation before this one."""
        self._outbox = outbox
        self.ticket = ticket
        """Without rounds: the ticket of the last request for parameters."""
        self.landing = Assembly()
        self.resumed = NOTHING
        """The last version that the user's code has received."""
        self.must_pull = False
        """Whether the worker must pull the next version, because no server will send it without a
        request."""
        self.stop = False
        """Whether the job ends. Then the next version that the worker reads is the final one."""
        self.ended = False
        """Whether the user's code has the final version."""
        self.terms = m.Release()
        self._first = True

    def expect(self, version: int | None, *, keep: int | None = None) -> None:
        self._outbox.out.append(Expect(version, keep))

    def resume(self, keep: int | None = None) -> None:
        """Give the version that has arrived to the user's code."""
        self.must_pull = False
        self.ended = self.stop
        self.resumed = version = self.landing.version
        terms, first, out = self.terms, self._first, self._outbox.out
        self._first = False
        out.append(_EXPECT_NOTHING if keep is None else Expect(None, keep))
        out.append(
            Resume(
                version,
                self.stop,
                terms.steps,
                terms.interval_ns,
                terms.probe,
                terms.points,
                rejoined=first,
                torn=terms.torn and terms.round == version,
                # the next version probably lacks many points too
                whole_only=terms.whole_only,
                progress=terms.progress,
                rank=terms.rank,
            )
        )

    def say_pulled(self) -> None:
        """Tell the servers that this worker has copied the version and no longer reads it from
        their memory."""
        pulled = m.Pulled(**self._outbox.identity(), round=self.landing.version)
        for server in self.landing.slices:
            self._outbox.tell_server(server, pulled)

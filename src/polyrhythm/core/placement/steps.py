"""The steps by which routes change when a server is lost, joins or leaves, or a copy has caught up.

*A slice moves in four steps: add a learner, let it catch up, promote it, drop the old copy.* A
slice moves when a server joins or leaves, or when a lost copy is restored. A learner that has
caught up becomes a replica, and only a replica is promoted. *Slices do not wait for each other: each
takes its next step as soon as its own copy is ready.* Each step leads towards the target routes,
which a scheme gives (`schemes.py`).
"""

from collections import Counter
from collections.abc import Collection, Sequence

from polyrhythm.wire.messages import Route

Routes = tuple[Route, ...]
WINDOW_NBYTES = 16 * 2**20
"""A learner fetches at most this many bytes of parameters from one primary at a time, and fetches
the next slices when it has caught up. So the first slices are promoted while others are still being
copied, and copying takes a limited part of a primary's memory and time."""
LEAST_NBYTES = 2 * 2**20
"""A learner always fetches at least this much at a time, because so little costs next to
nothing."""
SPREAD_S = 5.0
"""Slices of servers that join or leave move within this many seconds, or within one round if that
is longer."""


def orphaned(routes: Sequence[Route], gone: int) -> list[int]:
    """The slices whose only copy is on this server."""
    return [
        slice_
        for slice_, route in enumerate(routes)
        if route.primary == gone and not route.replicas
    ]


def candidates(routes: Sequence[Route], alive: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Per slice, the servers that can become its primary without copying: its present primary, or
    its replicas if the primary is lost. *The slices are in the order in which their servers got
    them.* So a server above its bound gives up the slices that it got last."""

    def seniority(slice_: int) -> tuple[bool, int, int]:
        gone = routes[slice_].primary not in alive
        return gone, 0 if gone else routes[slice_].since, slice_

    return {
        slice_: (routes[slice_].primary,)
        if routes[slice_].primary in alive
        else tuple(server for server in routes[slice_].replicas if server in alive)
        for slice_ in sorted(range(len(routes)), key=seniority)
    }


def without(routes: Sequence[Route], gone: int, targets: Sequence[Route], epoch: int) -> Routes:
    """The routes without a lost server. From `epoch` on, each of its slices has a new primary: the
    primary in `targets` if that is a replica of the slice, otherwise the first replica."""
    return tuple(
        _without(now, gone, target.primary, epoch)
        for now, target in zip(routes, targets, strict=True)
    )


def _without(route: Route, gone: int, heir: int, epoch: int) -> Route:
    replicas = tuple(server for server in route.replicas if server != gone)
    learners = tuple(server for server in route.learners if server != gone)
    if route.primary != gone:
        return Route(route.primary, replicas, learners, route.since)
    primary = heir if heir in replicas else replicas[0]
    others = tuple(server for server in replicas if server != primary)
    return Route(primary, others, learners, epoch)


def paced_nbytes(nbytes: int, round_s: float) -> int | None:
    """The part of `nbytes`, the bytes that a learner copies from one primary, that it fetches in
    one round. So every round becomes a little slower, instead of one round much slower. None: no
    limit, because there are no rounds (`round_s` is 0) or they are long."""
    paced = max(LEAST_NBYTES, round(nbytes * round_s / SPREAD_S))
    return paced if round_s > 0 and paced < WINDOW_NBYTES else None


def add_learners(
    routes: Sequence[Route],
    targets: Sequence[Route],
    sizes: Sequence[int],
    window_nbytes: int = WINDOW_NBYTES,
    *,
    begins: bool = True,
) -> Routes:
    """The routes with learners for servers in `targets` that do not have the slice, and with no
    other learners. Servers that have the slice keep it. A server fetches slices of at most
    `window_nbytes` from one primary at a time, but at least one slice; the others wait. `begins`:
    whether servers may begin to fetch slices now."""
    fetching: Counter[tuple[int, int]] = Counter()
    kept = []
    for now, target, nbytes in zip(routes, targets, sizes, strict=True):
        lacking = [s for s in (target.primary, *target.replicas) if s not in _copies(now)]
        learners = tuple(server for server in lacking if server in now.learners)
        fetching.update({(now.primary, learner): max(1, nbytes) for learner in learners})
        kept.append((now, lacking, learners))

    def may_begin(primary: int, learner: int, nbytes: int) -> bool:
        before = fetching[primary, learner]
        if not begins or (before and before + nbytes > window_nbytes):
            return False
        fetching[primary, learner] += max(1, nbytes)
        return True

    return tuple(
        Route(
            now.primary,
            now.replicas,
            tuple(
                server
                for server in lacking
                if server in learners or may_begin(now.primary, server, nbytes)
            ),
            now.since,
        )
        for (now, lacking, learners), nbytes in zip(kept, sizes, strict=True)
    )


def _copies(route: Route) -> tuple[int, ...]:
    """The servers that have the whole state of this slice."""
    return (route.primary, *route.replicas)


def learned(routes: Sequence[Route], primary: int, learner: int) -> Routes:
    """The routes after a learner has caught up with this primary: it becomes a replica of the
    slices that it copied."""
    return tuple(
        Route(
            route.primary,
            (*route.replicas, learner),
            tuple(server for server in route.learners if server != learner),
            route.since,
        )
        if route.primary == primary and learner in route.learners
        else route
        for route in routes
    )


def promote(routes: Sequence[Route], targets: Sequence[Route], epoch: int) -> Routes:
    """Give a slice its route in `targets` if every server in that route has the slice already;
    otherwise keep its present route. A new primary is the primary from `epoch` on."""
    return tuple(_promote(now, target, epoch) for now, target in zip(routes, targets, strict=True))


def _promote(now: Route, target: Route, epoch: int) -> Route:
    if now.learners or not set(target.holders) <= set(now.holders):
        return now
    since = now.since if target.primary == now.primary else epoch
    return Route(target.primary, target.replicas, (), since)


def begin(routes: Sequence[Route], epoch: int) -> Routes:
    """The first routes of a job: every primary is one since `epoch`."""
    return tuple(Route(route.primary, route.replicas, (), epoch) for route in routes)

"""How routes change: a server is gone, one has come, a copy has caught up.

*A move (join, leave, restore) = add a replica, catch up, promote at a fold, drop the source. There is
no other hand-over.* So a slice goes towards where it should be by steps: first who lacks it learns it,
then who has learned it is a replica, and only a replica is promoted.
"""

from collections.abc import Collection, Sequence

from polyrhythm.wire.messages import Route

Routes = tuple[Route, ...]


def orphaned(routes: Sequence[Route], gone: int) -> list[int]:
    """The slices that nobody would have any more without this server."""
    return [
        slice_
        for slice_, route in enumerate(routes)
        if route.primary == gone and not route.replicas
    ]


def candidates(routes: Sequence[Route], alive: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Per slice, the servers that can be its primary without copying anything: the primary that it
    has, or its replicas if that one is gone. *In the order in which slices came to their servers*, so
    that a server over its bound gives up what it took over last, and never what was its own before."""

    def seniority(slice_: int) -> tuple[bool, int, int]:
        gone = routes[slice_].primary not in alive
        return gone, 0 if gone else routes[slice_].since, slice_

    return {
        slice_: (routes[slice_].primary,)
        if routes[slice_].primary in alive
        else tuple(server for server in routes[slice_].replicas if server in alive)
        for slice_ in sorted(range(len(routes)), key=seniority)
    }


def without(routes: Sequence[Route], gone: int, target: Sequence[Route], epoch: int) -> Routes:
    """A server is gone: from `epoch` on each of its slices has another primary, the target's if that
    is a replica, otherwise the first replica."""
    return tuple(
        _without(now, gone, goal.primary, epoch) for now, goal in zip(routes, target, strict=True)
    )


def _without(route: Route, gone: int, heir: int, epoch: int) -> Route:
    replicas = tuple(server for server in route.replicas if server != gone)
    learners = tuple(server for server in route.learners if server != gone)
    if route.primary != gone:
        return Route(route.primary, replicas, learners, route.since)
    primary = heir if heir in replicas else replicas[0]
    others = tuple(server for server in replicas if server != primary)
    return Route(primary, others, learners, epoch)


def teach(routes: Sequence[Route], target: Sequence[Route]) -> Routes:
    """Whoever should have a slice and does not, learns it; whoever should not, stops learning it.
    Nobody who has it drops it yet."""
    return tuple(_teach(now, goal) for now, goal in zip(routes, target, strict=True))


def _teach(now: Route, goal: Route) -> Route:
    have = (now.primary, *now.replicas)
    learners = tuple(server for server in (goal.primary, *goal.replicas) if server not in have)
    return Route(now.primary, now.replicas, learners, now.since)


def learned(routes: Sequence[Route], primary: int, learner: int) -> Routes:
    """A learner has caught up with this primary: it is a replica of its slices."""
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


def arrive(routes: Sequence[Route], target: Sequence[Route], epoch: int) -> Routes:
    """What has been learned is used: the goal, slice by slice, where everybody in it has the slice;
    new primaries are so from `epoch` on."""
    return tuple(_arrive(now, goal, epoch) for now, goal in zip(routes, target, strict=True))


def _arrive(now: Route, goal: Route, epoch: int) -> Route:
    if now.learners or not set(goal.holders) <= set(now.holders):
        return now
    since = now.since if goal.primary == now.primary else epoch
    return Route(goal.primary, goal.replicas, (), since)


def begin(routes: Sequence[Route], epoch: int) -> Routes:
    """The first routes."""
    return tuple(Route(route.primary, route.replicas, (), epoch) for route in routes)

"""How routes change: a server is gone, one has come, a copy has caught up.

*A move (join, leave, restore) = add a replica, catch up, promote at a fold, drop the source. There is
no other hand-over.* So a slice goes towards where it should be by steps: first who lacks it learns it,
then who has learned it is a replica, and only a replica is promoted.
"""

from collections.abc import Sequence

from polyrhythm.wire.messages import Route

Routes = tuple[Route, ...]


def orphaned(routes: Sequence[Route], gone: int) -> list[int]:
    """The slices that nobody would have any more without this server."""
    return [
        slice_
        for slice_, route in enumerate(routes)
        if route.primary == gone and not route.replicas
    ]


def without(routes: Sequence[Route], gone: int, epoch: int) -> Routes:
    """A server is gone: the first replica of each of its slices is the primary from `epoch` on."""
    return tuple(_without(route, gone, epoch) for route in routes)


def _without(route: Route, gone: int, epoch: int) -> Route:
    replicas = tuple(server for server in route.replicas if server != gone)
    learners = tuple(server for server in route.learners if server != gone)
    if route.primary != gone:
        return Route(route.primary, replicas, learners, route.since)
    return Route(replicas[0], replicas[1:], learners, epoch)


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
    if now.learners or not set(goal.keepers) <= set(now.keepers):
        return now
    since = now.since if goal.primary == now.primary else epoch
    return Route(goal.primary, goal.replicas, (), since)


def begin(routes: Sequence[Route], epoch: int) -> Routes:
    """The first routes."""
    return tuple(Route(route.primary, route.replicas, (), epoch) for route in routes)

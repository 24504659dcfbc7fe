from polyrhythm.core.effects import PushSlices, Send
from polyrhythm.core.events import Computed
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.pulls import Assembly
from polyrhythm.core.worker.pushes import Pushes
from polyrhythm.wire.messages import ContributionReport, Route, Trailer

ROUTES = Route(0), Route(1)


def contribute(contributing: Pushes, landing: Assembly) -> None:
    contributing.sequence += 1
    contributing.send(Computed(0, (), ContributionReport(weight=1.0)), landing)


def pushes(effects: list) -> list[tuple[int, int]]:
    return [(e.server, e.sequence) for e in effects if isinstance(e, PushSlices)]


def test_a_contribution_is_kept_until_every_server_has_acknowledged_it() -> None:
    contributing, landing = Pushes(WorkerOutbox()), Assembly(ROUTES)
    contribute(contributing, landing)
    contribute(contributing, landing)
    assert contributing.full() and contributing.acknowledged == 0
    assert contributing.acknowledge(0, 2, 0)
    assert contributing.full()
    contributing.acknowledge(1, 1, 0)
    assert not contributing.full() and contributing.acknowledged == 1


def test_one_acknowledgement_covers_all_contributions_before_it() -> None:
    contributing, landing = Pushes(WorkerOutbox()), Assembly(ROUTES[:1])
    contribute(contributing, landing)
    contribute(contributing, landing)
    assert contributing.acknowledge(0, 2, 0)
    assert not contributing.outstanding.sent and contributing.acknowledged == 2


def test_an_acknowledgement_of_a_later_routing_epoch_is_kept_for_that_epoch() -> None:
    contributing, landing = Pushes(WorkerOutbox()), Assembly(ROUTES)
    contribute(contributing, landing)
    assert not contributing.acknowledge(0, 1, 5)
    assert not contributing.acknowledge(0, 0, 5)
    assert contributing.take_early() == [(0, 1, 5)]
    assert contributing.take_early() == []
    assert len(contributing.outstanding) == 1


def test_a_server_gets_repeated_contributions_before_new_ones() -> None:
    post = WorkerOutbox()
    contributing, landing = Pushes(post), Assembly(ROUTES)
    contribute(contributing, landing)
    contributing.relinking.add(1)
    effects = post.out = []
    contribute(contributing, landing)
    assert pushes(effects) == [(0, 2)]
    effects = post.out = []
    contributing.reroute(ROUTES, 0)
    assert pushes(effects) == [(1, 1), (1, 2)]
    assert not contributing.relinking


def test_servers_get_the_weight_and_the_lead_gets_the_points() -> None:
    for weights, weight in (("points", 64.0), ("workers", 1.0)):
        outbox = WorkerOutbox()
        contributing = Pushes(outbox)
        contributing.weights = weights
        effects = outbox.out
        contributing.send(Computed(0, (), ContributionReport(weight=64.0)), Assembly(ROUTES))
        assert [e.weight for e in effects if isinstance(e, PushSlices)] == [weight, weight]
        (trailer,) = [e.message for e in effects if isinstance(e, Send)]
        assert isinstance(trailer, Trailer) and trailer.report.weight == 64.0

"""How a worker joins: it dials the servers, attaches its model, follows the routes and seeds
slices."""

from polyrhythm.core.effects import Dial, SeedSlices, Send
from polyrhythm.core.worker.joining import Joining
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.wire import messages as m
from tests.core.stage import ADDRESS, spec

FIRST, SECOND = m.ServerSpec(0, ADDRESS, 1), m.ServerSpec(1, ADDRESS, 1)
JOB = m.JobSpec(job="j")


def admitted(post: WorkerOutbox) -> Joining:
    joining = Joining(post)
    joining.on_admitted(m.Admitted(worker=3, incarnation=7, job=JOB, servers=(FIRST, SECOND)))
    return joining


def test_the_model_is_attached_once_when_all_servers_are_linked() -> None:
    post = WorkerOutbox()
    joining, effects = admitted(post), post.out
    joining.link(0, 1)
    joining.attach(spec())
    assert effects == []
    joining.link(1, 1)
    joining.attach(spec())
    joining.attach(spec())
    (send,) = effects
    assert isinstance(send, Send) and isinstance(send.message, m.Attach)
    assert (send.message.worker, send.message.incarnation) == (3, 7)


def test_routes_are_followed_once_all_their_servers_are_linked() -> None:
    post = WorkerOutbox()
    joining = admitted(post)
    joining.link(0, 1)
    assert joining.dial((FIRST, SECOND)) == [0, 1]
    joining.reroute(m.Routing(routing=2, routes=(m.Route(0),), servers=(FIRST, SECOND)))
    assert joining.follow() is None and post.routing == 0
    without = m.Routing(routing=3, routes=(m.Route(0),), servers=(FIRST,))
    joining.reroute(without)
    assert joining.follow() is without and post.routing == 3
    assert joining.follow() is None, "once"


def test_a_new_incarnation_of_a_server_is_dialled_again() -> None:
    post = WorkerOutbox()
    joining, again = admitted(post), m.ServerSpec(1, ADDRESS, 4)
    joining.dial((FIRST, SECOND))
    effects = post.out = []
    assert joining.dial((FIRST, again)) == [1]
    assert effects == [Dial((again,))]


def test_every_holder_of_a_slice_is_seeded() -> None:
    post = WorkerOutbox()
    joining, effects = admitted(post), post.out
    routes = m.Route(1, (0,)), m.Route(1)
    joining.seed(m.Routing(routing=1, routes=routes, seed=False))
    assert effects == []
    joining.seed(m.Routing(routing=1, routes=routes, seed=True))
    assert effects == [SeedSlices(0, (0,), 1), SeedSlices(1, (0, 1), 1)]


def test_a_worker_waits_for_the_lead_to_report_a_lost_server() -> None:
    joining = admitted(WorkerOutbox())
    joining.wait_for_word(0, 1, "first", 0)
    joining.wait_for_word(1, 1, "second", 1)
    assert joining.parted is not None and joining.parted.reason == "first"
    until_ns = joining.parted.until_ns
    assert joining.overdue(until_ns - 1) is None
    assert joining.overdue(until_ns) is not None and joining.overdue(until_ns) is None


def test_the_end_of_a_link_to_a_removed_server_is_ignored() -> None:
    joining = admitted(WorkerOutbox())
    joining.link(0, 1)
    joining.link(1, 1)
    joining.reroute(m.Routing(routing=2, routes=(m.Route(0),), servers=(FIRST,)))
    joining.follow()
    joining.routed = True
    assert not joining.lose_link(1, 1)
    assert joining.lose_link(0, 1)


def test_only_a_server_that_is_still_there_keeps_back_what_was_lost_with_its_link() -> None:
    """The worker has seen the end of the link to s1 before the routes that were sent before s1 left."""
    joining = admitted(WorkerOutbox())
    joining.link(0, 1)
    joining.link(1, 1)
    assert joining.lose_link(1, 1)
    joining.reroute(m.Routing(routing=2, routes=(m.Route(0),), servers=(FIRST, SECOND)))
    assert joining.follow() is None
    joining.reroute(m.Routing(routing=3, routes=(m.Route(0),), servers=(FIRST,)))
    assert joining.follow() is not None and joining.relinked is None
    assert joining.lose_link(0, 1)
    joining.reroute(m.Routing(routing=4, routes=(m.Route(0),), servers=(FIRST,)))
    joining.link(0, 1)
    assert joining.follow() is not None and joining.relinked == 0

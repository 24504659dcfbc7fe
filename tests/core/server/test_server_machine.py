"""The server machine reports contributions, folds only when the lead orders it, and keeps track of
its readers."""

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.watch import report_in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import refused
from tests.core.stage import of, sent, spec

ROUTES = (m.Route(0), m.Route(1), m.Route(0))
ANNA, BERT = m.MemberSpec(0, 1, "anna"), m.MemberSpec(1, 2, "bert")


def place(routing: int) -> m.Place:
    return m.Place(term=1, routing=routing, spec=spec((200,)), routes=ROUTES)


class Seat:
    """Server 0 of two, with slices 0 and 2."""

    def __init__(
        self, updater: str = "optimizer", in_place: bool = False, kind: str = "gradient"
    ) -> None:
        job = m.JobSpec(job="j", servers=2, updater=updater, in_place=in_place, kind=kind)
        self.server = ServerMachine(0, job)

    def tell(self, event: object) -> list:
        effects = list(self.server.handle(event, 1))
        self.server.check()
        return effects

    def begin(self, *members: m.MemberSpec) -> "Seat":
        self.tell(place(1))
        self.tell(ev.SliceSeeded(0, 1))
        self.tell(ev.SliceSeeded(2, 1))
        self.tell(m.Fold(term=1, round=0, members=members or (ANNA, BERT)))
        return self

    def fold(self, round_: int, readers: tuple[int, ...] = (), **fields: object) -> list:
        fields.setdefault("members", (ANNA, BERT))
        return self.tell(m.Fold(term=1, round=round_, readers=readers, **fields))

    def why(self) -> str:
        return in_words(self.server.why().reason)


def test_a_server_builds_its_slices_when_it_is_placed() -> None:
    seat = Seat()
    assert seat.why() == "waiting for the servers to allocate the model's slices"
    effects = seat.tell(place(1))
    assert of(effects, fx.Build) == [fx.Build(spec((200,)), ROUTES, 1)]
    assert [placed.routing for placed in sent(effects, m.Placed, "lead")] == [1]


def test_a_server_reports_seeded_when_all_its_slices_are_seeded() -> None:
    seat = Seat()
    seat.tell(place(1))
    assert seat.tell(ev.SliceSeeded(2, 1)) == []
    assert sent(seat.tell(ev.SliceSeeded(0, 1)), m.Seeded, "lead")
    assert seat.tell(ev.SliceSeeded(0, 1)) == [], "once is enough"


def test_slices_read_from_a_checkpoint_before_a_partner_is_linked_are_reported_after_placed() -> (
    None
):
    server = ServerMachine(1, m.JobSpec(job="j", servers=3, replicas=1))
    servers = tuple(m.ServerSpec(n, m.Address("", 0, "", ""), n + 4) for n in range(3))
    routes = (m.Route(1, (2,)),)
    place = m.Place(
        term=1, routing=3, spec=spec((200,)), routes=routes, servers=servers, fresh=True
    )
    assert not sent(server.handle(place, 1), m.Placed, "lead")
    assert server.handle(ev.SliceSeeded(0, 3), 2) == []
    effects = server.handle(ev.Linked(2, 6), 3)
    reports = [
        e.message for e in of(effects, fx.Send) if isinstance(e.message, m.Placed | m.Seeded)
    ]
    assert [(type(report), report.routing) for report in reports] == [(m.Placed, 3), (m.Seeded, 3)]


def test_fresh_routes_build_and_seed_the_slices_again() -> None:
    seat = Seat()
    seat.tell(place(1))
    seat.tell(ev.SliceSeeded(0, 1))
    effects = seat.tell(place(2))
    assert [build.routing for build in of(effects, fx.Build)] == [2]
    assert [placed.routing for placed in sent(effects, m.Placed, "lead")] == [2]
    assert seat.tell(ev.SliceSeeded(2, 1)) == seat.tell(ev.SliceSeeded(0, 1)) == []
    assert seat.tell(ev.SliceSeeded(2, 2)) == []
    (seeded,) = sent(seat.tell(ev.SliceSeeded(0, 2)), m.Seeded, "lead")
    assert seeded.routing == 2


def test_round_0_folds_nothing() -> None:
    effects = Seat().begin().fold(0, (0,))
    assert of(effects, fx.StartFold) == []
    assert of(effects, fx.Publish) == [fx.Publish(0, 1, 0, 0, 0, 0, 1)]
    assert sent(effects, m.Folded, "lead")


def test_a_complete_contribution_is_reported_and_not_folded() -> None:
    seat = Seat().begin()
    for member in (ANNA, BERT):
        effects = seat.tell(ev.Contributed(member.worker, member.incarnation, 1, 1))
        (arrived,) = sent(effects, m.Arrived, "lead")
        assert (arrived.worker, arrived.sequence, arrived.round) == (member.worker, 1, 1)
        assert of(effects, fx.StartFold) == []
    assert seat.why() == "round 1 waits for the lead to order the fold"


def test_a_server_folds_on_order_of_the_lead_and_publishes_to_the_readers() -> None:
    seat = Seat().begin()
    seat.tell(ev.Contributed(0, 1, 5, 1))
    assert of(seat.fold(1, (0,)), fx.StartFold) == [fx.StartFold(1, 0, 0)]
    assert seat.why() == "the servers fold round 1"
    effects = seat.tell(ev.FoldDone(1, 2.0))
    (publish,) = of(effects, fx.Publish)
    assert (publish.worker, publish.round, publish.sequence) == (0, 1, 5)
    (folded,) = sent(effects, m.Folded, "lead")
    assert (folded.round, folded.weight) == (1, 2.0)
    assert sent(effects, m.Acknowledged) == [], "the parameters themselves acknowledge"


def test_a_fold_makes_the_share_of_a_step_that_the_lead_orders() -> None:
    seat = Seat().begin()
    seat.tell(ev.Contributed(0, 1, 5, 1))
    assert of(seat.fold(1, (0,), share=0.25), fx.StartFold)[0].share == 0.25


def test_the_last_worker_to_arrive_gets_the_version_first() -> None:
    seat = Seat().begin()
    seat.tell(ev.Contributed(0, 1, 1, 1))
    seat.tell(ev.Contributed(1, 2, 1, 1))
    seat.fold(1, (0, 1))
    assert [p.worker for p in of(seat.tell(ev.FoldDone(1, 2.0)), fx.Publish)] == [1, 0]
    seat.tell(ev.Contributed(1, 2, 2, 2))
    seat.fold(2, (0, 1))
    found = [p.worker for p in of(seat.tell(ev.FoldDone(2, 1.0)), fx.Publish)]
    assert found == [1, 0], "one who abstained has time, too"


def test_a_worker_that_is_not_a_reader_gets_an_acknowledgement() -> None:
    seat = Seat().begin()
    seat.tell(ev.Contributed(1, 2, 1, 1))
    seat.fold(1)
    (acknowledged,) = sent(seat.tell(ev.FoldDone(1, 1.0)), m.Acknowledged, "w1")
    assert acknowledged.sequence == 1


def test_a_contribution_that_is_folded_already_is_acknowledged_at_once() -> None:
    seat = Seat().begin()
    seat.fold(1)
    seat.tell(ev.FoldDone(1, 1.0))
    effects = seat.tell(ev.Contributed(1, 2, 1, 1))
    assert sent(effects, m.Acknowledged, "w1") and sent(effects, m.Arrived, "lead")


def test_a_repeated_contribution_is_acknowledged_again_if_due() -> None:
    seat = Seat().begin()
    seat.tell(ev.Contributed(1, 2, 1, 1))
    assert seat.tell(ev.Repeated(1, 2, 1)) == []
    seat.fold(1)
    seat.tell(ev.FoldDone(1, 1.0))
    assert sent(seat.tell(ev.Repeated(1, 2, 1)), m.Acknowledged, "w1")


def test_messages_of_non_members_and_old_incarnations_are_ignored() -> None:
    seat = Seat().begin()
    assert seat.tell(ev.Contributed(0, 99, 1, 1)) == []
    assert seat.tell(ev.Repeated(7, 1, 1)) == []
    assert seat.tell(m.Pull(worker=0, incarnation=99, round=0)) == []


def test_members_are_enlisted_only_when_they_changed() -> None:
    seat = Seat().begin()
    assert of(seat.fold(1), fx.Enlist) == []
    seat.tell(ev.FoldDone(1, 1.0))
    again = m.MemberSpec(1, 9, "bert")
    assert of(seat.fold(2, members=(again,)), fx.Enlist) == [fx.Enlist((again,))]


def test_a_fold_of_an_old_term_or_during_a_fold_is_ignored() -> None:
    seat = Seat().begin()
    assert seat.tell(m.Fold(term=0, round=1)) == []
    seat.fold(1)
    assert seat.fold(1) == []
    assert seat.tell(ev.FoldDone(7, 1.0)) == []


def test_the_next_fold_writes_into_a_spare_slot_if_there_is_a_reader() -> None:
    seat = Seat().begin()
    seat.fold(1, (0,))
    seat.tell(ev.FoldDone(1, 1.0))
    assert of(seat.fold(2), fx.StartFold)[0].slot != 0
    seat.tell(ev.FoldDone(2, 1.0))


def test_a_version_is_free_when_its_reader_has_copied_it_contributed_or_gone() -> None:
    for event in (
        m.Pulled(worker=0, incarnation=1, round=1),
        ev.Sent((0,), 1),
        ev.Contributed(0, 1, 1, 2, version=1),
        ev.LinkClosed("w0", "gone"),
    ):
        seat = Seat().begin()
        seat.fold(1, (0,))
        seat.tell(ev.FoldDone(1, 1.0))
        seat.tell(event)
        assert of(seat.fold(2), fx.StartFold)[0].slot == 0, event


def test_a_version_is_free_when_it_was_sent_to_all_readers() -> None:
    seat = Seat().begin()
    seat.fold(1, (0, 1))
    seat.tell(ev.FoldDone(1, 1.0))
    seat.tell(ev.Sent((0,), 1))
    assert of(seat.fold(2), fx.StartFold)[0].slot != 0, "one of the two still reads it"
    seat = Seat().begin()
    seat.fold(1, (0, 1))
    seat.tell(ev.FoldDone(1, 1.0))
    seat.tell(ev.Sent((0, 1), 1))
    assert of(seat.fold(2), fx.StartFold)[0].slot == 0


def test_a_pull_is_answered_when_the_version_is_there() -> None:
    seat = Seat().begin()
    pull = m.Pull(worker=1, incarnation=2, round=1)
    assert of(seat.tell(pull), fx.Publish) == []
    seat.fold(1)
    (publish,) = of(seat.tell(ev.FoldDone(1, 1.0)), fx.Publish)
    assert (publish.worker, publish.round) == (1, 1)


def test_a_pull_during_a_fold_waits_for_it() -> None:
    seat = Seat().begin()
    seat.fold(1)
    assert of(seat.tell(m.Pull(worker=1, incarnation=2, round=0)), fx.Publish) == []
    assert of(seat.tell(ev.FoldDone(1, 1.0)), fx.Publish)[0].round == 1


def test_a_version_in_flight_is_not_published_again() -> None:
    """If the version were published twice, the `Sent` of the first answer would free it while the
    second answer is being read."""
    seat = Seat().begin()
    pull = m.Pull(worker=1, incarnation=2, round=0)
    assert of(seat.tell(pull), fx.Publish)
    assert of(seat.tell(pull), fx.Publish) == []
    seat.tell(ev.Sent((1,), 0))
    assert of(seat.tell(pull), fx.Publish)


def test_plain_addition_grows_the_next_version_beside_the_current_one() -> None:
    seat = Seat("addition").begin()
    first = of(seat.fold(1, (0,)), fx.StartFold)[0]
    seat.tell(ev.FoldDone(1, 1.0))
    second = of(seat.fold(2), fx.StartFold)[0]
    assert second.slot == first.fill != first.slot


def test_stop_ends_the_server() -> None:
    (end,) = Seat().begin().tell(m.Stop(term=1, reason=refused("the job is over"), failed=True))
    assert end.failed and in_words(end.reason) == "the job is over"


def test_why_names_the_workers_that_have_not_arrived() -> None:
    seat = Seat().begin()
    seat.tell(ev.Contributed(0, 1, 1, 1))
    assert seat.why() == "round 1 waits for w1"


# -- kind statistics -------------------------------------------------------------------------------


def acknowledged(effects: list) -> list[tuple[int, int]]:
    return [(ack.worker, ack.sequence) for ack in sent(effects, m.Acknowledged)]


def test_a_contribution_is_acknowledged_when_a_fold_has_named_it() -> None:
    seat = Seat(kind="statistics").begin()
    seat.tell(ev.Contributed(0, 1, 1, 1))
    seat.tell(ev.Contributed(1, 2, 1, 1))
    rows = (m.Row(0, 1, 1), m.Row(1, 2, 0))
    (start,) = of(seat.fold(1, rows=rows), fx.StartFold)
    assert start.rows == rows
    assert acknowledged(seat.tell(ev.FoldDone(1, 1.0))) == [(0, 1)]
    seat.fold(2, rows=(m.Row(0, 1, 1), m.Row(1, 2, 1)))
    assert acknowledged(seat.tell(ev.FoldDone(2, 1.0))) == [(1, 1)]


def test_a_contribution_that_came_before_the_fold_is_not_acknowledged_unless_it_was_named() -> None:
    seat = Seat(kind="statistics").begin()
    seat.tell(ev.Contributed(0, 1, 1, 1))
    seat.fold(1, rows=(m.Row(0, 1, 1), m.Row(1, 2, 0)))
    seat.tell(ev.FoldDone(1, 1.0))
    # a contribution that was added before the fold of round 1, and is reported after it
    late = seat.tell(ev.Contributed(1, 2, 1, 1))
    assert acknowledged(late) == []
    assert [arrived.worker for arrived in sent(late, m.Arrived, "lead")] == [1]
    seat.fold(2, rows=(m.Row(0, 1, 1), m.Row(1, 2, 1)))
    assert acknowledged(seat.tell(ev.FoldDone(2, 1.0))) == [(1, 1)]


def moved(routing: int, *routes: m.Route) -> m.Place:
    return m.Place(
        term=1,
        routing=routing,
        spec=spec((200,)),
        routes=routes or ROUTES,
        members=(ANNA, BERT),
        fresh=False,
    )


def test_new_routes_do_not_acknowledge_a_contribution_that_no_fold_has_named() -> None:
    """Another server may become the primary of a slice. Then the worker must still have the
    contribution, in order to send it again."""
    seat = Seat(kind="statistics").begin()
    seat.tell(ev.Contributed(0, 1, 1, 1))
    seat.tell(ev.Contributed(1, 2, 1, 1))
    seat.fold(1, rows=(m.Row(0, 1, 1), m.Row(1, 2, 0)))
    seat.tell(ev.FoldDone(1, 1.0))
    seat.tell(moved(2))
    effects = seat.tell(ev.Rerouted(2, 1, (m.Row(0, 1, 1), m.Row(1, 2, 1)), round=2))
    assert sent(effects, m.Placed, "lead") and acknowledged(effects) == []
    seat.fold(2, rows=(m.Row(0, 1, 1), m.Row(1, 2, 1)))
    assert acknowledged(seat.tell(ev.FoldDone(2, 1.0))) == [(1, 1)]


def test_a_fold_that_a_slice_has_not_made_acknowledges_nothing() -> None:
    """This server has folded round 1. Then it becomes the primary of slice 1, to which the fold was
    not applied, and the contribution comes again for that slice."""
    seat = Seat(kind="statistics").begin()
    seat.tell(ev.Contributed(0, 1, 1, 1))
    rows = (m.Row(0, 1, 1), m.Row(1, 2, 0))
    seat.fold(1, rows=rows)
    seat.tell(ev.FoldDone(1, 1.0))
    seat.tell(moved(2, m.Route(0), m.Route(0, since=2), m.Route(0)))
    lacking = (m.Row(0, 1, 0), m.Row(1, 2, 0))
    assert acknowledged(seat.tell(ev.Rerouted(2, 0, lacking, round=2))) == []
    again = seat.tell(ev.Contributed(0, 1, 1, 2))
    assert sent(again, m.Arrived, "lead") and acknowledged(again) == []
    seat.fold(1, rows=rows)
    assert acknowledged(seat.tell(ev.FoldDone(1, 1.0))) == [(0, 1)]


def test_a_replica_gets_the_state_of_slices_when_the_fold_that_writes_to_them_is_done() -> None:
    server = ServerMachine(0, m.JobSpec(job="j", servers=2, replicas=1))
    servers = tuple(m.ServerSpec(number, m.Address("", 0, "", ""), 1) for number in range(2))
    routes = (m.Route(0, (1,)),)
    for event in (
        m.Place(term=1, routing=1, spec=spec((200,)), routes=routes, servers=servers),
        ev.Linked(1, 1),
        m.Fold(term=1, round=0, members=(ANNA, BERT)),
        m.Fold(term=1, round=1, members=(ANNA, BERT)),
    ):
        effects = server.handle(event, 1)
    assert of(effects, fx.StartFold)
    assert not server.handle(m.Fetch(server=1, routing=1), 1)
    assert [send.to for send in of(server.handle(ev.FoldDone(1, 1.0), 1), fx.SendState)] == [1]


def test_a_fold_under_way_does_not_acknowledge_a_later_incarnation() -> None:
    """The worker bert joins again while the fold waits for a replica. Its sequence numbers begin
    anew."""
    server = ServerMachine(0, m.JobSpec(job="j", servers=2, replicas=1, kind="statistics"))
    servers = tuple(m.ServerSpec(number, m.Address("", 0, "", ""), 1) for number in range(2))

    def place(routing: int, *members: m.MemberSpec) -> m.Place:
        routes = (m.Route(0, (1,)),)
        fields = {"routes": routes, "servers": servers, "members": members, "fresh": routing == 1}
        return m.Place(term=1, routing=routing, spec=spec((200,)), **fields)

    rows = (m.Row(0, 1, 0), m.Row(1, 2, 2))
    for event in (
        place(1, ANNA, BERT),
        ev.Linked(1, 1),
        m.Fold(term=1, round=0, members=(ANNA, BERT)),
        ev.Contributed(1, 2, 1, 1),
        ev.Contributed(1, 2, 2, 1),
        m.Fold(term=1, round=1, members=(ANNA, BERT), rows=rows),
        ev.FoldDone(1, 1.0),
        place(2, ANNA, m.MemberSpec(1, 3, "bert")),
        ev.Rerouted(2, 1, (m.Row(0, 1, 0), m.Row(1, 3, 0)), round=2),
        ev.Contributed(1, 3, 1, 2),
    ):
        server.handle(event, 1)
    effects = server.handle(m.Copied(routing=2, server=1, rows=(m.Row(-1, 0, 1),)), 1)
    assert sent(effects, m.Folded, "lead") and acknowledged(list(effects)) == []


def test_a_server_without_a_slice_reports_it_until_it_gets_one() -> None:
    server = ServerMachine(2, m.JobSpec(job="j", servers=2))

    def reports(routing: int, *routes: m.Route) -> list[str]:
        news = m.Place(term=1, routing=routing, spec=spec((200,)), routes=routes, fresh=False)
        effects = list(server.handle(news, 1))
        for effect in of(effects, fx.Reroute):
            effects += server.handle(ev.Rerouted(effect.routing, 0, ()), 1)
        return [note.what for note in of(effects, fx.Note)]

    assert reports(1, *ROUTES) == [fx.NO_SLICE]
    assert reports(2, *ROUTES) == []
    assert reports(3, m.Route(0, (), (2,)), *ROUTES[1:]) == [fx.FIRST_SLICES]
    assert reports(4, *ROUTES) == [], "it is drained"


def test_a_server_that_cannot_leave_reports_why() -> None:
    seat = Seat().begin()
    (note,) = seat.tell(m.Stays(term=1, reason=refused("the job is ending")))
    words = report_in_words(note.what, ("s1",), note.fields)
    assert words == "s1 stays in the job: the job is ending"

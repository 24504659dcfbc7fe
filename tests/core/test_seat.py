"""The lead's seat: a process learns it with a term, sends messages for the lead to the process that
has the seat, and ignores the orders of an earlier lead."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.names import LEAD
from polyrhythm.core.seat import UNKNOWN_SEAT, Seat
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import refused
from tests.core.stage import ADDRESS, of, sent, spec

OVER = refused("the job is over")
SERVERS = (m.ServerSpec(0, ADDRESS, 1), m.ServerSpec(1, ADDRESS, 1))
ROUTES = (m.Route(0),)
JOB = m.JobSpec(job="j", servers=2)


def server(term: int = 1, seat: int = 0) -> ServerMachine:
    """Server 1 of two."""
    made = ServerMachine(1, JOB)
    made.handle(place(1, term, seat), 1)
    return made


def place(routing: int, term: int, seat: int) -> m.Place:
    return m.Place(term=term, seat=seat, routing=routing, spec=spec(), routes=ROUTES)


def worker(term: int = 1, seat: int = 0) -> WorkerMachine:
    made = WorkerMachine("anna")
    who = {"worker": 3, "incarnation": 4, "term": term}
    for event in (
        m.Admitted(**who, job=JOB, servers=SERVERS, seat=seat),
        ev.Attaching(spec()),
        ev.Linked(0, 1),
        ev.Linked(1, 1),
        m.Routing(**who, routing=1, routes=ROUTES, servers=SERVERS, seat=seat),
    ):
        made.handle(event, 1)
    return made


def test_a_message_for_the_lead_goes_to_the_process_that_has_the_seat() -> None:
    assert Seat(2, 1).process_of(LEAD) == "s2"
    assert [Seat(2, 1).process_of(name) for name in ("s0", "s2", "w2")] == ["s0", "s2", "w2"]


def test_a_seat_changes_with_a_message_of_the_same_or_a_later_term_only() -> None:
    before = Seat(0, 2)
    assert before.after(place(1, 3, 1)) == Seat(1, 3)
    assert before.after(place(1, 1, 1)) == before
    assert UNKNOWN_SEAT.after(place(1, 1, 0)) == Seat(0, 1)


def test_a_server_learns_the_seat_from_its_routes() -> None:
    made = server()
    assert made.seat == Seat(0, 1)
    made.handle(place(2, 2, 2), 1)
    assert made.seat == Seat(2, 2)
    (beat,) = of(list(made.handle(ev.Tick(), made.wake_at())), fx.Beat)
    assert beat.message.term == 2, "its reports carry the term"


def test_a_worker_learns_the_seat_from_its_admission_and_its_routes() -> None:
    made = worker()
    assert made.seat == Seat(0, 1)
    who = {"worker": 3, "incarnation": 4}
    made.handle(m.Routing(**who, term=2, routing=2, routes=ROUTES, servers=SERVERS, seat=1), 1)
    assert made.seat == Seat(1, 2)
    (report,) = sent(list(made.handle(ev.Reporting({"a": 1.0}), 1)), m.Report, LEAD)
    assert report.term == 2


def test_a_worker_that_rejoins_remembers_the_seat() -> None:
    made = worker(term=2, seat=1)
    evicted = m.Evicted(term=2, worker=3, incarnation=4, reason=refused("silent"))
    assert of(list(made.handle(evicted, 1)), fx.Rejoin)
    assert made.seat == Seat(1, 2)
    late = m.Admitted(term=1, worker=3, incarnation=9, job=JOB, servers=SERVERS)
    assert made.handle(late, 2) == [] and made.state is Phase.JOINING


@pytest.mark.parametrize("term", [1, 2])
def test_a_server_ignores_the_orders_of_an_earlier_lead(term: int) -> None:
    effects = server(term=2).handle(m.Stop(term=term, reason=OVER), 1)
    assert bool(of(list(effects), fx.End)) == (term == 2)
    assert bool(server(term=2).handle(place(9, term, 0), 1)) == (term == 2)


@pytest.mark.parametrize("term", [1, 2])
def test_a_worker_ignores_the_orders_of_an_earlier_lead(term: int) -> None:
    effects = worker(term=2).handle(m.Stop(term=term, reason=OVER), 1)
    assert bool(of(list(effects), fx.Fail)) == (term == 2)


def test_the_end_of_a_link_is_the_end_of_the_lead_only_if_the_peer_has_the_seat() -> None:
    (fail,) = of(list(worker(seat=0).handle(ev.LinkClosed("s0", "reset"), 2)), fx.Fail)
    assert fail.reason.fields["peer"] == "the lead (s0)"
    assert worker(seat=1).handle(ev.LinkClosed("s0", "reset"), 2) == [], "the lead will say more"
    for seat in (0, 2):
        ends = of(list(server(seat=seat).handle(ev.LinkClosed("s0", "reset"), 2)), fx.End)
        assert [end.reason.code for end in ends] == (["lead-gone"] if seat == 0 else [])

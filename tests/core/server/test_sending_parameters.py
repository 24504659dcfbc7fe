"""A server sends its parameters to the lead's process, which saves the model. It sends only slices
of which it is the primary, and no slice to which a fold is writing."""

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Effect
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.wire import messages as m
from tests.core.stage import of, spec

ROUTES = (m.Route(0), m.Route(1), m.Route(0))
MEMBERS = (m.MemberSpec(0, 1, "anna"),)


class Seat:
    """Server 0 of two, with slices 0 and 2; round 1 is open."""

    def __init__(self, sync: str = "bsp") -> None:
        self.server = ServerMachine(0, m.JobSpec(job="j", servers=2, sync=sync))
        self.tell(m.Place(term=1, routing=1, spec=spec((200,)), routes=ROUTES))
        self.tell(ev.SliceSeeded(0, 1))
        self.tell(ev.SliceSeeded(2, 1))
        self.tell(m.Fold(term=1, round=0, members=MEMBERS))

    def tell(self, event: object) -> list[Effect]:
        effects = list(self.server.handle(event, 1))
        self.server.check()
        return effects

    def collect(self, *slices: int, copied: bool = False) -> list[Effect]:
        return self.tell(m.Collect(term=1, number=1, slices=slices, copied=copied))


def test_only_slices_of_this_primary_are_sent() -> None:
    seat = Seat()
    assert seat.collect(0, 1, 2) == [fx.SendParameters(1, (0, 2))]
    assert seat.collect(1) == [], "the lead asks the other server for it"


def test_parameters_are_sent_when_the_fold_that_was_ordered_before_is_done() -> None:
    seat = Seat()
    assert of(seat.tell(m.Fold(term=1, round=1, members=MEMBERS)), fx.StartFold)
    assert seat.collect(0) == []
    assert seat.collect(2) == []
    sends = of(seat.tell(ev.FoldDone(1, 2.0)), fx.SendParameters)
    assert sends == [fx.SendParameters(1, (0,)), fx.SendParameters(1, (2,))]


def test_a_server_that_folds_on_arrival_folds_nothing_after_the_request() -> None:
    seat = Seat("asp")
    assert seat.collect(0) == [fx.Freeze(), fx.SendParameters(1, (0,))]
    assert seat.collect(2) == [fx.SendParameters(1, (2,))], "it is frozen already"


def test_copies_are_made_and_sent_while_training_goes_on() -> None:
    seat = Seat("asp")
    assert seat.tell(m.Capture(term=1, number=2)) == [fx.CopyParameters(2)]
    effects = seat.collect(0, copied=True)
    assert effects == [fx.SendParameters(1, (0,), copied=True)], "the server must not be frozen"

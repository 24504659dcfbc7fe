"""A routing epoch that is followed by the next before a server was in it: others were."""

from typing import Any

from stage import ADDRESS, of, spec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.server import ServerMachine
from polyrhythm.wire import messages as m


def place(routing: int, *routes: m.Route, fresh: bool = False) -> m.Place:
    servers = tuple(m.ServerSpec(number, ADDRESS, 1) for number in range(3))
    return m.Place(
        term=1, routing=routing, spec=spec(), routes=routes, servers=servers, fresh=fresh
    )


def test_what_was_asked_in_it_is_answered() -> None:
    """s2 is told to learn slice 0 in epoch 2, and asks in that epoch; epoch 3, which changes nothing
    between the two, comes before s1 is in epoch 2."""
    job = m.JobSpec(job="j", servers=3, replicas=1, slice_nbytes=128)
    machine = ServerMachine(1, job)

    def tell(event: Any) -> list[fx.Effect]:
        effects = list(machine.handle(event, 1))
        machine.check()
        return effects

    tell(place(1, m.Route(1, (0,)), m.Route(0, (1,)), fresh=True))
    for peer in (0, 2):
        tell(ev.Linked(peer, 1))
    tell(place(2, m.Route(1, (0,), (2,)), m.Route(0, (1,))))
    tell(place(3, m.Route(1, (0,), (2,)), m.Route(0, (), (2,))))
    asked = m.Fetch(routing=2, server=2, held=(m.Stamp(0, 0, 0),))
    assert of(tell(asked), fx.SendState) == [], "it is in neither yet"
    tell(ev.Rerouted(2, 0, ()))
    effects = tell(ev.Rerouted(3, 0, ()))
    assert of(effects, fx.SendState) == [fx.SendState(2, (m.Stamp(0, 0, 0),), 2)]
    effects = tell(m.Adopted(routing=2, server=2))
    (caught_up,) = [e.message for e in of(effects, fx.Send) if isinstance(e.message, m.CaughtUp)]
    assert caught_up.peer == 2

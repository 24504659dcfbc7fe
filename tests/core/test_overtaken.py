"""What servers do if a routing epoch is replaced by the next one before every server has applied
it."""

from collections.abc import Callable
from typing import Any

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.wire import messages as m
from tests.core.stage import ADDRESS, of, spec

BOTH = (m.MemberSpec(0, 1, "w"), m.MemberSpec(1, 1, "v"))


def place(routing: int, *routes: m.Route, fresh: bool = False) -> m.Place:
    return m.Place(
        term=1,
        routing=routing,
        spec=spec(),
        routes=routes,
        servers=tuple(m.ServerSpec(number, ADDRESS, 1) for number in range(3)),
        members=BOTH,
        fresh=fresh,
    )


Tell = Callable[[Any], list[fx.Effect]]


def primary(sync: str) -> Tell:
    """Server s1, which is the primary of slice 0. Server s0 has a replica of that slice."""
    machine = ServerMachine(
        1, m.JobSpec(job="j", servers=3, replicas=1, slice_nbytes=128, sync=sync)
    )

    def tell(event: Any) -> list[fx.Effect]:
        effects = list(machine.handle(event, 1))
        machine.check()
        return effects

    tell(place(1, m.Route(1, (0,)), m.Route(0, (1,)), fresh=True))
    for peer in (0, 2):
        tell(ev.Linked(peer, 1))
    return tell


def caught_up(effects: list[fx.Effect]) -> list[tuple[int, int]]:
    """The learner and the epoch of each `CaughtUp` that the server sends."""
    said = [effect.message for effect in of(effects, fx.Send)]
    return [(word.peer, word.routing) for word in said if isinstance(word, m.CaughtUp)]


def test_a_request_of_an_overtaken_epoch_is_answered() -> None:
    """In epoch 2, s2 is told to learn slice 0 and asks s1 for it. Epoch 3 comes before s1 has
    applied epoch 2. Epoch 3 changes nothing between s1 and s2, so s1 must answer the request of
    epoch 2."""
    tell = primary("bsp")
    tell(place(2, m.Route(1, (0,), (2,)), m.Route(0, (1,))))
    tell(place(3, m.Route(1, (0,), (2,)), m.Route(0, (), (2,))))
    asked = m.Fetch(routing=2, server=2, held=(m.Stamp(0, 0, 0),))
    assert of(tell(asked), fx.SendState) == [], "it is in neither yet"
    tell(ev.Rerouted(2, 0, ()))
    effects = tell(ev.Rerouted(3, 0, ()))
    assert of(effects, fx.SendState) == [fx.SendState(2, (m.Stamp(0, 0, 0),), 2)]
    effects = tell(m.Adopted(routing=2, server=2))
    assert caught_up(effects) == [(2, 3)]


def test_a_learner_catches_up_before_a_fold_is_on_the_replica() -> None:
    """s1 has applied epoch 2 but has not reported `Placed`, because its replica has not confirmed a
    fold yet. Its report that the learner caught up must name epoch 2: epoch 1 had no learner."""
    tell = primary("bsp")
    tell(m.Fold(term=1, routing=1, round=1, readers=(0,), members=BOTH))
    tell(ev.FoldDone(1, 1.0))
    tell(place(2, m.Route(1, (0,), (2,)), m.Route(0, (1,))))
    tell(ev.Rerouted(2, 1, ()))
    folded = (m.Row(-1, 0, 1),)
    effects = tell(m.Adopted(routing=2, server=2, rows=folded))
    assert not [e for e in of(effects, fx.Send) if isinstance(e.message, m.Placed)]
    assert caught_up(effects) == [(2, 2)]
    assert caught_up(tell(m.Copied(routing=2, server=2, rows=folded))) == [], "once is enough"


def test_a_learner_must_have_the_contributions_of_a_worker_that_left() -> None:
    """The contribution of the worker may be acknowledged already, because acknowledgements do not
    wait for learners. So a learner without this contribution has not caught up."""
    tell = primary("asp")
    tell(place(2, m.Route(1, (0,), (2,)), m.Route(0, (1,))))
    tell(ev.Rerouted(2, 0, ()))
    tell(ev.Contributed(1, 1, 1, 0))
    assert caught_up(tell(m.Adopted(routing=2, server=2))) == [], "it lacks a contribution"
    tell(m.Fold(term=1, routing=2, view=1, round=1, members=BOTH[:1]))
    other = (m.Row(0, 1, 1),)
    assert caught_up(tell(m.Copied(routing=2, server=2, rows=other))) == [], "it lacks it still"
    assert caught_up(tell(m.Copied(routing=2, server=2, rows=(m.Row(1, 1, 1),)))) == [(2, 2)]


def test_a_row_of_a_worker_covers_its_earlier_incarnations() -> None:
    tell = primary("asp")
    tell(place(2, m.Route(1, (0,), (2,)), m.Route(0, (1,))))
    tell(ev.Rerouted(2, 0, ()))
    tell(ev.Contributed(1, 1, 5, 0))
    later = (m.Row(1, 2, 1),)
    assert caught_up(tell(m.Adopted(routing=2, server=2, rows=later))) == [(2, 2)]


def test_a_promoted_server_acknowledges_only_what_all_its_slices_have() -> None:
    """A contribution to slice 0 of s1 lacks only the confirmation of s2. Then s2 is lost, and s1
    becomes the primary of slice 1 too. s1 must not acknowledge the contribution before s0 confirms
    that its copy of slice 1 contains it."""
    machine = ServerMachine(
        1, m.JobSpec(job="j", servers=3, replicas=2, slice_nbytes=128, sync="asp")
    )

    def tell(event: Any) -> list[fx.Effect]:
        effects = list(machine.handle(event, 1))
        machine.check()
        return effects

    def said(effects: list[fx.Effect]) -> list[m.Message]:
        return [
            effect.message
            for effect in of(effects, fx.Send)
            if isinstance(effect.message, m.Acknowledged | m.Arrived)
        ]

    tell(place(1, m.Route(1, (2, 0)), m.Route(2, (1, 0)), fresh=True))
    for peer in (0, 2):
        tell(ev.Linked(peer, 1))
    row = (m.Row(0, 1, 1),)
    tell(m.Fold(term=1, routing=1, round=0, members=BOTH))
    tell(ev.Contributed(0, 1, 1, 1))
    assert said(tell(m.Copied(routing=1, server=0, rows=row))) == []
    tell(place(2, m.Route(1, (0,)), m.Route(1, (0,), since=2)))
    assert said(tell(ev.Rerouted(2, 1, row))) == []
    words = said(tell(m.Adopted(routing=2, server=0, rows=row)))
    assert [type(word) for word in words] == [m.Acknowledged, m.Arrived]


def test_a_fold_names_members_that_joined_after_the_routes_were_made() -> None:
    tell = primary("asp")
    tell(place(2, m.Route(1, (0,), (2,)), m.Route(0, (1,))))
    third = (*BOTH, m.MemberSpec(2, 9, "u"))
    tell(m.Fold(term=1, routing=2, view=1, round=1, members=third))
    assert of(tell(ev.Rerouted(2, 0, ())), fx.Enlist) == [], "they stay the members"


def test_a_server_does_not_report_what_a_replica_lacks() -> None:
    tell = primary("asp")
    tell(m.Fold(term=1, routing=1, round=0, members=BOTH))
    tell(ev.Contributed(0, 1, 1, 1))
    tell(place(2, m.Route(1, (0,)), m.Route(0, (1,))))
    in_it = (m.Row(0, 1, 1),)
    (placed,) = [
        effect.message
        for effect in of(tell(ev.Rerouted(2, 1, in_it)), fx.Send)
        if isinstance(effect.message, m.Placed)
    ]
    assert placed.rows == (m.Row(0, 1, 0),), "s0 has not confirmed it"


def test_no_fold_is_finished_while_slices_move() -> None:
    """If new routes come during a fold, the server finishes the fold after it has applied the
    routes, with the slices that it has then."""
    tell = primary("bsp")
    tell(m.Fold(term=1, routing=1, round=1, readers=(0,), members=BOTH))
    tell(ev.FoldDone(1, 1.0))
    tell(place(2, m.Route(1, (0,), (2,)), m.Route(0, (1,))))
    folded = m.Copied(routing=1, server=0, rows=(m.Row(-1, 0, 1),))
    assert of(tell(folded), fx.Publish) == []
    effects = tell(ev.Rerouted(2, 1, ()))
    assert [effect.round for effect in of(effects, fx.Publish)] == [1]


def test_a_pure_replica_learns_the_members_before_it_reports_its_rows() -> None:
    """A pure replica gets no `Fold`, so it takes the members from `Place`."""
    machine = ServerMachine(2, m.JobSpec(job="j", servers=3, replicas=1, slice_nbytes=128))
    first = m.Place(term=1, routing=1, spec=spec(), routes=(m.Route(1, (2,)),), fresh=True)
    machine.handle(first, 1)
    effects = list(machine.handle(place(2, m.Route(2, ())), 1))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(fx.Enlist) < kinds.index(fx.Reroute)


def test_a_copy_that_was_dropped_in_an_overtaken_epoch_is_fetched_anew() -> None:
    tell = primary("bsp")
    tell(place(2, m.Route(1, (0,)), m.Route(0, (2,))))
    tell(place(3, m.Route(1, (0,)), m.Route(0, (2,), (1,))))
    tell(ev.Rerouted(2, 0, ()))
    assert of(tell(ev.Rerouted(3, 0, ())), fx.FetchState) == [fx.FetchState(0, (1,), 3)]

"""While a server copies its slices for a checkpoint, folds and new routes wait. Then the server
handles them in the order in which the lead has sent them."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.wire import messages as m
from tests.core.stage import of, sent, spec

ANNA, BERT = m.MemberSpec(0, 1, "anna"), m.MemberSpec(1, 2, "bert")
CARL = m.MemberSpec(2, 3, "carl")
BEFORE = (m.Route(0), m.Route(1), m.Route(0))
AFTER = (m.Route(0), m.Route(0, since=2), m.Route(0))
CUT = m.Cut(term=1, round=1, number=1)
FOLD = m.Fold(term=1, round=2, members=(ANNA, BERT), rows=(m.Row(0, 1, 1), m.Row(1, 2, 1)), view=2)


def place(routing: int, routes: tuple[m.Route, ...]) -> m.Place:
    members, fresh = (ANNA, BERT), routing == 1
    fields = {"routes": routes, "members": members, "fresh": fresh}
    return m.Place(term=1, routing=routing, spec=spec((200,)), **fields)


class Copying:
    """Server 0 of two, with slices 0 and 2. It copies them for a checkpoint after round 1."""

    def __init__(self, sync: str = "bsp", kind: str = "gradient") -> None:
        self.server = ServerMachine(0, m.JobSpec(job="j", servers=2, sync=sync, kind=kind))
        self.tell(place(1, BEFORE))
        self.tell(ev.SliceSeeded(0, 1))
        self.tell(ev.SliceSeeded(2, 1))
        self.tell(m.Fold(term=1, round=0, members=(ANNA, BERT)))
        if sync == "bsp":
            self.tell(m.Fold(term=1, round=1, members=(ANNA, BERT)))
            self.tell(ev.FoldDone(1, 0.0))
        assert of(self.tell(CUT), fx.TakeCut)

    def tell(self, event: object) -> list:
        effects = list(self.server.handle(event, 1))
        self.server.check()
        return effects

    def copied(self) -> list:
        return self.tell(ev.CutCopied(1))


@pytest.mark.parametrize("kind", ["gradient", "statistics"])
def test_a_fold_that_waits_for_a_cut_is_made_with_the_slices_for_which_it_was_ordered(
    kind: str,
) -> None:
    """Slice 1 moves to this server. The fold counts contributions to this slice that workers have
    not sent to this server yet."""
    copying = Copying(kind=kind)
    assert copying.tell(FOLD) == []
    assert copying.tell(place(2, AFTER)) == []
    effects = copying.copied()
    assert [fold.round for fold in of(effects, fx.StartFold)] == [2]
    assert not of(effects, fx.Reroute)
    effects = copying.tell(ev.FoldDone(2, 1.0))
    assert [folded.round for folded in sent(effects, m.Folded, "lead")] == [2]
    assert [reroute.routing for reroute in of(effects, fx.Reroute)] == [2]


def test_routes_that_wait_for_a_cut_are_applied_when_it_is_copied() -> None:
    copying = Copying()
    assert copying.tell(place(2, AFTER)) == []
    assert [reroute.routing for reroute in of(copying.copied(), fx.Reroute)] == [2]


def test_a_fold_that_waits_for_a_cut_is_made_when_it_is_copied() -> None:
    copying = Copying()
    assert copying.tell(FOLD) == []
    assert [fold.round for fold in of(copying.copied(), fx.StartFold)] == [2]


def test_on_arrival_members_that_are_named_during_a_cut_stay_though_routes_wait_too() -> None:
    """Without rounds the lead may order a fold with a new list of members while servers still apply
    routes. The routes came with an earlier list of members, which must not replace the new one."""
    copying = Copying(sync="asp")
    assert copying.tell(place(2, AFTER)) == []
    newer = m.Fold(term=1, round=1, members=(ANNA, BERT, CARL), view=3)
    assert copying.tell(newer) == []
    effects = copying.copied()
    assert [reroute.routing for reroute in of(effects, fx.Reroute)] == [2]
    assert [enlist.members for enlist in of(effects, fx.Enlist)] == [(ANNA, BERT, CARL)]
    assert copying.server.state.is_member(2, 3)

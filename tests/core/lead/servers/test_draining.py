"""A server that asks to leave, because its machine will be removed: its slices move, unless it has to
stay."""

from typing import Any

from polyrhythm.core import effects as fx
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, of, sent


def drain(stage: Stage, server: int) -> list[Effect]:
    return stage.tell(m.Drain(server=server, routing=stage.routing))


def notes(effects: list[Effect]) -> list[str]:
    return [note.what for note in of(effects, fx.Note)]


def everywhere(stage: Stage, kind: type[m.Message], **fields: Any) -> list[Effect]:
    """Send this message from every server. Returns all effects."""
    effects: list[Effect] = []
    for server in range(stage.job.servers):
        effects += stage.tell(kind(server=server, routing=stage.routing, **fields))
    return effects


def test_the_lead_takes_a_checkpoint_if_its_own_server_must_leave() -> None:
    stage = Stage(workers=2, servers=2, store="store").begin()
    effects = drain(stage, 0)
    assert not sent(effects, m.Stop), "the lead cannot move"
    for worker in (0, 1):
        stage.contribute(worker, 1)
    effects = stage.from_servers(m.Folded, round=1, weight=2.0)
    assert len(sent(effects, m.Cut)) == 2


def test_without_a_store_the_server_of_the_lead_stays() -> None:
    stage = Stage(workers=2, servers=2).begin()
    assert not drain(stage, 0)


def test_a_server_that_asks_before_the_others_have_joined_leaves_at_once() -> None:
    stage = Stage(servers=0, workers=1)
    stage.lead = LeadMachine(m.JobSpec(job="j", servers=3))
    stage.server(0)
    stage.server(1)
    (stop,) = sent(drain(stage, 1), m.Stop)
    assert stop.reason.code == "drain-early"


def test_a_server_that_asks_before_round_1_holds_nothing_and_leaves_in_round_1() -> None:
    stage = Stage(workers=1, servers=2)
    effects = drain(stage, 1)
    assert notes(effects) == ["draining"] and not sent(effects, m.Stop)
    stage.hello("worker-0")
    placed = sent(stage.attach(0), m.Place)
    assert placed and all(route.holders == (0,) for route in placed[0].routes)
    effects = everywhere(stage, m.Placed) + everywhere(stage, m.Seeded)
    effects += everywhere(stage, m.Folded, round=0, weight=1.0) + everywhere(stage, m.Placed)
    (stop,) = sent(effects, m.Stop)
    assert stop.reason.code == "drained"

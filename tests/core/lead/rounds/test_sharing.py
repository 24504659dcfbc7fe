"""`--optimizer-on workers`: what the lead does when the parameters are only on the servers, or on nobody
any more."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, of, sent


def begin(workers: int, *, replicas: int) -> Stage:
    job = {"sync": "bsp", "optimizer_on": "workers", "respawn": True, "served": True}
    return Stage(workers=workers, servers=2, replicas=replicas, **job).begin()


def round_(stage: Stage, number: int, workers: int) -> list[Effect]:
    for worker in range(workers):
        stage.contribute(worker, number, number)
    return stage.folded(number)


def shared_with_a_joiner(replicas: int) -> Stage:
    """A job whose second round is on the servers because worker-2 has joined, and whose other workers
    are dead."""
    stage = begin(2, replicas=replicas)
    round_(stage, 1, 2)
    stage.hello("worker-2")
    stage.attach(2)
    assert sent(round_(stage, 2, 2), m.Share)
    stage.from_servers(m.Holding, round=2)
    stage.closed("w0")
    stage.closed("w1")
    return stage


def why_ended(effects: list[Effect]) -> list[str]:
    return [end.reason.code for end in of(effects, fx.End)]


def test_the_job_ends_when_the_only_servers_that_had_the_parameters_are_replaced() -> None:
    """The replicas of the server that dies have only sums, and the joiner may not have read all."""
    stage = shared_with_a_joiner(replicas=1)
    stage.closed("s1")
    effects = stage.tell(m.Placed(server=0, routing=stage.routing, round=2))
    assert why_ended(effects) == ["state-lost"]


def test_the_job_ends_when_its_workers_die_during_a_fold() -> None:
    """Before the fold the servers had the parameters, after it nobody has them."""
    stage = begin(1, replicas=0)
    stage.contribute(0, 1, 1)
    assert not why_ended(stage.closed("w0"))
    assert why_ended(stage.folded(1)) == ["state-lost"]


@pytest.mark.parametrize("dead", [True, False])
def test_no_slice_moves_away_from_parameters_that_only_servers_have(*, dead: bool) -> None:
    stage = shared_with_a_joiner(replicas=0)
    if dead:
        stage.closed("w2")
    stage.tell(m.Drain(server=1))
    effects = stage.from_servers(m.Placed, round=2)
    effects += stage.tell(m.CaughtUp(server=1, peer=0, routing=stage.routing))
    effects += stage.from_servers(m.Placed, round=2)
    assert len(stage.lead.parts.routing.primaries) == 2 and not why_ended(effects)

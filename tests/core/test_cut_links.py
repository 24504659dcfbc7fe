"""A link breaks while the processes at both ends are alive."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import Reason
from tests.core.stage import Stage, of, sent

CUT = Reason("link-lost", {"name": "worker-0", "peer": "s1", "detail": "the link was cut"})


def lost(effects: list[fx.Effect]) -> list[int]:
    notes = of(effects, fx.Note)
    return [note.fields["server"] for note in notes if note.what == "server-lost"]


@pytest.mark.guarantee("servers-cut", policies=("bsp",), k=(1,))
def test_one_of_two_servers_that_lost_their_link_stays() -> None:
    stage = Stage(workers=2, servers=3, replicas=1).begin()
    stage.folded(0)
    told = {"routing": stage.routing, "peer_incarnation": 1, "detail": "the link broke"}
    assert lost(stage.tell(m.Unreachable(server=1, peer="s2", **told))) == [2]
    effects = stage.tell(m.Unreachable(server=2, peer="s1", **told))
    assert effects == [], "it is not in the job any more, so its report is ignored"


@pytest.mark.guarantee("worker-cut", policies=("bsp",), k=(0,))
def test_a_worker_may_rejoin_before_the_end_of_its_link_is_noticed() -> None:
    """The worker lost its link to a server, so it rejoins. Its link to the lead still exists."""
    stage = Stage(workers=2).begin()
    stage.folded(0)
    before = stage.incarnations[1]
    effects = stage.hello("worker-1", incarnation=before)
    assert [note.what for note in of(effects, fx.Note)] == ["left", "rejoined"]
    assert stage.incarnations[1] > before
    assert not of(effects, fx.End)


def test_another_worker_with_the_same_name_is_still_refused() -> None:
    stage = Stage(workers=2).begin()
    stage.folded(0)
    for incarnation in (0, stage.incarnations[1] + 1):
        (refusal,) = sent(stage.hello("worker-1", incarnation=incarnation), m.Refusal)
        assert "a worker with this name is in the job" in in_words(refusal.reason)


def test_the_only_worker_may_rejoin_too() -> None:
    stage = Stage(workers=1).begin()
    stage.folded(0)
    effects = stage.hello("worker-0", incarnation=stage.incarnations[0])
    assert not of(effects, fx.End)
    assert sent(effects, m.Admitted)


def test_a_job_waits_for_its_only_worker_that_leaves_in_order_to_rejoin() -> None:
    """The worker has lost its link to a server. Its old link to the lead ends before the hello on the
    new one comes."""
    stage = Stage(workers=1).begin()
    leave = m.Leave(**stage.who(0), reason=CUT, rejoins=True)
    assert not of(stage.tell(leave), fx.End)
    assert not of(stage.closed("w0"), fx.End)
    assert not of(stage.tick(4.0), fx.End)
    assert sent(stage.hello("worker-0"), m.Admitted)
    assert not of(stage.tick(60.0), fx.End)


def test_a_job_does_not_wait_long_for_a_worker_that_wanted_to_rejoin() -> None:
    stage = Stage(workers=1).begin()
    stage.tell(m.Leave(**stage.who(0), reason=CUT, rejoins=True))
    stage.closed("w0")
    (end,) = of(stage.tick(5.1), fx.End)
    assert end.failed and end.reason.code == "deserted"

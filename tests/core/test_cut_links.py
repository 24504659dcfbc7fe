"""A link breaks while the processes at both ends are alive."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, of, sent


def lost(effects: list[fx.Effect]) -> list[int]:
    notes = of(effects, fx.Note)
    return [note.fields["server"] for note in notes if note.what == "server-lost"]


@pytest.mark.guarantee("servers-cut", policies=("bsp",), k=(1,))
def test_one_of_two_servers_that_lost_their_link_stays() -> None:
    stage = Stage(workers=2, servers=3, replicas=1).begin()
    stage.folded(0)
    told = {"routing": stage.routing, "incarnation": 1, "detail": "the link broke"}
    assert lost(stage.tell(m.Unreachable(server=1, peer=2, **told))) == [2]
    effects = stage.tell(m.Unreachable(server=2, peer=1, **told))
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

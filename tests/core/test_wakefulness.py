"""A lead that was away itself suspects nobody for that time."""

import pytest
from stage import SECOND_NS, Stage, of, sent

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Effect
from polyrhythm.core.wakefulness import Wakefulness
from polyrhythm.wire import messages as m

BEAT_S = 0.5


def beats(stage: Stage, *workers: int, times: int = 5) -> None:
    """The lead's own server, and these workers."""
    for _ in range(times):
        stage.now_ns += round(BEAT_S * SECOND_NS)
        stage.tell(m.Alive(server=0))
        for worker in workers:
            stage.tell(m.Alive(**stage.who(worker)))


def begin() -> Stage:
    stage = Stage(workers=2, heartbeat_s=BEAT_S).begin()
    beats(stage, 0, 1)
    return stage


def away(effects: list[Effect]) -> list[float]:
    return [note.fields["seconds"] for note in of(effects, fx.Note) if note.what == "lead-away"]


def test_nobody_is_evicted_for_what_the_lead_missed() -> None:
    stage = begin()
    effects = stage.tick(60.0)
    assert sent(effects, m.Evicted) == []
    assert away(effects) == [pytest.approx(60.0 - BEAT_S)]
    assert away(stage.tick(0.0)) == [], "it is said once"


def test_its_own_server_may_be_heard_first() -> None:
    stage = begin()
    stage.now_ns += 60 * SECOND_NS
    assert len(away(stage.tell(m.Alive(server=0)))) == 1
    assert sent(stage.tick(0.0), m.Evicted) == []


def test_others_may_be_heard_first() -> None:
    stage = begin()
    stage.now_ns += 60 * SECOND_NS
    stage.tell(m.Alive(**stage.who(0)))
    assert sent(stage.tick(0.0), m.Evicted) == []
    beats(stage, 1, times=3)
    assert sent(stage.tick(0.0), m.Evicted) == []
    beats(stage, 1, times=2)
    assert sent(stage.tick(0.0), m.Evicted, "w0"), "it is not given the time twice"


def test_who_stays_silent_afterwards_is_evicted() -> None:
    stage = begin()
    stage.tick(60.0)
    beats(stage, 0, times=3)
    assert sent(stage.tick(0.0), m.Evicted) == []
    beats(stage, 0, times=2)
    (told,) = sent(stage.tick(0.0), m.Evicted)
    assert told.worker == 1


def test_what_it_missed_is_no_gap_between_heartbeats() -> None:
    stage = begin()
    stage.tick(60.0)
    beats(stage, 0, 1)
    beats(stage, 0, times=5)
    effects = stage.tick(0.0)
    (note,) = [note for note in of(effects, fx.Note) if note.what == "evicted"]
    assert note.fields["limit_s"] == pytest.approx(2.0, abs=0.3)


def test_servers_are_not_lost_either() -> None:
    stage = Stage(workers=1, servers=3, replicas=1, heartbeat_s=BEAT_S).begin()
    for _ in range(5):
        beats(stage, 0, times=1)
        for server in (1, 2):
            stage.tell(m.Alive(server=server))
    effects = stage.tick(60.0)
    assert len(away(effects)) == 1
    assert [note.what for note in of(effects, fx.Note)] == ["lead-away"]


def test_without_the_rule_everybody_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wakefulness, "away_ns", lambda self, now_ns: 0)
    assert {told.worker for told in sent(begin().tick(60.0), m.Evicted)} == {0, 1}


def test_a_heartbeat_that_is_a_little_late_is_nothing() -> None:
    wakefulness = Wakefulness(BEAT_S)
    assert wakefulness.away_ns(10 * SECOND_NS) == 0, "it has not begun"
    wakefulness.beat(10 * SECOND_NS)
    assert wakefulness.away_ns(11 * SECOND_NS) == 0
    assert wakefulness.away_ns(11 * SECOND_NS + 1) == SECOND_NS // 2 + 1

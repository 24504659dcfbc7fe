"""A lead that was paused does not count that time as silence of its peers."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core.liveness import PauseDetector
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m
from tests.core.stage import SECOND_NS, Stage, of, sent

BEAT_S = 0.5


def beats(stage: Stage, *workers: int, times: int = 5) -> list[Effect]:
    """Let these workers send heartbeats together, and wake the lead each time."""
    effects: list[Effect] = []
    for _ in range(times):
        stage.now_ns += round(BEAT_S * SECOND_NS)
        for worker in workers:
            effects += stage.tell(m.Alive(**stage.who(worker)))
        effects += stage.tick(0.0)
    return effects


def burst(stage: Stage, *workers: int, times: int) -> list[Effect]:
    """Let the lead read `times` heartbeats of each worker at one moment, as after a pause of the
    lead."""
    effects: list[Effect] = []
    for _ in range(times):
        for worker in workers:
            effects += stage.tell(m.Alive(**stage.who(worker)))
    return effects


def begin() -> Stage:
    stage = Stage(workers=2, heartbeat_s=BEAT_S).begin()
    beats(stage, 0, 1)
    return stage


def away(effects: list[Effect]) -> list[float]:
    return [note.fields["seconds"] for note in of(effects, fx.Note) if note.what == "lead-paused"]


def test_no_worker_is_evicted_for_a_pause_of_the_lead() -> None:
    stage = begin()
    effects = stage.sleep(60.0)
    assert sent(effects, m.Evicted) == []
    assert away(effects) == [pytest.approx(60.0 - BEAT_S)]
    assert away(stage.tick(0.0)) == [], "it is said once"


def test_a_message_may_be_handled_before_the_tick_after_a_pause() -> None:
    stage = begin()
    stage.now_ns += 60 * SECOND_NS
    assert len(away(burst(stage, 0, times=1))) == 1
    assert sent(stage.tick(0.0), m.Evicted) == []
    assert sent(beats(stage, 1, times=3), m.Evicted) == []
    (told,) = sent(beats(stage, 1, times=2), m.Evicted)
    assert told.worker == 0, "it is not given the time twice"


def test_a_worker_that_stays_silent_after_the_pause_is_evicted() -> None:
    stage = begin()
    stage.sleep(60.0)
    assert sent(beats(stage, 0, times=3), m.Evicted) == []
    (told,) = sent(beats(stage, 0, times=2), m.Evicted)
    assert told.worker == 1


@pytest.mark.parametrize("away_s", [12, 60])
@pytest.mark.parametrize("first", ["looks", "reads"])
def test_a_pause_does_not_change_the_rhythm_of_peers(away_s: int, first: str) -> None:
    """Neither the long gap of the pause nor the short gaps between messages that are read together
    count as gaps between heartbeats."""
    stage = begin()
    if first == "looks":
        stage.sleep(away_s)
    else:
        stage.now_ns += away_s * SECOND_NS
    burst(stage, 0, 1, times=2 * away_s)
    assert sent(stage.tick(1.2), m.Evicted) == [], "as patient as before"
    beats(stage, 0, 1, times=3)
    effects = beats(stage, 0, times=5)
    (note,) = [note for note in of(effects, fx.Note) if note.what == "evicted"]
    assert note.fields["limit_s"] == pytest.approx(2.0, abs=0.3)


def test_the_lead_may_be_paused_before_a_model_is_placed() -> None:
    stage = Stage(workers=2, heartbeat_s=BEAT_S, start_timeout_s=10.0)
    stage.hello("worker-0")
    beats(stage, 0)
    stage.attach(0)
    assert sent(stage.sleep(60.0), m.Evicted) == []
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    assert not stage.lead.parts.rounds.open, (
        "the start timeout was extended by the pause, so worker-1 can still join"
    )
    beats(stage, 0, times=20)
    assert stage.lead.parts.rounds.open


def test_a_pause_extends_the_time_for_a_rejoin() -> None:
    stage = Stage(workers=1, heartbeat_s=BEAT_S).begin()
    beats(stage, 0)
    assert sent(beats(stage, times=6), m.Evicted, "w0")
    stage.closed("w0")
    assert of(stage.sleep(60.0), fx.End) == []
    (end,) = of(beats(stage, times=12), fx.End)
    assert end.reason.code == "deserted"


def test_no_server_is_lost_for_a_pause_of_the_lead() -> None:
    stage = Stage(workers=1, servers=3, replicas=1, heartbeat_s=BEAT_S).begin()
    for _ in range(5):
        beats(stage, 0, times=1)
        for server in (1, 2):
            stage.tell(m.Alive(server=server))
    effects = stage.sleep(60.0)
    assert len(away(effects)) == 1
    assert [note.what for note in of(effects, fx.Note)] == ["lead-paused"]


def test_without_the_pause_detector_every_worker_is_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PauseDetector, "paused_ns", lambda self, now_ns: 0)
    assert {told.worker for told in sent(begin().sleep(60.0), m.Evicted)} == {0, 1}


def test_a_short_delay_is_not_a_pause() -> None:
    detector = PauseDetector(BEAT_S)
    assert detector.paused_ns(10 * SECOND_NS) == 0, "it has not begun"
    detector.begin(10 * SECOND_NS)
    assert detector.wake_ns == 10 * SECOND_NS + SECOND_NS // 2
    late_ns = detector.wake_ns + 3 * SECOND_NS // 4
    assert detector.paused_ns(late_ns) == 0
    assert detector.wake_ns == late_ns + SECOND_NS // 2
    assert detector.paused_ns(late_ns + 2 * SECOND_NS) == 3 * SECOND_NS // 2

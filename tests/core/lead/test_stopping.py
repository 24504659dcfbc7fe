"""How the lead ends a job on request: every worker leaves its loop with the final parameters."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.ending import PATIENCE_NS
from polyrhythm.core.machine import Effect
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import failed
from tests.core.stage import SECOND_NS, Stage, of, sent

PATIENCE_S = PATIENCE_NS / SECOND_NS
STOP = ev.StopAsked()


def told_to_stop(effects: list[Effect]) -> set[str]:
    """The workers that are released with the final version."""
    return {
        effect.to
        for effect in of(effects, fx.Send)
        if isinstance(effect.message, m.Release) and effect.message.stop
    }


def leave(stage: Stage, worker: int) -> list[Effect]:
    return stage.tell(m.Leave(**stage.who(worker), reason=failed(""), failed=False))


def assert_ends_with_the_last_worker(stage: Stage) -> None:
    assert not of(leave(stage, 0), fx.End), "worker-1 may still run the code after its loop"
    (end,) = of(leave(stage, 1), fx.End)
    assert not end.failed and in_words(end.reason) == "stopped on request"


def test_with_rounds_a_job_stops_at_the_next_fold() -> None:
    stage = Stage(workers=2, servers=2).begin()
    stage.contribute(0, 1)
    effects = stage.tell(STOP)
    assert not sent(effects, m.Stop) and not sent(effects, m.Fold)
    assert len(sent(effects, m.Pause)) == 2, "all are to contribute what they have"
    (fold,) = sent(stage.contribute(1, 1), m.Fold, "s0")
    assert fold.round == 1
    assert told_to_stop(stage.folded(1)) == {"w0", "w1"}
    assert_ends_with_the_last_worker(stage)


def test_a_worker_that_does_not_contribute_is_not_waited_for() -> None:
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    stage.tell(STOP)
    assert not sent(stage.tick(PATIENCE_S / 2), m.Fold)
    (fold,) = sent(stage.tick(PATIENCE_S), m.Fold, "s0")
    assert fold.readers == (), "worker-1 computes, and would drop what is pushed to it"
    effects = stage.folded(1)
    assert told_to_stop(effects) == {"w0", "w1"}
    assert not any(release.pushed for release in sent(effects, m.Release))
    assert not sent(stage.contribute(1, 1), m.Fold), "it comes too late"
    assert_ends_with_the_last_worker(stage)


def test_a_fold_that_is_under_way_is_the_last() -> None:
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    stage.tell(STOP)
    assert told_to_stop(stage.folded(1)) == {"w0", "w1"}
    assert not sent(stage.tick(2 * PATIENCE_S), m.Fold), "it was stopped already"
    assert_ends_with_the_last_worker(stage)


@pytest.mark.parametrize("sync", ["asp", "ssp:1"])
def test_without_rounds_a_job_stops_at_once(sync: str) -> None:
    stage = Stage(workers=2, sync=sync).begin()
    stage.contribute(0, 1)
    (fold,) = sent(stage.tell(STOP), m.Fold, "s0")
    assert fold.last
    assert told_to_stop(stage.folded(fold.round)) == {"w0", "w1"}
    assert_ends_with_the_last_worker(stage)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_stop_while_the_first_version_is_on_its_way_reaches_the_loop(sync: str) -> None:
    stage = Stage(workers=2, sync=sync)
    for number in range(2):
        stage.hello(f"worker-{number}")
        stage.attach(number)
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    assert not of(stage.tell(STOP), fx.End)
    effects = stage.folded(0)
    for fold in sent(effects, m.Fold, "s0"):
        effects = stage.folded(fold.round)
    assert told_to_stop(effects) == {"w0", "w1"}
    assert_ends_with_the_last_worker(stage)


def test_a_stop_before_the_first_round_ends_the_job_at_once() -> None:
    stage = Stage(workers=2)
    stage.hello("worker-0")
    effects = stage.tell(STOP)
    (end,) = of(effects, fx.End)
    assert not end.failed and in_words(end.reason) == "stopped on request"
    assert sent(effects, m.Stop, "w0")


def test_workers_that_leave_by_themselves_end_a_job_that_stops() -> None:
    stage = Stage(workers=2).begin()
    stage.tell(STOP)
    assert_ends_with_the_last_worker(stage)


def test_a_worker_that_comes_back_while_the_job_ends_hears_that_it_ends() -> None:
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    stage.tell(STOP)
    stage.folded(1)
    (refusal,) = sent(stage.hello("late"), m.Refusal)
    assert refusal.ending


def test_a_second_request_changes_nothing() -> None:
    stage = Stage(workers=2).begin()
    stage.tell(STOP)
    assert stage.tell(STOP) == []


def test_the_journal_says_that_the_job_is_stopping() -> None:
    stage = Stage(workers=2).begin()
    assert fx.Note("stopping", {}) in stage.tell(STOP)


def test_a_goal_that_is_reached_by_the_last_fold_is_the_reason() -> None:
    stage = Stage(workers=1, rounds=1).begin()
    stage.tell(STOP)
    stage.contribute(0, 1)
    stage.folded(1)
    (end,) = of(leave(stage, 0), fx.End)
    assert "1 round" in in_words(end.reason)


def test_patience_does_not_pass_while_the_lead_is_paused() -> None:
    stage = Stage(workers=2, heartbeat_s=0.5).begin()
    stage.tell(STOP)
    assert not sent(stage.sleep(2 * PATIENCE_S), m.Fold)

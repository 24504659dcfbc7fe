"""A job with `--max-seconds` ends, even if its workers hang."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.ending import PATIENCE_NS
from polyrhythm.core.lead.progress.goals import TimeLimit, patience_ns
from polyrhythm.core.machine import Effect
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import failed
from tests.core.stage import SECOND_NS, Stage, of, sent

LIMIT_S = 100.0
PATIENCE_S = 10.0
FOLD_S = PATIENCE_NS / SECOND_NS
STEP_S = 7.0
"""How long the longest step takes in jobs with a contribution."""
GOAL = f"the job reached its goal: {LIMIT_S:g} seconds"


@pytest.mark.parametrize(
    ("limit_s", "longest_s", "patience_s"),
    [(1, 0, 10), (1, 3, 13), (100, 0, 10), (300, 4, 34), (600, 0, 60), (86_400, 500, 560)],
)
def test_the_patience_is_a_tenth_of_the_limit_within_bounds_and_the_longest_step(
    limit_s: int, longest_s: int, patience_s: int
) -> None:
    assert patience_ns(limit_s * SECOND_NS, longest_s * SECOND_NS) == patience_s * SECOND_NS


def test_the_longest_step_of_any_worker_counts_but_none_that_ends_after_the_limit() -> None:
    limit = TimeLimit.begin(50.0)
    limit.open(0)
    for worker in range(2):
        limit.on_entered(worker, 0)
    for worker, second in ((0, 5), (1, 20), (0, 12), (0, 49), (1, 60)):
        limit.on_contributed(worker, second * SECOND_NS)
    assert limit.patience_ns == (10 + 37) * SECOND_NS
    assert not limit.overdue(96 * SECOND_NS) and limit.overdue(97 * SECOND_NS)


def test_a_worker_that_joins_late_has_not_computed_before() -> None:
    limit = TimeLimit.begin(50.0)
    limit.open(0)
    limit.on_entered(0, 40 * SECOND_NS)
    limit.on_contributed(0, 42 * SECOND_NS)
    assert limit.patience_ns == 12 * SECOND_NS


def test_a_job_without_a_limit_is_never_overdue() -> None:
    limit = TimeLimit.begin(None)
    limit.open(0)
    limit.on_contributed(0, SECOND_NS)
    assert (
        limit.deadline.wake_ns is None and not limit.is_passed(10**18) and not limit.overdue(10**18)
    )


# -- a job ---------------------------------------------------------------------------------------


def begun(sync: str = "bsp", **job: object) -> Stage:
    return Stage(workers=2, sync=sync, max_seconds=LIMIT_S, **job).begin()


def leave(stage: Stage, worker: int) -> list[Effect]:
    return stage.tell(m.Leave(**stage.who(worker), reason=failed(""), failed=False))


def told_to_stop(effects: list[Effect]) -> int:
    return sum(release.stop for release in sent(effects, m.Release))


def loop_over(stage: Stage, worker: int) -> None:
    stage.tell(m.Alive(**stage.who(worker), loop_over=True))


def left(effects: list[Effect]) -> list[str]:
    notes = [note.fields for note in of(effects, fx.Note) if note.what == "left"]
    return [f"{fields['name']} {fields['reason']}" for fields in notes]


def assert_reached(effects: list[Effect]) -> None:
    (end,) = of(effects, fx.End)
    assert in_words(end.reason) == GOAL and not end.failed


def test_a_round_that_ends_within_the_patience_counts_as_before() -> None:
    stage = begun()
    stage.contribute(0, 1)
    assert stage.tick(LIMIT_S + PATIENCE_S - 1) == []
    (fold,) = sent(stage.contribute(1, 1), m.Fold, "s0")
    assert fold.readers == (0, 1)
    assert told_to_stop(stage.folded(1)) == 2
    assert not of(leave(stage, 0), fx.End)
    assert_reached(leave(stage, 1))


def test_an_open_round_is_broken_off_without_the_worker_that_hangs() -> None:
    stage = begun()
    stage.tick(STEP_S)
    stage.contribute(0, 1)
    patience_s = PATIENCE_S + STEP_S
    assert stage.tick(LIMIT_S - STEP_S + patience_s - 1) == []
    effects = stage.tick(1)
    (note,) = [note for note in of(effects, fx.Note) if note.what == "overtime"]
    assert note.fields["fields"]["missing"] == [1]
    assert len(sent(effects, m.Pause)) == 2 and not sent(effects, m.Fold)
    (fold,) = sent(stage.tick(FOLD_S), m.Fold, "s0")
    assert fold.round == 1 and fold.readers == ()
    assert told_to_stop(stage.folded(1)) == 2
    assert not of(leave(stage, 0), fx.End)
    assert not of(stage.tick(patience_s - 1), fx.End)
    effects = stage.tick(2)
    assert left(effects) == ["worker-1 hung"]
    (refusal,) = sent(effects, m.Refusal, "w1")
    assert refusal.ending, "if it comes back to its senses, its loop ends without an error"
    assert_reached(effects)
    assert stage.lead.wake_at() is None


def test_workers_that_hang_in_their_first_step_are_ended() -> None:
    stage = begun()
    effects = stage.tick(LIMIT_S + PATIENCE_S)
    assert len(sent(effects, m.Pause)) == 2
    (fold,) = sent(stage.tick(FOLD_S), m.Fold, "s0")
    stage.folded(fold.round)
    effects = stage.tick(PATIENCE_S)
    assert left(effects) == ["worker-0 hung", "worker-1 hung"]
    assert_reached(effects)


@pytest.mark.parametrize("sync", ["asp", "ssp:1", "ssp-restart:1"])
def test_without_rounds_a_job_ends_although_no_contribution_comes(sync: str) -> None:
    stage = begun(sync)
    assert stage.tick(LIMIT_S + PATIENCE_S - 1) == []
    (fold,) = sent(stage.tick(1), m.Fold, "s0")
    assert fold.last
    assert told_to_stop(stage.folded(fold.round)) == 2
    effects = stage.tick(PATIENCE_S)
    assert left(effects) == ["worker-0 hung", "worker-1 hung"]
    assert_reached(effects)


def at_the_limit() -> Stage:
    """A job under asp that has reached its limit: worker-0 has contributed then, worker-1 has not."""
    stage = begun("asp")
    stage.tick(LIMIT_S)
    (fold,) = sent(stage.contribute(0, 1), m.Fold, "s0")
    stage.folded(fold.round)
    return stage


def test_a_worker_that_hangs_while_others_reach_the_limit_is_ended() -> None:
    stage = at_the_limit()
    leave(stage, 0)
    assert not of(stage.tick(2 * PATIENCE_S - 1), fx.End)
    effects = stage.tick(2)
    assert left(effects) == ["worker-1 hung"]
    assert_reached(effects)


def test_the_code_after_the_loop_has_no_limit() -> None:
    stage = at_the_limit()
    loop_over(stage, 0)
    effects = stage.tick(100 * LIMIT_S)
    assert left(effects) == ["worker-1 hung"] and not of(effects, fx.End)
    assert_reached(leave(stage, 0))


def test_a_fold_that_no_server_answers_does_not_keep_the_job_from_ending() -> None:
    stage = begun()
    for worker in range(2):
        stage.contribute(worker, 1)
    assert_reached(stage.tick(LIMIT_S + FOLD_S + 3 * PATIENCE_S))


def test_a_served_job_without_workers_ends() -> None:
    stage = begun(served=True)
    for worker in range(2):
        leave(stage, worker)
    assert_reached(stage.tick(LIMIT_S + PATIENCE_S))


def test_a_stop_during_the_patience_is_an_ordinary_stop() -> None:
    """Workers that hang do not keep the job from ending after the stop either."""
    stage = begun()
    stage.contribute(0, 1)
    stage.tick(LIMIT_S + 1)
    assert len(sent(stage.tell(ev.StopAsked()), m.Pause)) == 2
    (fold,) = sent(stage.tick(FOLD_S), m.Fold, "s0")
    assert told_to_stop(stage.folded(fold.round)) == 2
    leave(stage, 0)
    effects = stage.tick(2 * PATIENCE_S)
    assert left(effects) == ["worker-1 hung"]
    (end,) = of(effects, fx.End)
    assert end.reason.code == "stopped" and not end.failed


def test_patience_begins_again_when_the_lead_was_paused() -> None:
    stage = begun(heartbeat_s=0.5)
    stage.contribute(0, 1)
    effects = stage.sleep(LIMIT_S + 10 * PATIENCE_S)
    assert [note.what for note in of(effects, fx.Note)] == ["lead-paused"]
    assert sent(stage.contribute(1, 1), m.Fold, "s0")


def test_a_goal_is_not_reached_while_the_objective_is_not_finite() -> None:
    stage = begun("asp")
    trailer = m.Trailer(
        **stage.who(0), sequence=1, report=m.ContributionReport(weight=1.0, objective=float("nan"))
    )
    stage.tell(trailer)
    stage.from_servers(m.Arrived, **stage.who(0), sequence=1, round=1)
    effects = stage.tick(LIMIT_S + PATIENCE_S)
    (fold,) = sent(effects, m.Fold, "s0")
    stage.folded(fold.round)
    (end,) = of(stage.tick(FOLD_S + PATIENCE_S), fx.End)
    assert end.failed and end.reason.code == "goal-not-finite"


# -- before round 1 ------------------------------------------------------------------------------

START_S = 60.0
UNOPENED_S = START_S + LIMIT_S + PATIENCE_S
"""How long a job waits for the opening of round 1."""


def unopened(**job: object) -> Stage:
    """A job that two workers have joined. They have attached no model."""
    stage = Stage(workers=2, max_seconds=LIMIT_S, start_timeout_s=START_S, **job)
    for worker in range(2):
        stage.hello(f"worker-{worker}")
    return stage


def test_a_job_whose_workers_hang_before_they_attach_a_model_ends() -> None:
    stage = unopened()
    assert not of(stage.tick(UNOPENED_S - 1), fx.End)
    effects = stage.tick(1)
    assert left(effects) == ["worker-0 unattached", "worker-1 unattached"]
    assert [refusal.ending for refusal in sent(effects, m.Refusal)] == [True, True]
    (end,) = of(effects, fx.End)
    assert end.failed and in_words(end.reason) == (
        "round 1 did not open, because none of 2 workers had attached a model: --start-timeout"
        " (60 s) and --max-seconds (100 s) are over"
    )
    assert stage.lead.wake_at() is None


def test_a_job_that_opens_late_has_its_whole_time() -> None:
    stage = unopened()
    stage.tick(START_S + LIMIT_S)
    for worker in range(2):
        stage.attach(worker)
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    stage.folded(0)
    assert not of(stage.tick(LIMIT_S), fx.End)
    stage.contribute(0, 1)
    (fold,) = sent(stage.contribute(1, 1), m.Fold, "s0")
    assert told_to_stop(stage.folded(fold.round)) == 2, "the limit counts from the opening"


def test_the_first_parameters_may_take_long() -> None:
    stage = unopened()
    stage.attach(0)
    stage.from_servers(m.Placed)
    assert not of(stage.tick(2 * UNOPENED_S), fx.End), "worker-0 still sends them"
    leave(stage, 0)
    effects = stage.tick(PATIENCE_S)
    assert left(effects) == ["worker-1 unattached"] and of(effects, fx.End)


def test_a_job_without_workers_waits_for_others() -> None:
    stage = unopened(served=True)
    for worker in range(2):
        leave(stage, worker)
    assert not of(stage.tick(2 * UNOPENED_S), fx.End)
    stage.hello("worker-2")
    assert not of(stage.tick(UNOPENED_S - 1), fx.End)
    assert left(stage.tick(1)) == ["worker-2 unattached"]


def test_a_job_without_a_limit_waits_for_models_without_end() -> None:
    stage = Stage(workers=1)
    stage.hello("worker-0")
    assert not of(stage.tick(10**6), fx.End)

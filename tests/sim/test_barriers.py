"""psp and fsp in virtual time: how long each worker computes before a barrier, and which workers
wait at it."""

import pytest

from tests.sim.staged_run import Run

JOB = """
[job]
sync = "{sync}"
kind = "{kind}"
{keys}
points = {points}
batch = 32
servers = 2
model = "400kB"
[link]
delay = "1ms"
bandwidth = "1Gbit"
{more}
"""
TWO_SPEEDS = """
[[workers]]
count = 2
step = "10ms"
[[workers]]
step = "30ms"
"""
LEARNING = "[objective]\nhalving = 20000\nat_once = 3000\n"


def run(
    sync: str, keys: str, more: str = TWO_SPEEDS, kind: str = "local", points: int = 20_000
) -> Run:
    return Run(JOB.format(sync=sync, kind=kind, keys=keys, more=more, points=points))


@pytest.mark.parametrize("sync", ["psp", "fsp"])
@pytest.mark.parametrize("keys", ["", "interval = '60ms'\ncoordination = 'central'"])
def test_every_point_is_visited_once_a_pass(sync: str, keys: str) -> None:
    done = run(sync, f"epochs = 2\n{keys}")
    assert done.result["points"] == done.weight() == 40_000
    assert len(done.given()) == done.result["contributions"]


def test_under_psp_no_worker_waits_and_fast_workers_make_more_steps() -> None:
    shares = run("psp", "rounds = 60").result["per_worker"]
    assert all(worker["wait_s"] == 0 for worker in shares.values())
    assert {worker["contributions"] for worker in shares.values()} == {60}
    fast, slow = shares["worker-0"]["points"], shares["worker-2"]["points"]
    assert fast == pytest.approx(3 * slow, rel=0.1), "1:1:3 meet after (3, 3, 1) steps"


def test_a_worker_trains_on_while_its_contribution_is_folded() -> None:
    """A fold takes as long as ten steps. The steps made during the fold are in the next
    contribution."""
    done = run("psp", "rounds = 10\nfold_rate = '2MB'", "[[workers]]\nstep = '10ms'\n")
    assert done.result["points"] >= 9 * 10 * 32
    assert done.result["per_worker"]["worker-0"]["wait_s"] == 0


def test_with_nothing_left_to_train_on_it_waits_for_the_version() -> None:
    done = run("psp", "epochs = 1\nfold_rate = '40kB'", "[[workers]]\nstep = '100us'\n")
    assert done.result["points"] == done.weight() == 20_000
    assert done.result["seconds"] > 2 * 5, "two folds of five seconds, the first trained through"


def test_under_fsp_all_work_for_the_interval_and_the_fast_visit_more() -> None:
    shares = run("fsp", "rounds = 30\ninterval = '100ms'").result["per_worker"]
    for worker in shares.values():
        assert worker["compute_s"] == pytest.approx(3.0, rel=0.06)
        assert worker["wait_s"] < 0.1 * worker["compute_s"]
    assert shares["worker-0"]["points"] == pytest.approx(3 * shares["worker-2"]["points"], rel=0.1)


@pytest.mark.parametrize("coordination", ["central", "semi"])
def test_who_has_passed_over_all_of_its_points_ends_the_interval(coordination: str) -> None:
    done = run("fsp", f"rounds = 4\ninterval = '1min'\ncoordination = '{coordination}'")
    assert done.result["seconds"] < 4 * 3, "a pass of the fast ones takes about two seconds"


def test_a_worker_is_hurried_at_the_end_of_its_micro_batch() -> None:
    """With central coordination every worker stops within one micro-batch after the lead's order,
    however long its steps are."""
    workers = "[[workers]]\nstep = '10ms'\n[[workers]]\nstep = '3s'\n"
    done = run("fsp", "rounds = 20\ninterval = '200ms'\ncoordination = 'central'", workers)
    first = 2 * 3  # the slow worker needs 3 s for each of its first two batches
    assert done.result["seconds"] < first + 20 * 0.32, "a point of the slow one takes 94 ms"


def test_the_interval_follows_the_objective_and_says_so() -> None:
    done = run("fsp", "rounds = 400\nprobe_points = 150\ninterval = 'auto'", LEARNING + TWO_SPEEDS)
    codes = [
        line["reason"] for line in done.lines("policy") if line["reason"] != "interval-started"
    ]
    assert codes[:2] == ["interval-measuring", "interval-chosen"]
    assert "interval-stage-over" in codes, "what is left to learn gets less"
    assert done.lines("rounds")[-1]["objective"] < 0.5


ONE_SLOW = """
[[workers]]
count = 3
step = "10ms"
[[workers]]
step = "40ms"
"""


def test_where_long_intervals_gain_nothing_fsp_makes_the_steps_of_bsp_and_does_not_wait() -> None:
    """In a step only the first ten points improve the objective, so every step gains the same."""
    steps = "[objective]\nhalving = 2000\nat_once = 10\n" + ONE_SLOW
    fsp = run("fsp", "rounds = 300\nprobe_points = 150", steps, "gradient").result
    bsp = run("bsp", "rounds = 300", steps, "gradient").result
    assert bsp["points"] == pytest.approx(300 * 4 * 32, rel=0.02)
    assert 0.5 < fsp["points"] / bsp["points"] < 1.5
    assert fsp["seconds"] < 0.6 * bsp["seconds"]
    assert fsp["objective"] == pytest.approx(bsp["objective"], rel=0.2)


def test_without_an_objective_the_search_says_that_it_cannot_choose() -> None:
    done = run("fsp", "rounds = 20\ninterval = 'auto'")
    assert "interval-blind" in {line["reason"] for line in done.lines("policy")}


def test_the_objective_is_that_of_the_points_folded() -> None:
    one_by_one = run("asp", "epochs = 1", LEARNING + TWO_SPEEDS)
    at_once = run("fsp", "epochs = 1\ninterval = '500ms'", LEARNING + TWO_SPEEDS)
    values = [done.simulation.objective.value for done in (one_by_one, at_once)]
    assert values[0] == pytest.approx(0.5, abs=0.01), "a pass is a halving"
    assert values[1] > 0.55


SOME_TAKE_LONG = "[[workers]]\ncount = 2\nstep = '10ms'\n[[workers]]\nstep = '1500ms'\n"
"""The shortest micro-batch of the slow worker has two points (min_batch) and takes 94 ms."""


@pytest.mark.parametrize("coordination", ["central", "semi"])
def test_a_point_that_takes_long_is_not_waited_for_and_is_visited_again(coordination: str) -> None:
    """The patience is longer than a fast worker needs for its last micro-batch and its
    contribution, so every round that closes early closes without the slow worker, and never without a
    fast one."""
    keys = f"epochs = 1\ninterval = '170ms'\ncoordination = '{coordination}'"
    waited = run("fsp", keys, SOME_TAKE_LONG, "gradient", points=4_000)
    left = run("fsp", f"{keys}\nabandon = '10ms'", SOME_TAKE_LONG, "gradient", points=4_000)
    for done in (waited, left):
        assert done.result["points"] == done.weight() == 4_000, "each of them once"
    fast = [done.result["per_worker"]["worker-0"] for done in (waited, left)]
    waits = [worker["wait_s"] / worker["contributions"] for worker in fast]
    assert waits[1] < 0.5 * waits[0]
    assert left.result["abandoned_rounds"] > 0
    assert left.result["per_worker"]["worker-2"]["redone_s"] > 0
    assert left.result["per_worker"]["worker-2"]["points"] > 0
    assert waited.result["abandoned_rounds"] == waited.result["time"]["redone_s"] == 0


def test_a_worker_whose_every_point_takes_too_long_still_gets_on() -> None:
    keys = "epochs = 1\ninterval = '20ms'\nabandon = '5ms'"
    done = run("fsp", keys, SOME_TAKE_LONG, "gradient", points=4_000)
    assert done.result["points"] == done.weight() == 4_000

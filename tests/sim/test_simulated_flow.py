"""Policies whose servers fold contributions as they arrive: which worker waits, and for how long."""

import pytest

from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.errors import InvariantBroken
from tests.sim.staged_run import Run

JOB = """
[job]
sync = "{sync}"
{goal}
points = 3000
batch = 10
servers = 2
model = "100kB"
slice = "10kB"
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
count = 2
step = "10ms"
step_noise = 0.1
[[workers]]
step = "80ms"
step_noise = 0.1
"""


def run_with(sync: str, goal: str = "epochs = 2", seed: int = 0) -> Run:
    return Run(JOB.format(sync=sync, goal=goal), seed=seed)


def contributions(run: Run) -> list[int]:
    shares = run.result["per_worker"]
    return [shares[f"worker-{number}"]["contributions"] for number in range(3)]


@pytest.mark.parametrize("sync", ["asp", "ssp:0", "ssp:4", "ssp-restart:3"])
@pytest.mark.parametrize("seed", range(2))
def test_every_point_is_visited_once_a_pass(sync: str, seed: int) -> None:
    run = run_with(sync, seed=seed)
    assert run.end.reason.code == "goal" and not run.end.failed
    assert run.result["points"] == run.weight() == 6000
    assert len(run.given()) == run.result["contributions"]


def test_under_asp_no_worker_waits_for_a_slow_one() -> None:
    run = run_with("asp", "rounds = 50")
    fast, also_fast, slow = contributions(run)
    assert fast > 5 * slow and also_fast > 5 * slow
    shares = run.result["per_worker"]["worker-0"]
    assert shares["wait_s"] < shares["compute_s"] / 2, "the way there and back, and no more"


@pytest.mark.parametrize("bound", [0, 2, 7])
def test_under_ssp_the_fast_are_at_most_a_bound_ahead(bound: int) -> None:
    fast, also_fast, slow = contributions(run_with(f"ssp:{bound}", "rounds = 30"))
    assert 0 <= fast - slow <= bound + 1
    assert 0 <= also_fast - slow <= bound + 1
    assert fast - slow >= bound, "and they use it"


def test_a_larger_bound_waits_less() -> None:
    waits = [
        run_with(sync, "rounds = 30").result["per_worker"]["worker-0"]["wait_s"]
        for sync in ("ssp:0", "ssp:20", "asp")
    ]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > 3 * waits[2]


def test_a_restart_sets_all_clocks_to_the_same_value() -> None:
    fast, _, slow = contributions(run_with("ssp-restart:4", "rounds = 30"))
    assert fast <= slow * 5, "four ahead, then all stop: at most five steps for one"
    assert fast > 2 * slow


def test_a_slice_written_under_its_reader_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SliceVersions, "target", lambda versions, slice_: versions.slot(slice_))
    with pytest.raises(InvariantBroken, match="was reading"):
        run_with("asp")


def test_folding_takes_its_time_and_waits_in_line() -> None:
    """A server folds one contribution at a time. A fold takes as long as a step, so the
    contributions of three workers queue."""
    quick, slow = (
        Run(
            f"""
            [job]
            sync = "asp"
            rounds = 20
            model = "1MB"
            fold_rate = "{rate}"
            [[workers]]
            count = 3
            step = "10ms"
            """
        ).lines("ended")[0]["at_s"]
        for rate in ("100GB", "100MB")
    )
    assert slow > 2 * quick
    assert slow >= 20 * 3 * 0.01, "sixty folds of ten milliseconds, one after the other"


def test_an_answer_is_whole_though_its_reader_has_asked_again() -> None:
    run = Run(
        """
        [job]
        sync = "ssp-restart:1"
        rounds = 20
        servers = 2
        model = "200kB"
        [link]
        delay = "0s"
        bandwidth = "200Mbit"
        [[workers]]
        count = 4
        step = "8ms"
        [[workers]]
        step = "1ms"
        """
    )
    assert not run.end.failed


def test_under_asp_a_chunk_does_not_move_while_something_of_it_is_on_its_way() -> None:
    run = Run(
        """
        [job]
        sync = "asp"
        epochs = 1
        points = 1583
        batch = 33
        servers = 2
        model = "200kB"
        slice = "20kB"
        [link]
        delay = "0s"
        bandwidth = "10Gbit"
        [[workers]]
        count = 5
        step = "8ms"
        step_noise = 0.5
        [[workers]]
        step = "1ms"
        step_noise = 0.3
        join = "50ms"
        """,
        seed=643,
    )
    assert run.weight() == run.result["points"] == 1583

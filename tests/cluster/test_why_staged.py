"""`polyrhythm why` names the process for which the job waits, and the rule that makes it wait. Each
test starts a job and makes it wait in one particular way."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from polyrhythm.cli.status import explanation_of
from polyrhythm.observe.runs import load_run
from polyrhythm.observe.state import RunState
from polyrhythm.observe.story import tell
from polyrhythm.observe.why import RULES, Explanation, explain
from tests.cluster.processes import Command, wait_until

ONE_SERVER = ("--rounds", 1_000_000, "--servers", 1, "--quiet")
SLOW = ("--workers", 2, "--min-step", "200ms", "--slow", "1=40x")
FEW_POINTS = """
import torch


def main(worker):
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for points, _ in worker.batches((torch.ones({0}, 8), torch.zeros({0})), batch_size={1}):
        model(points).sum().backward()
        optimizer.step()
"""


def why(command: Command, told: Callable[[Explanation], bool]) -> Explanation:
    """Return the answer of `why` once it contains the expected words."""

    def ask() -> Explanation | None:
        command.assert_alive()
        explanation = explanation_of(load_run(command.run_dir))
        return explanation if told(explanation) else None

    wait_until(command.run_dir.is_dir, "it has begun")
    found = wait_until(ask, "it says what it waits for")
    assert isinstance(found, Explanation)
    return found


def why_then(command: Command, told: Callable[[Explanation], bool], after: int) -> Explanation:
    """Compute the answer of `why` after each line of the journal from line `after` on, and return
    the first answer that satisfies `told`. The answer may be true only for a moment, so a running
    command could miss it."""

    def ask() -> Explanation | None:
        command.assert_alive()
        state = RunState()
        for count, line in enumerate(command.journal()):
            state.take(line)
            if count >= after and line["what"] == "waiting" and told(said := explain(state)):
                return said
        return None

    found = wait_until(ask, "it says what it waits for")
    assert isinstance(found, Explanation)
    return found


def bound_s(explanation: Explanation) -> float:
    """Return the longest time that the job may wait, according to the answer."""
    assert explanation.since_s is not None and explanation.until_s is not None
    return explanation.until_s - explanation.since_s


def test_why_names_a_slow_worker(tmp_path: Path, long_job: Path) -> None:
    with Command(long_job, *ONE_SERVER, *SLOW, "--timer", "50s", cwd=tmp_path) as command:
        said = why(command, lambda said: said.missing == ("worker-1",))
        assert said.held == ("worker-0",)
        assert said.rule == RULES["round"] and said.what.endswith("waits for worker-1")
        assert bound_s(said) == pytest.approx(50.0)


def test_why_names_a_slow_worker_that_bounds_the_others(tmp_path: Path, long_job: Path) -> None:
    with Command(long_job, *ONE_SERVER, *SLOW, "--sync", "ssp:1", cwd=tmp_path) as command:
        said = why(command, lambda said: said.missing == ("worker-1",))
        assert said.held == ("worker-0",)
        assert said.rule == RULES["stale"] and said.until_s is None


def test_why_names_a_timer_that_is_about_to_fire(tmp_path: Path, long_job: Path) -> None:
    with Command(long_job, *ONE_SERVER, *SLOW, "--timer", "3s", cwd=tmp_path) as command:
        said = why(command, lambda said: said.missing == ("worker-1",))
        assert bound_s(said) == pytest.approx(3.0)
        fired = "the timer fired: round 1 closed without worker-1"
        wait_until(
            lambda: any(fired in sentence for sentence in tell(command.journal())), "it fires"
        )


def test_why_names_a_stopped_worker(tmp_path: Path, long_job: Path) -> None:
    with Command(long_job, *ONE_SERVER, "--workers", 2, cwd=tmp_path) as command:
        command.await_round(1)
        after = len(command.journal())
        os.kill(command.workers()[1], signal.SIGSTOP)
        said = why_then(command, lambda said: said.missing == ("worker-1",), after)
        assert said.held == ("worker-0",)
        assert said.rule == RULES["round"]
        wait_until(lambda: command.journal("evicted"), "its silence is noticed")
        said = why(command, lambda said: said.what.endswith("1 worker at work"))
        assert not said.missing


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_why_names_a_stopped_server(tmp_path: Path, long_job: Path, sync: str) -> None:
    flags = ("--rounds", 1_000_000, "--servers", 2, "--workers", 2, "--quiet", "--sync", sync)
    with Command(long_job, *flags, cwd=tmp_path) as command:
        command.await_round(1)
        os.kill(command.servers()[1], signal.SIGSTOP)
        said = why(command, lambda said: said.missing == ("s1",))
        # The server may have reported a contribution of one worker just before it was stopped.
        # Under asp a worker may have sent two contributions.
        assert said.held and set(said.held) <= {"worker-0", "worker-1"}
        rules = ("unreported", "folding", "window") if sync == "asp" else ("unreported", "folding")
        assert said.rule in [RULES[name] for name in rules]


@pytest.mark.parametrize("ahead", [(), ("--read-ahead",)], ids=["asp", "read-ahead"])
def test_why_names_a_server_that_folds_slowly(
    tmp_path: Path, long_job: Path, ahead: tuple[str, ...]
) -> None:
    """A worker sends no contribution before the servers have answered its last one, even if it
    computes during the wait. `why` names the server that has not reported the last contribution."""
    flags = ("--workers", 1, "--sync", "asp", *ahead, "--slow-fold", "0=4s")
    with Command(long_job, *ONE_SERVER, *flags, cwd=tmp_path) as command:
        said = why(command, lambda said: bool(said.missing))
        assert said.missing == ("s0",) and said.held == ("worker-0",)
        assert said.rule == RULES["unreported"] and said.until_s is None
        assert said.what == "s0 has not reported what worker-0 contributed"


def test_why_names_the_number_of_workers_missing_at_the_start(
    tmp_path: Path, long_job: Path
) -> None:
    flags = ("--workers", 2, "--local-workers", 1, "--start-timeout", 100)
    with Command(long_job, *ONE_SERVER, *flags, cwd=tmp_path) as command:
        said = why(command, lambda said: said.what.startswith("waiting for 1 more"))
        assert said.what == "waiting for 1 more worker to join and to attach a model"
        assert said.rule == RULES["gathering"] and bound_s(said) == pytest.approx(100.0)
        assert f"polyrhythm worker --connect {command.address()}" in said.remedies[0]


def test_why_names_a_server_missing_at_the_start(tmp_path: Path, long_job: Path) -> None:
    flags = ("--rounds", 5, "--servers", 3, "--local-servers", 2, "--workers", 1)
    with Command(long_job, *flags, cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("server-joined")) == 2, "two of three are there")
        said = why(command, lambda said: bool(said.missing))
        assert said.what == "waiting for s2: 2 of 3 servers have joined"
        assert said.missing == ("s2",) and said.rule == RULES["servers"]
        assert f"polyrhythm server --connect {command.address()}" in said.remedies[0]


@pytest.mark.parametrize(("points", "batch"), [(2, 1), (5, 8)])
def test_why_names_a_worker_that_has_no_data(tmp_path: Path, points: int, batch: int) -> None:
    """Only two of the three workers get points. If the user asks for batches of one point, two
    points make two batches. Otherwise five points make two batches, because a batch has at least
    `--min-batch` points."""
    job = tmp_path / "few.py"
    job.write_text(FEW_POINTS.format(points, batch))
    flags = ("--epochs", 1_000_000, "--servers", 1, "--workers", 3, "--quiet")
    with Command(job, *flags, cwd=tmp_path) as command:
        command.await_round(1)
        (idle,) = wait_until(lambda: command.journal("no-points"), "one has nothing to visit")
        said = why(command, lambda said: "rests" in said.what)
        rests = f"2 workers at work; {idle['name']} rests: there are too few points for all workers"
        assert said.what.endswith(rests) and not said.missing

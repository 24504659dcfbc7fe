"""A worker that is silent for too long is evicted, and rejoins as a new incarnation. Every point is
still counted once per pass."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.cli.launch import WORKERS_FAILED
from polyrhythm.observe.reasons import limit_in_words
from tests.cluster.cutting import cut
from tests.cluster.job_workers import JobWorkers
from tests.cluster.jobs.visits import POINTS
from tests.cluster.processes import SHOWN_ELSEWHERE, Command, wait_until

JOB = Path(__file__).parent / "jobs" / "visits.py"
PASSES = 3


@pytest.mark.guarantee("worker-stopped", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", pytest.param("ssp:4", marks=SHOWN_ELSEWHERE), "asp"])
def test_a_stopped_worker_is_evicted_and_rejoins(tmp_path: Path, sync: str) -> None:
    flags = ["--sync", sync, "--timer", "off", "--workers", 3, "--servers", 2]
    with Command(JOB, *flags, "--epochs", PASSES, "--json", cwd=tmp_path) as command:
        job_workers = JobWorkers(command, random.Random(0))
        job_workers.until(lambda: len(job_workers.books) == 3, "all three train")
        job_workers.until_progress(10)
        command.await_heartbeats()
        pid = job_workers.pid_of("worker-1")
        os.kill(pid, signal.SIGSTOP)
        job_workers.until(lambda: job_workers.told("evicted", "worker-1"), "it is evicted")
        # The job has no timer, so if rounds go on, no worker waits for the evicted one.
        job_workers.until_progress(20)
        before = len(job_workers.books["worker-1"].acknowledged)
        os.kill(pid, signal.SIGCONT)
        job_workers.until(lambda: job_workers.told("rejoined", "worker-1"), "it is back")
        job_workers.until(
            lambda: len(job_workers.books["worker-1"].acknowledged) > before + 1,
            "it contributes again",
        )
        (tmp_path / "go").touch()
        assert command.wait() == 0, command.stderr()
        result = json.loads(command.stdout())
        evicted = next(line for line in command.journal("evicted") if line["name"] == "worker-1")
        came = command.joined("worker-1")
    assert result["passes"] == PASSES
    assert result["points"] == PASSES * POINTS, "every point as often as there are passes"
    assert sum(worker["points"] for worker in result["per_worker"].values()) == result["points"]
    assert evicted["silent_s"] >= evicted["limit_s"] > 0
    assert limit_in_words(evicted).startswith(f"{evicted['limit_s']:.2f} s = ")
    assert command.left("worker-1")[0] == "evicted"
    assert [line["what"] for line in came] == ["joined", *["rejoined"] * (len(came) - 1)]
    epochs = [line["epoch"] for line in came]
    assert epochs == sorted(set(epochs)), "each time it is a new incarnation"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_links_of_a_worker_that_stays_stopped_are_closed_and_it_can_still_rejoin(
    tmp_path: Path,
) -> None:
    """The kernel acknowledges TCP keep-alive probes for a stopped process, so keep-alive does not
    end its links."""
    flags = ["--sync", "asp", "--timer", "off", "--workers", 3, "--servers", 2, "--json"]
    how = ["--lead-timeout", 6, "--epochs", PASSES]
    with Command(JOB, *flags, *how, cwd=tmp_path) as command:
        job_workers = JobWorkers(command, random.Random(0))
        job_workers.until(lambda: len(job_workers.books) == 3, "all three train")
        command.await_heartbeats()
        pid = job_workers.pid_of("worker-1")
        os.kill(pid, signal.SIGSTOP)
        job_workers.until(lambda: job_workers.told("evicted", "worker-1"), "it is evicted")
        (number,) = {line["worker"] for line in command.journal("evicted")}

        def freed() -> bool:
            return any(line["peer"] == f"w{number}" for line in command.journal("link-closed"))

        assert not freed()
        wait_until(freed, "its link to the lead is freed", 150)
        os.kill(pid, signal.SIGCONT)
        job_workers.until(lambda: job_workers.told("rejoined", "worker-1"), "it is back")
        (tmp_path / "go").touch()
        assert command.wait() == 0, command.stderr()


@pytest.mark.guarantee("worker-killed", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", pytest.param("ssp:4", marks=SHOWN_ELSEWHERE)])
def test_a_dead_worker_is_not_waited_for(tmp_path: Path, sync: str) -> None:
    flags = ["--sync", sync, "--timer", "off", "--workers", 3, "--servers", 2]
    with Command(JOB, *flags, "--epochs", PASSES, "--json", cwd=tmp_path) as command:
        job_workers = JobWorkers(command, random.Random(0))
        job_workers.until(lambda: len(job_workers.books) == 3, "all three train")
        os.kill(job_workers.pid_of("worker-1"), signal.SIGKILL)
        job_workers.until(lambda: job_workers.told("left", "worker-1"), "its link has ended")
        job_workers.until_progress(20)
        assert not job_workers.told("evicted", "worker-1"), "the end of a link is death at once"
        (tmp_path / "go").touch()
        assert command.wait() == WORKERS_FAILED, command.stderr()
    result = json.loads(command.stdout())
    assert result["points"] == PASSES * POINTS, "the dead one's points were visited by others"


@pytest.mark.guarantee("lead-stopped", policies=("asp",), k=(1,))
def test_a_lead_that_was_stopped_evicts_no_worker(tmp_path: Path) -> None:
    """When a stopped lead continues, it may check for silent workers before or after it reads the
    messages that have arrived meanwhile. The order depends on chance, so the test stops the lead
    twice."""
    flags = ["--sync", "asp", "--workers", 3, "--servers", 3, "--replicas", 1]
    with Command(JOB, *flags, "--epochs", PASSES, "--json", cwd=tmp_path) as command:
        job_workers = JobWorkers(command, random.Random(0))
        job_workers.until(lambda: len(job_workers.books) == 3, "all three train")
        lead = command.servers()[0]
        for _ in range(2):
            job_workers.until_progress(10)
            command.await_heartbeats()
            aways = len(command.journal("lead-paused"))
            lost = _lost(command)
            os.kill(lead, signal.SIGSTOP)
            time.sleep(3)  # the lead is stopped for longer than the suspicion time
            os.kill(lead, signal.SIGCONT)
            job_workers.until(
                lambda before=aways: len(command.journal("lead-paused")) > before, "it says"
            )
            job_workers.until_progress(10)
            assert _lost(command) == lost
        (tmp_path / "go").touch()
        assert command.wait() == 0, command.stderr()
    result = json.loads(command.stdout())
    assert result["points"] == PASSES * POINTS


def _lost(command: Command) -> list[dict[str, Any]]:
    return [*command.journal("evicted"), *command.journal("server-lost")]


@pytest.mark.guarantee("worker-cut", policies=("bsp",), k=(0,))
def test_a_job_waits_for_its_only_worker_that_has_lost_a_server(tmp_path: Path) -> None:
    """The only worker closes its links and joins again over new ones. In between the job has no
    member."""
    flags = ["--sync", "bsp", "--timer", "off", "--workers", 1, "--servers", 2]
    with Command(JOB, *flags, "--epochs", 2, "--json", cwd=tmp_path) as command:
        job_workers = JobWorkers(command, random.Random(0))
        job_workers.until(lambda: len(job_workers.books) == 1, "it trains")
        job_workers.until_progress(10)
        assert cut(job_workers.pid_of("worker-0"), command.servers()[1])
        job_workers.until(lambda: job_workers.told("rejoined", "worker-0"), "it is back")
        (tmp_path / "go").touch()
        assert command.wait() == 0, command.stderr()
        result = json.loads(command.stdout())
    assert result["passes"] == 2
    assert result["points"] == 2 * POINTS, "every point as often as there are passes"

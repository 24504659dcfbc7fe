"""`--on-loss resume` with real processes: a server without replicas, or the lead, is killed."""

import json
import os
import signal
from pathlib import Path

import pytest

from polyrhythm.observe.journal import read_journal
from tests.cluster.processes import Command, call, wait_until

LEDGER = Path(__file__).parent / "jobs" / "ledger.py"
FLAGS = ("--workers", 2, "--servers", 2, "--checkpoint-every", "5rounds", "--min-step", "30ms")


@pytest.mark.parametrize(("victim", "respawn"), [(1, False), (0, True)], ids=["server", "lead"])
def test_a_job_goes_on_from_its_newest_checkpoint(
    tmp_path: Path, victim: int, respawn: bool
) -> None:
    flags = [*FLAGS, "--on-loss", "resume", "--epochs", 3, "--json"]
    flags += ["--respawn"] if respawn else []
    checkpoints = tmp_path / "runs" / "run" / "checkpoints"
    with Command("digits", *flags, cwd=tmp_path, trace=False, spares=2) as command:
        wait_until(lambda: list(checkpoints.glob("*/manifest.json")), "there is a checkpoint")
        os.kill(command.servers()[victim], signal.SIGKILL)
        assert command.wait() == 0, command.stderr()
        result = json.loads(command.stdout())
    assert result["servers"] == (2 if respawn else 1)
    assert result["failed"] is None and result["passes"] == 3
    first = json.loads((tmp_path / "runs" / "run" / "result.json").read_text())
    assert "died" in first["failed"]
    lines = list(read_journal(tmp_path / "runs" / "run-2" / "journal.jsonl"))
    rounds = [line["round"] for line in lines if line["what"] == "rounds"]
    assert rounds[0] >= 5, "the second run begins at the round of a checkpoint"
    story = call("story", "run-2", cwd=tmp_path).stdout
    assert f"round {rounds[0] + 1} opened" in story


def test_the_first_servers_go_on_without_one_that_joined_later(tmp_path: Path) -> None:
    adds = ("--updater", "addition", "--set", "columns=64", "--target-accuracy", 1.0)
    flags = [*FLAGS, *adds, "--on-loss", "resume"]
    with Command(LEDGER, *flags, cwd=tmp_path, trace=False, spares=2) as command:
        command.await_round(1)  # slices move to a server only if it joins after that
        server = command.serve()
        holds = "s2 is a primary"
        wait_until(
            lambda: any(line["slices"].get("s2") for line in command.journal("rerouted")), holds
        )
        before = len(command.journal("checkpoint"))
        wait_until(lambda: len(command.journal("checkpoint")) > before, "there is a checkpoint")
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: "the job continues with 2 servers" in command.stderr(), "it rolls back")
        (tmp_path / "finish").touch()
        assert command.wait() == 0, command.stderr()


def test_without_checkpoints_it_is_refused(tmp_path: Path) -> None:
    done = call("train", "digits", "--on-loss", "resume", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "polyrhythm: --on-loss resume needs checkpoints: give --checkpoint-every 60s\n"
    )

"""A worker that is stopped is evicted; when it goes on, it joins again and contributes again."""

import os
import signal
from pathlib import Path

import pytest
from processes import Command, wait_until

MANY = 1_000_000


def contributions(command: Command, worker: int) -> int:
    lines = command.journal("rounds")
    return lines[-1]["workers"].get(str(worker), {"contributions": 0})["contributions"]


@pytest.mark.parametrize(
    ("sync", "link", "workers"), [("bsp", "local", 2), ("asp", "tcp", 2), ("ssp:2", "local", 1)]
)
def test_a_sleeper_comes_back(
    tmp_path: Path, long_job: Path, sync: str, link: str, workers: int
) -> None:
    flags = ("--rounds", MANY, "--timer", "off", "--servers", 2, "--sync", sync, "--link", link)
    with Command(long_job, *flags, "--workers", workers, cwd=tmp_path) as command:
        command.await_round(1)
        wait_until(lambda: command.journal("rounds")[-1]["at_s"] > 3.0, "its rhythm is known")
        sleeper = command.workers()[-1]
        os.kill(sleeper, signal.SIGSTOP)
        (evicted,) = wait_until(lambda: command.journal("evicted"), "it was evicted")
        assert evicted["derivation"]
        os.kill(sleeper, signal.SIGCONT)
        (rejoined,) = wait_until(lambda: command.journal("rejoined"), "it joined again")
        assert rejoined["worker"] == evicted["worker"]
        before = contributions(command, rejoined["worker"])
        wait_until(
            lambda: contributions(command, rejoined["worker"]) > before + 10, "it contributes again"
        )
        command.assert_alive()
        os.kill(command.process.pid, signal.SIGINT)
        command.wait(10)
        assert "Traceback" not in command.stderr()

"""If contributions are folded one by one, servers multiply each rate by 1/P, where P is the current
number of workers."""

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.processes import Command, wait_until

JOB = Path(__file__).parent / "jobs" / "rates.py"
STEPS = 40
IN_FLIGHT = 3
"""How many contributions the two counts may differ by: two that were sent but are missing from the
parameters that a worker has read, and one that was counted before the eviction."""


def book(folder: Path, name: str) -> list[tuple[int, float, int]]:
    path = folder / f"{name}.book"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [line.split() for line in lines if line.count(" ") == 2]
    return [(int(row[0]), float(row[1]), int(row[2])) for row in rows]


@pytest.mark.parametrize("sync", ["asp", "ssp:4"])
def test_a_worker_that_rejoins_alone_trains_at_the_full_rate(tmp_path: Path, sync: str) -> None:
    flags = ["--sync", sync, "--workers", 2, "--servers", 1, "--timer", "off"]
    with Command(JOB, *flags, "--rounds", 1_000_000, cwd=tmp_path) as command:

        def rows() -> list[tuple[int, float, int]]:
            return book(tmp_path, "worker-0")

        wait_until(lambda: len(rows()) > 20, "both train")
        (first,) = {row[0] for row in rows()}
        pids = [int((tmp_path / f"worker-{n}.pid").read_text()) for n in range(2)]
        command.await_heartbeats()
        os.kill(pids[0], signal.SIGSTOP)
        wait_until(lambda: command.journal("evicted"), "worker-0 is evicted")
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: command.left("worker-1"), "worker-1 is gone")
        os.kill(pids[0], signal.SIGCONT)

        def again() -> list[tuple[int, float, int]]:
            return [row for row in rows() if row[0] != first]

        wait_until(lambda: len(again()) > STEPS, "worker-0 trains again, alone")
        since = again()
        os.kill(command.process.pid, signal.SIGTERM)
        command.wait()
    moved = since[0][1] - since[STEPS][1]
    assert abs(moved - (since[STEPS][2] - since[0][2])) <= IN_FLIGHT

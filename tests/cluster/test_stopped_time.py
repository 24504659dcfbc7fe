"""If a worker is stopped with SIGSTOP in the middle of a step, the time of the stop is not counted
as computing.

The whole job is stopped together with the worker. Otherwise the lead would evict the worker, and
the steps of that incarnation would not be counted.
"""

import os
import signal
import time
from pathlib import Path

from tests.cluster.processes import Command, wait_until

STOPPED_S = 6.0
JOB = """
import os, time
from pathlib import Path
import torch


def main(worker):
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            model(torch.ones(2, 8)).sum().backward()
        while os.path.exists("hold"):
            Path("held").touch()
            time.sleep(0.01)
        optimizer.step(points=2)
"""


def test_the_time_in_which_a_worker_was_stopped_is_not_counted_as_computing(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    flags = ("--workers", 1, "--servers", 1, "--rounds", 1_000_000, "--timer", "off", "--quiet")
    with Command("job.py", *flags, cwd=tmp_path) as command:
        command.await_round(5)
        (tmp_path / "hold").touch()
        wait_until((tmp_path / "held").exists, "the worker is in its step")
        everything = command.pids()
        before_s, began_s = compute_s(command), time.monotonic()
        for pid in everything:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: time.monotonic() > began_s + STOPPED_S, "it has been stopped for long")
        stopped_s = time.monotonic() - began_s
        round_ = command.journal("rounds")[-1]["round"]
        (tmp_path / "hold").unlink()
        for pid in everything:
            os.kill(pid, signal.SIGCONT)
        command.await_round(round_ + 3)
        booked_s = compute_s(command) - before_s
        assert not command.journal("evicted"), "its contribution counts"
        assert booked_s < time.monotonic() - began_s - stopped_s + 2


def compute_s(command: Command) -> float:
    totals = command.journal("rounds")[-1]["workers"]
    return sum(fields["compute_ns"] for fields in totals.values()) / 1e9

"""`--max-seconds` ends a job with a worker that hangs in its own code."""

import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cluster.processes import Command, wait_until

JOB = '''
"""The first step of worker-1 and of far never ends."""
import time
import torch


def main(worker):
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        while worker.name in ("worker-1", "far"):
            time.sleep(60)
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step(points=2)
    open(f"over-{worker.name}", "w").close()
'''


@pytest.mark.slow
def test_a_job_ends_without_the_worker_that_hangs(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    sizes = ("--workers", 3, "--local-workers", 2, "--servers", 1, "--threads", 1)
    with Command(path, *sizes, "--timer", "off", "--max-seconds", 0.3, cwd=tmp_path) as command:
        far = command.join(path, "--name", "far")
        assert command.wait() == 3, command.stderr()
        errors, said = command.stderr(), command.stdout()
        assert "no update was applied since" in errors and "Traceback" not in errors
        assert "the job reached its goal: 0.3 seconds" in said
        assert "worker-1 failed: its training loop had not ended" in said
        assert "far failed: its training loop had not ended" in said
        (ended,) = command.journal("ended")
        assert ended["rounds"] == 1 and not ended["failed"], "the round was ended without worker-1"
        reasons = {line["name"]: line["reason"] for line in command.journal("left")}
        assert reasons == {"worker-0": "done", "worker-1": "hung", "far": "hung"}
        assert (tmp_path / "over-worker-0").exists(), "the code after its loop has run"
        assert load_file(command.run_dir / "model.safetensors")
        assert far.wait(30) == 1
        assert far.communicate()[1].splitlines()[-1] == (
            "left: the job has ended, and the code of far did not return to its training loop within"
            " 5 s, so this process ends"
        )
        wait_until(lambda: not command.pids(), "every process ended")


STUCK = """
import os
import time
import torch


def main(worker):
    if worker.name == "loads":
        time.sleep(1000)
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step(points=2)
    while worker.name == "writes" and not os.path.exists("go"):
        open("writing", "w").close()
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_commands_of_workers_when_the_job_ends_at_once(tmp_path: Path) -> None:
    """One worker has not attached its model, and its process ends. Another runs the code after its
    loop, and its process ends with that code."""
    path = tmp_path / "job.py"
    path.write_text(STUCK)
    sizes = ("--workers", 2, "--local-workers", 1, "--servers", 1, "--threads", 1)
    with Command(path, *sizes, "--rounds", 5, cwd=tmp_path) as command:
        loads = command.join(path, "--name", "loads")
        wait_until(lambda: command.joined("loads"), "it loads its data")
        writes = command.join(path, "--name", "writes")
        wait_until(lambda: (tmp_path / "writing").exists(), "its loop is over")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(command.process.pid, number)
        command.wait()
        assert loads.wait(60) == 1
        assert "did not return to its training loop" in loads.communicate()[1]
        line = "the code of writes after its training loop still runs"
        assert writes.stderr is not None
        while line not in (said := writes.stderr.readline()):
            assert said, "it has ended"
        (tmp_path / "go").touch()
        assert writes.wait(30) == 0, writes.stderr.read()


@pytest.mark.slow
def test_a_job_whose_workers_hang_while_they_are_imported_ends(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("import time\n\n\ndef main(worker):\n    pass\n\n\ntime.sleep(1000)\n")
    limits = ("--start-timeout", 0.5, "--max-seconds", 0.5)
    with Command(path, "--workers", 2, "--servers", 1, *limits, cwd=tmp_path) as command:
        assert command.wait() == 1
        line = (
            "polyrhythm: round 1 did not open, because none of 2 workers had attached a model:"
            " --start-timeout (0.5 s) and --max-seconds (0.5 s) are over"
        )
        assert command.stderr().splitlines()[-1] == line
        assert {line["reason"] for line in command.journal("left")} == {"unattached"}
        assert "worker-1 failed: it had not attached a model" in command.stdout()
        wait_until(lambda: not command.pids(), "every process ended")

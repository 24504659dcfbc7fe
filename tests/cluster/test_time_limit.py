"""`--max-seconds` ends a job with a worker that hangs in its own code."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cluster.processes import Command, wait_until

JOB = '''
"""The first step of worker-1 never ends."""
import time
import torch


def main(worker):
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        while worker.name == "worker-1":
            time.sleep(60)
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step(points=2)
    open(f"over-{worker.name}", "w").close()
'''


@pytest.mark.slow
def test_a_job_ends_without_the_worker_that_hangs(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    sizes = ("--workers", 2, "--servers", 1, "--threads", 1)
    with Command(path, *sizes, "--timer", "off", "--max-seconds", 0.3, cwd=tmp_path) as command:
        assert command.wait(100) == 3, command.stderr()
        errors, said = command.stderr(), command.stdout()
        assert "nothing was folded since then" in errors and "Traceback" not in errors
        assert "the job reached its goal: 0.3 seconds" in said
        assert "worker-1 failed: its training loop did not end" in said
        (ended,) = command.journal("ended")
        assert ended["rounds"] == 1 and not ended["failed"], "the round was ended without worker-1"
        reasons = {line["name"]: line["reason"] for line in command.journal("left")}
        assert reasons == {"worker-0": "done", "worker-1": "hung"}
        assert (tmp_path / "over-worker-0").exists(), "the code after its loop has run"
        assert load_file(command.run_dir / "model.safetensors")
        wait_until(lambda: not command.pids(), "every process ended")

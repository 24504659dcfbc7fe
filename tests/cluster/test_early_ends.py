"""Workers whose code ends before the job does: a stream that can be read once, and a `main` that
attaches no model."""

from pathlib import Path

import pytest

from tests.cluster.processes import Command, call

ONCE = """
import torch

class Once(torch.utils.data.IterableDataset):
    def __init__(self, count):
        self.points = iter(torch.randn(count, 4))

    def __iter__(self):
        yield from self.points

def main(worker):
    if worker.name == worker.options.get("idle"):
        return
    model = torch.nn.Linear(4, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    count = 40 if worker.name == "worker-0" else 80
    steps = 0
    for points in worker.batches(Once(count), 5):
        model(points).pow(2).mean().backward()
        optimizer.step()
        steps += 1
    worker.report(steps=steps)
    print(f"{worker.name} made {steps} steps")
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "once.py"
    path.write_text(ONCE)
    return path


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:2"])
def test_a_stream_that_ends_ends_the_loop_of_its_worker(
    tmp_path: Path, job: Path, sync: str
) -> None:
    args = (job, "--workers", 2, "--sync", sync, "--max-seconds", 600)
    with Command(*args, cwd=tmp_path) as command:
        assert command.wait() == 0
        (end,) = command.journal("ended")
        assert end["reason"] == "streams-ended" and not end["failed"]
        assert [line["reason"] for line in command.journal("left")] == ["stream-ended"] * 2
    said = (tmp_path / "stderr.txt").read_text()
    assert "worker-0 made 4 steps" in said and "worker-1 made 8 steps" in said
    assert (command.run_dir / "model.safetensors").is_file()


@pytest.mark.parametrize("goal", [("--rounds", 3), ("--rounds", 3, "--quiet")], ids=str)
def test_a_worker_that_attaches_nothing_counts_as_failed(
    tmp_path: Path, job: Path, goal: tuple[object, ...]
) -> None:
    done = call("train", job, "--workers", 2, *goal, "--set", "idle=worker-1", cwd=tmp_path)
    assert done.returncode == 3
    told = "worker-1 failed: main(worker) returned without calling worker.attach(model, optimizer)"
    assert " ".join(done.stderr.split()).count(told) == 1

"""A `DataLoader` with worker processes, inside a polyrhythm worker, which is itself a child
process."""

import json
from pathlib import Path

from tests.cluster.processes import Command

JOB = """
import torch
from torch.utils.data import DataLoader, TensorDataset

points = torch.arange(64.0)[:, None] / 64


def main(worker):
    model = torch.nn.Linear(1, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.3))
    for x, y in worker.batches(TensorDataset(points, 2 * points), batch_size=8):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    loader = DataLoader(TensorDataset(points, 2 * points), batch_size=16, num_workers=2)
    off = [(model(x) - y).abs().max().item() for x, y in loader]
    worker.report(accuracy=1.0 - max(off))
"""


def test_a_loader_is_used_for_evaluating_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    flags = ["--workers", 2, "--servers", 1, "--epochs", 20, "--json"]
    with Command("job.py", *flags, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        assert json.loads(command.stdout())["accuracy"] > 0.8
        assert command.pids() == []

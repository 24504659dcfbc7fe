"""If a job does not learn, every output of the command reports it. The tests use real processes."""

import json
from pathlib import Path

import pytest

from tests.cluster.processes import call

JOB = '''
"""All points are equal: the loss falls with a rate below 0.5, and grows with a higher one."""
import torch


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    x, y = torch.ones(96, 1), torch.full((96, 1), 5.0)
    rate = float(worker.options["rate"])
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=rate))
    for step, (batch, targets) in enumerate(worker.batches((x, y), 8)):
        loss = torch.nn.functional.mse_loss(model(batch), targets)
        loss.backward()
        not_finite = worker.options.get("nan") and step > 3
        optimizer.step(objective=float("nan") if not_finite else loss)
'''


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def flags(job: Path, *more: object) -> tuple[object, ...]:
    return ("train", job, "--workers", 2, "--servers", 1, "--epochs", 3, "--name", "it", *more)


def test_a_model_that_diverged_is_reported(job: Path, tmp_path: Path) -> None:
    done = call(*flags(job, "--set", "rate=0.7"), cwd=tmp_path)
    assert done.returncode == 0, "the job did what it was told"
    first, *rest = done.stdout.splitlines()
    assert first.endswith("3 passes over the data, but its model has diverged")
    assert any("the objective rises: " in row for row in rest)
    assert "  try a lower rate (it is 0.7): the objective has risen since the first round" in rest
    assert "the objective rises: " in done.stderr, "while it ran"
    said = json.loads(call("why", "it", "--json", cwd=tmp_path).stdout)
    assert said["learning"].startswith("the objective rises: ")
    assert said["advice"].startswith("try a lower rate (it is 0.7): ")
    status = json.loads(call("status", "it", "--json", cwd=tmp_path).stdout)
    assert status["learning"]["state"] == "rising"
    assert "but its model has diverged" in status["reason"]


def test_a_model_that_learns_is_not_reported(job: Path, tmp_path: Path) -> None:
    done = call(*flags(job, "--set", "rate=0.1", "--json"), cwd=tmp_path)
    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert result["ended"] == "the job reached its goal: 3 passes over the data"
    assert result["learning"]["state"] == "falling"
    assert result["learning"]["says"] is None and result["learning"]["advice"] is None


def test_an_objective_that_is_not_finite_fails_the_command(job: Path, tmp_path: Path) -> None:
    done = call(*flags(job, "--set", "rate=0.1", "--set", "nan=1", "--json"), cwd=tmp_path)
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert "the objective is not finite" in done.stderr
    assert result["learning"]["state"] == "not-finite"
    assert sorted(result["learning"]["workers"]) == ["worker-0", "worker-1"]
    assert result["objective"] is None and "not finite" in result["failed"]

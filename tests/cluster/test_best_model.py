"""`--keep-best accuracy` keeps the best model beside the last one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.processes import Command, call

JOB = '''
"""Reports accuracies that rise and fall, and saves the model of each report of worker-0. Waits for the
first file of a best model: only one file is written at a time."""
import time
from pathlib import Path

import torch
from torch import nn


def main(worker):
    torch.manual_seed(worker.seed)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.001))
    inputs = torch.randn(320, 16)
    targets = inputs.sum(1, keepdim=True)
    accuracies = {4: 0.2, 8: 0.9, 12: 0.3, 16: 0.7}
    for step, (x, y) in enumerate(worker.batches((inputs, targets), batch_size=8)):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if worker.name == "worker-0" and step in accuracies:
            name = f"reported-{accuracies[step]}.pt"
            torch.save({**model.state_dict(), "version": torch.tensor(worker.version)}, name)
            worker.report(accuracy=accuracies[step])
            while not Path("runs/run/model-best.safetensors").exists():
                time.sleep(0.01)
'''
SIZES = ("--workers", 2, "--servers", 2, "--threads", 1, "--epochs", 1)


def train(cwd: Path, *flags: object) -> dict[str, object]:
    (cwd / "job.py").write_text(JOB)
    with Command("job.py", *SIZES, "--keep-best", "accuracy", "--json", *flags, cwd=cwd) as job:
        assert job.wait() == 0, job.stderr()
    result = json.loads(job.stdout())
    assert result["model"] == str(cwd / "runs" / "run" / "model.safetensors")
    assert not list(job.run_dir.glob("*.part"))
    best = result["best_model"]
    assert best["path"] == str(cwd / "runs" / "run" / "model-best.safetensors")
    assert best["value"] == 0.9
    return dict(best)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """The folder of a job that ran over links of shared memory, and the part of its result about
    the best model."""
    folder = tmp_path_factory.mktemp("local")
    return folder, train(folder)


@pytest.mark.parametrize("link", ["local", "tcp"])
def test_with_rounds_the_version_that_was_evaluated_is_kept(
    tmp_path: Path, link: str, local: tuple[Path, dict[str, object]]
) -> None:
    folder, best = local if link == "local" else (tmp_path, train(tmp_path, "--link", "tcp"))
    kept = load_file(folder / "runs" / "run" / "model-best.safetensors")
    evaluated = torch.load(folder / "reported-0.9.pt")
    assert best["exact"] is True and best["round"] == int(evaluated.pop("version"))
    assert kept.keys() == evaluated.keys()
    assert all(torch.equal(kept[name], evaluated[name]) for name in kept)
    last = load_file(folder / "runs" / "run" / "model.safetensors")
    assert not torch.equal(kept["0.weight"], last["0.weight"])


@pytest.mark.parametrize("flags", [("--sync", "psp"), ("--sync", "asp")], ids=["psp", "asp"])
def test_otherwise_a_later_version_is_kept(tmp_path: Path, flags: tuple[object, ...]) -> None:
    assert train(tmp_path, *flags)["exact"] is False
    kept = load_file(tmp_path / "runs" / "run" / "model-best.safetensors")
    last = load_file(tmp_path / "runs" / "run" / "model.safetensors")
    assert kept.keys() == last.keys()


def test_the_best_model_of_a_run_is_exported(
    tmp_path: Path, local: tuple[Path, dict[str, object]]
) -> None:
    folder, _ = local
    path = tmp_path / "best.pt"
    assert call("export", "run", path, "--best", cwd=folder).returncode == 0
    kept = load_file(folder / "runs" / "run" / "model-best.safetensors")
    exported = torch.load(path)
    assert all(torch.equal(exported[name], kept[name]) for name in kept)


def test_a_metric_that_is_never_reported_is_named(tmp_path: Path) -> None:
    done = call("train", "digits", "--epochs", 1, "--keep-best", "los", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "  best model: none, because no worker reported los" in done.stdout.splitlines()

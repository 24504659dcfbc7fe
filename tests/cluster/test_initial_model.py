"""`train --init` begins with a saved model, and `export` writes the model of a run to another
file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyrhythm.learn.jobs import digits
from tests.cluster.processes import call

SIZES = ("--workers", 2, "--servers", 2, "--threads", 1, "--json")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `first` of digits."""
    cwd = tmp_path_factory.mktemp("trained")
    done = call("train", "digits", *SIZES, "--epochs", 2, "--name", "first", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd


@pytest.mark.parametrize("flags", [(), ("--kind", "local", "--local-steps", 2), ("--sync", "asp")])
def test_training_begins_with_the_saved_model(trained: Path, flags: tuple[object, ...]) -> None:
    """The learning rate of the second run is zero, so it ends with the parameters with which it
    began."""
    out = trained / "start.safetensors"
    assert call("export", "first", out, "--force", cwd=trained).returncode == 0
    name = f"second-{len(list((trained / 'runs').iterdir()))}"
    args = ("--init", out, "--epochs", 1, "--set", "rate=1e-30", "--name", name)
    done = call("train", "digits", *SIZES, *args, *flags, cwd=trained)
    assert done.returncode == 0, done.stderr
    before, after = load_file(out), load_file(trained / "runs" / name / "model.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before)
    first = json.loads((trained / "runs" / "first" / "result.json").read_text())
    assert json.loads(done.stdout)["accuracy"] == first["accuracy"]


def test_a_model_that_differs_is_named_in_one_line_before_training(tmp_path: Path) -> None:
    state = digits.build().state_dict()
    state["2.weight"] = torch.zeros(10, 65)
    save_file(state, tmp_path / "other.safetensors")
    done = call(
        *("train", "digits", *SIZES, "--init", "other.safetensors", "--name", "run"), cwd=tmp_path
    )
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "other.safetensors is not of this model: '2.weight' has shape [10, 65]" in line
    assert not (tmp_path / "runs" / "run" / "model.safetensors").exists()
    journal = (tmp_path / "runs" / "run" / "journal.jsonl").read_text()
    assert '"what":"rounds"' not in journal


def test_a_file_that_cannot_be_read_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"something else")
    for path, fault in (
        ("none.safetensors", "No such file or directory"),
        ("broken.safetensors", "is not a whole safetensors file"),
    ):
        done = call("train", "digits", *SIZES, "--init", path, cwd=tmp_path)
        assert done.returncode == 1
        (line,) = done.stderr.strip().splitlines()
        assert path in line and fault in line
    assert not (tmp_path / "runs").exists()


def test_export_writes_the_model_of_a_run(trained: Path) -> None:
    model = load_file(trained / "runs" / "first" / "model.safetensors")
    done = call("export", "first", "copy.safetensors", cwd=trained)
    assert done.returncode == 0 and done.stdout.strip() == "copy.safetensors"
    assert call("export", "runs/first", "copy.pt", cwd=trained).returncode == 0
    for found in (load_file(trained / "copy.safetensors"), torch.load(trained / "copy.pt")):
        digits.build().load_state_dict(found)
        assert all(torch.equal(found[name], model[name]) for name in model)
    assert not list(trained.glob(".export*"))


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (("none", "out.safetensors"), "there is no run 'none'"),
        (("first", "out.bin"), "must end in .safetensors, .pt or .pth"),
        (("first", "nowhere/out.pt"), "there is no folder"),
        (("first", "runs/first/model.safetensors"), "exists already"),
        (("first", "out.pt", "--checkpoint", "x"), "give a number, or last"),
        (("first", "out.pt", "--checkpoint", "last"), "there is no checkpoint in"),
        (("first", "out.pt", "--best"), "has no best model: train with --keep-best METRIC"),
        (("first", "out.pt", "--best", "--checkpoint", "1"), "exclude each other"),
    ],
)
def test_an_export_that_cannot_work_is_one_line(
    trained: Path, args: tuple[object, ...], fault: str
) -> None:
    done = call("export", *args, cwd=trained)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.strip().splitlines()
    assert fault in line
    assert not (trained / "out.pt").exists() and not list(trained.glob(".export*"))

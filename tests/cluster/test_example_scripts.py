"""Each script of `examples/` trains once, under one policy."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import nn

from benchmarks.examples.catalogue import EXAMPLES, FOLDER
from tests.cluster.notebooks import jupyter_environment
from tests.cluster.processes import Command, call
from tests.commands.warm_server import START_FILE
from tools.newcomer import blocks, save_files

ROOT = FOLDER.parent


LARGE_MODULES = {"lbfgs": "sklearn.datasets", "tabular": "pandas"}
"""The fork server imports these modules for a script, so that the workers do not have to."""


@pytest.mark.cluster
def test_the_example_of_the_readme_learns_and_ends(tmp_path: Path) -> None:
    """The file and its command are taken from the page as they are."""
    (name,) = save_files("README.md", tmp_path)
    command, *_ = [
        line
        for block in blocks("README.md")
        for line in block.lines
        if line.startswith(f"polyrhythm train {name}")
    ]
    done = call(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "runs").glob("*/result.json")
    result = json.loads(path.read_text())
    assert result["failed"] is None and result["passes"] == 20
    assert result["learning"]["first"] > 2 and result["objective"] < 0.5
    assert result["metrics"]["accuracy"] > 0.9
    assert result["learning"]["says"] is None
    nn.Linear(64, 10).load_state_dict(load_file(tmp_path / "runs" / "mine" / "model.safetensors"))


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "policy", "floor", "passes", "points"),
    [
        ("batchnorm_cnn", "bsp", 0.9, 2, 960),
        ("gan", "asp", 0.2, 5, 1_500),
        ("lbfgs", "psp", 0.93, 5, 450),
        ("lenet_like", "fsp", 0.9, 2, 640),
        ("loader", "ssp:4", 0.85, 3, 1_600),
        ("sparse_embeddings", "ssp:4", 0.8, 3, 4_000),
        ("tabular", "bsp", 0.8, 2, 1_600),
        ("transformer", "asp", 0.8, 4, 1_500),
    ],
)
def test_a_script_learns(
    name: str,
    policy: str,
    floor: float,
    passes: int,
    points: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some scripts make fewer passes here than by default (`passes`). With these passes a script
    still reaches a result that is better than `floor`."""
    example = EXAMPLES[name]
    if name in LARGE_MODULES:
        path = tmp_path / "start.py"
        path.write_text(f"import {LARGE_MODULES[name]}\n")
        monkeypatch.setenv(START_FILE, str(path))
    flags = ["--workers", 2, "--servers", 1, "--epochs", passes, *example.words(policy)]
    with Command(example.path, *flags, cwd=tmp_path, trace=False) as command:
        assert command.wait() == 0, command.stderr()
        assert sum(line["points"] for line in command.journal("rounds")) == passes * points
        reports = [line["metrics"][example.measure] for line in command.journal("reported")]
        assert example.deficit(reports[-1], floor) < 0


@pytest.mark.cluster
def test_the_keys_of_the_contrastive_example_keep_their_length(tmp_path: Path) -> None:
    """On every worker, and in the saved model. The pixels themselves give an accuracy of 0.85."""
    flags = ["--workers", 2, "--servers", 1, "--sync", "asp"]
    with Command(EXAMPLES["contrastive"].path, *flags, cwd=tmp_path, trace=False) as command:
        assert command.wait() == 0, command.stderr()
        reports = [line["metrics"] for line in command.journal("reported")]
    assert len(reports) == 2
    for report in reports:
        assert report["shortest_key"] == pytest.approx(1) == report["longest_key"]
        assert report["accuracy"] > 0.89
    (file,) = (tmp_path / "runs").glob("*/model.safetensors")
    lengths = load_file(file)["queue"].norm(dim=1)
    assert lengths.min().item() == pytest.approx(1) == lengths.max().item()


@pytest.mark.cluster
def test_the_notebook_learns(tmp_path: Path) -> None:
    """Jupyter's kernel runs all cells."""
    command = [sys.executable, "-m", "benchmarks.examples.notebook", FOLDER / "notebook.ipynb"]
    options = ["--set=workers=2", "--set=servers=1", "--set=sync=ssp:4", "--set=epochs=3"]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=jupyter_environment(tmp_path / "jupyter"),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["metrics"]["accuracy"] > 0.85
    assert told["points"] == 3 * 1_500

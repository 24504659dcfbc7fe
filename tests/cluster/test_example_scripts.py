"""Each script of `examples/` trains once, under one policy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.examples.catalogue import EXAMPLES, FOLDER
from tests.cluster.processes import Command

ROOT = FOLDER.parent


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "policy", "floor", "points"),
    [
        ("batchnorm_cnn", "bsp", 0.9, 4 * 960),
        ("gan", "asp", 0.2, 20 * 1_500),
        ("lbfgs", "psp", 0.93, 5 * 450),
        ("lenet_like", "fsp", 0.9, 3 * 640),
        ("loader", "ssp:4", 0.85, 6 * 1_600),
        ("sparse_embeddings", "ssp:4", 0.8, 14 * 4_000),
        ("tabular", "bsp", 0.8, 10 * 1_600),
        ("transformer", "asp", 0.8, 5 * 1_500),
    ],
)
def test_a_script_learns(name: str, policy: str, floor: float, points: int, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    flags = ["--workers", 2, "--servers", 1, *example.words(policy)]
    with Command(example.path, *flags, cwd=tmp_path, trace=False) as command:
        assert command.wait(120) == 0, command.stderr()
        assert sum(line["points"] for line in command.journal("rounds")) == points
        reports = [line["metrics"][example.measure] for line in command.journal("reported")]
        assert example.deficit(reports[-1], floor) < 0


@pytest.mark.cluster
def test_the_notebook_learns(tmp_path: Path) -> None:
    """Jupyter's kernel runs all cells."""
    command = [sys.executable, "-m", "benchmarks.examples.notebook", FOLDER / "notebook.ipynb"]
    options = ["--set=workers=2", "--set=servers=1", "--set=sync=ssp:4"]
    places = {name: str(tmp_path) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["metrics"]["accuracy"] > 0.85
    assert told["points"] == 8 * 1_500

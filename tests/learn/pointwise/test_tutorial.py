"""The algorithm of the tutorial runs as it is printed there, and finds the rates of its counts."""

import ast
from pathlib import Path

import numpy as np
import pytest

import polyrhythm as pr

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "pointwise" / "poisson_mixture.py"
RATES = [[2.0, 9.0, 4.0], [5.0, 5.0, 20.0], [8.0, 1.0, 4.0]]


@pytest.mark.parametrize("sync", ["bspb", "fsp"])
def test_the_tutorials_mixture_finds_the_hidden_rates(sync: str, tmp_path: Path) -> None:
    result = pr.train(
        SCRIPT,
        workers=3,
        servers=1,
        sync=sync,
        engine="inline",
        quiet=True,
        max_seconds=100,
        runs_dir=str(tmp_path),
    )
    found = result.state_dict()["rates"].numpy()
    assert np.allclose(found[found[:, 0].argsort()], RATES, atol=0.3)


def test_the_tutorial_prints_the_class_of_the_script() -> None:
    text = SCRIPT.read_text()
    made = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    source = ast.get_source_segment(text, made)
    assert source is not None
    assert source in (ROOT / "docs" / "estimators.md").read_text()
    assert len(source.splitlines()) <= 40

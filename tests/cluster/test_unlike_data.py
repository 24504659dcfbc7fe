"""Workers whose data sets have the same length and other points are refused under every policy, and
take part with `--data-private`."""

import re
from pathlib import Path

import pytest
import torch

from tests.cluster.processes import call

JOB = Path(__file__).parent / "jobs" / "three_sets.py"
EPOCHS = 2
POLICIES = ["bsp", "psp", "fsp", "asp", "ssp:2", "ssp-restart:2"]


def train(folder: Path, sync: str, *flags: object) -> tuple[int, str]:
    kind = "local" if sync == "psp" else "gradient"
    done = call(
        *("train", JOB, "--workers", 3, "--sync", sync, "--kind", kind, "--epochs", EPOCHS),
        *("--updater", "addition", "--max-seconds", 60, "--check", *flags),
        cwd=folder,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("sync", POLICIES)
def test_different_data_of_one_length_is_refused(tmp_path: Path, sync: str) -> None:
    code, said = train(tmp_path, sync, "--set", "own=1")
    assert code in (1, 3), said  # 3: the worker that was first trains on, with all of its points
    said = " ".join(said.split())
    assert re.search(r"data set differs from that of worker-\d in the floating-point numbers", said)
    assert "torch.manual_seed(worker.seed)" in said and "--data-private" in said


@pytest.mark.parametrize("sync", ["asp", "ssp:2"])
def test_with_private_data_all_points_of_every_worker_count(tmp_path: Path, sync: str) -> None:
    code, said = train(tmp_path, sync, "--set", "own=1", "--data-private", "--kind", "gradient")
    assert code == 0, said
    assert (torch.load(tmp_path / "final.pt") == EPOCHS).all()


def test_random_changes_of_the_same_points_are_accepted(tmp_path: Path) -> None:
    code, said = train(tmp_path, "asp")
    assert code == 0, said
    assert (torch.load(tmp_path / "final.pt").sum(0) == EPOCHS).all()

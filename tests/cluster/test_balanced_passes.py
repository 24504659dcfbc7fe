"""Leases move from a slow worker to fast ones, and every pass still visits every point once."""

import json
from pathlib import Path

import torch

from tests.cluster.processes import call
from tests.cluster.test_resume import JOBS

EPOCHS = 6


def train(folder: Path, *flags: object) -> list[dict[str, object]]:
    """Train with one slow worker of three; return the journal."""
    done = call(
        *("train", JOBS / "counted_visits.py", "--updater", "addition", "--min-step", "20ms"),
        *("--sync", "fsp", "--interval", "60ms", "--kind", "local", "--set", "local=1"),
        *("--set", "batch=20"),
        *("--workers", 3, "--servers", 2, "--slow", "2=4x", "--check", "--quiet"),
        *("--epochs", EPOCHS, "--name", "run", *flags),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    lines = (folder / "runs" / "run" / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_point_is_visited_once_per_pass_while_leases_move(tmp_path: Path) -> None:
    journal = train(tmp_path)
    moves = [line for line in journal if line["what"] == "chunks"]
    assert moves and all(line["points"] for line in moves)
    last = [line for line in journal if line["what"] == "rounds"][-1]
    assert isinstance(last["workers"], dict)
    assert all(each["passes"] == EPOCHS for each in last["workers"].values())
    for block in torch.load(tmp_path / "worker-0.final.pt"):
        assert (block == EPOCHS).all()
    shown = call("status", "run", cwd=tmp_path).stdout
    assert "chunks) moved between workers" in " ".join(shown.split())


def test_nothing_moves_with_migrate_off(tmp_path: Path) -> None:
    journal = train(tmp_path, "--migrate", "off")
    assert not [line for line in journal if line["what"] == "chunks"]
    for block in torch.load(tmp_path / "worker-0.final.pt"):
        assert (block == EPOCHS).all()

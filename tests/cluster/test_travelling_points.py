"""Points travel from a slow worker to fast ones, workers die meanwhile, and every pass still visits
every point once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster.processes import call
from tests.cluster.test_resume import JOBS

EPOCHS = 4
SOURCE, TARGET = "worker-2", "worker-1"


def train(folder: Path, *flags: object) -> list[dict[str, Any]]:
    """Train with one slow worker of three; return the journal."""
    call(
        *("train", JOBS / "travelling_points.py", "--updater", "addition", "--min-step", "8ms"),
        *("--sync", "fsp", "--interval", "60ms", "--kind", "local", "--name", "run"),
        *("--workers", 3, "--servers", 2, "--slow", "2=8x", "--check", "--quiet"),
        *("--epochs", EPOCHS, "--max-seconds", 80, *flags),
        cwd=folder,
    )
    lines = (folder / "runs" / "run" / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check(folder: Path, journal: list[dict[str, Any]]) -> None:
    (ended,) = (line for line in journal if line["what"] == "ended")
    assert ended["reason"] == "goal", ended
    for block in torch.load(folder / "worker-0.final.pt"):
        assert (block == EPOCHS).all()


def lines(journal: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [line for line in journal if line["what"] == what]


@pytest.mark.parametrize(
    "flags",
    [
        ("full",),
        ("blocking",),
        ("full", "--link", "tcp"),
        ("full", "--set", "processes=1"),
        ("full", "--set", "again=30"),
        ("auto", "--set", "unlike=1"),
    ],
    ids=["full", "blocking", "tcp", "loader processes", "several loops", "unlike data sets"],
)
def test_every_point_is_visited_once_per_pass_while_points_travel(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    journal = train(tmp_path, "--migrate", *flags)
    check(tmp_path, journal)
    assert sum(line["points"] for line in lines(journal, "points-moved")) > 0
    received = [int((tmp_path / f"worker-{n}.received.txt").read_text()) for n in (0, 1)]
    assert sum(received) > 0, "the fast workers visit points that the slow one has read"
    assert lines(journal, "migration")[-1]["mode"] in ("full", "blocking")


@pytest.mark.guarantee("points-travel", policies=("fsp",), k=(0,))
@pytest.mark.parametrize(
    ("who", "did"), [(SOURCE, "sent"), (TARGET, "took")], ids=["source", "target"]
)
def test_no_point_is_lost_or_visited_twice_if_a_worker_dies_while_points_travel(
    who: str, did: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = tmp_path / "crash"
    crash.write_text(f"{who} {did} ChunkPart")
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(crash))
    journal = train(tmp_path, "--migrate", "full")
    assert not crash.exists(), f"{who} was not killed"
    assert who in [line["name"] for line in lines(journal, "left")]
    check(tmp_path, journal)
    if who == SOURCE:
        kept = lines(journal, "points-kept")
        assert "move-member-left" in [line["reason"] for line in kept]

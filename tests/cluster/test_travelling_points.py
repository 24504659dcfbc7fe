"""Points travel from a slow worker to fast ones, workers die meanwhile, and every pass still visits
every point once."""

from pathlib import Path

import pytest
import torch

from tests.cluster.slow_worker import FAST, SLOW, lines, train, train_with_crash
from tests.cluster.test_resume import JOBS

JOB = JOBS / "travelling_points.py"
EPOCHS = 4
FLAGS = ("--min-step", "40ms", "--epochs", EPOCHS)


def check(folder: Path) -> None:
    for block in torch.load(folder / "worker-0.final.pt"):
        assert (block == EPOCHS).all()


@pytest.mark.parametrize(
    "flags",
    [
        ("full",),
        ("blocking",),
        ("full", "--link", "tcp"),
        ("full", "--set", "processes=1"),
        ("full", "--set", "again=5"),
    ],
    ids=["full", "blocking", "tcp", "loader processes", "several loops"],
)
def test_every_point_is_visited_once_per_pass_while_points_travel(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    journal = train(JOB, tmp_path, *FLAGS, "--migrate", *flags)
    check(tmp_path)
    assert sum(line["points"] for line in lines(journal, "points-moved")) > 0
    received = [int((tmp_path / f"worker-{n}.received.txt").read_text()) for n in (0, 1)]
    assert sum(received) > 0, "the fast workers visit points that the slow one has read"
    assert lines(journal, "migration")[-1]["mode"] in ("full", "blocking")


@pytest.mark.guarantee("points-travel", policies=("fsp",), k=(0,))
@pytest.mark.parametrize(("who", "did"), [(SLOW, "sent"), (FAST, "took")], ids=["source", "target"])
def test_no_point_is_lost_or_visited_twice_if_a_worker_dies_while_points_travel(
    who: str, did: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*FLAGS, "--migrate", "full")
    journal = train_with_crash(who, did, monkeypatch, JOB, tmp_path, *flags)
    assert who in [line["name"] for line in lines(journal, "left")]
    check(tmp_path)
    if who == SLOW:
        kept = lines(journal, "points-kept")
        assert "move-member-left" in [line["reason"] for line in kept]

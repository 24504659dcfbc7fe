"""Private data that some workers share (`--share-data`). Their points travel to fast workers, and
workers die meanwhile. Every pass visits every point once, and no point leaves a worker that shares
nothing."""

from pathlib import Path

import pytest
import torch

from tests.cluster.jobs.shared_visits import WORKERS, points_of
from tests.cluster.processes import Command, call
from tests.cluster.slow_worker import FAST, LIMIT_S, SLOW, lines, train, train_with_crash
from tests.cluster.slow_worker import FLAGS as SLOW_WORKER

JOB = Path(__file__).parent / "jobs" / "shared_visits.py"
EPOCHS = 4
FLAGS = ("--data-private", "--min-step", "32ms", "--epochs", EPOCHS)


def visits(folder: Path, owner: int) -> torch.Tensor:
    """How often every point of this worker was visited."""
    counts = torch.load(folder / "worker-0.final.pt")[owner]
    assert not counts[points_of(owner) :].any(), "points that no worker has"
    return counts[: points_of(owner)]


def seen(folder: Path, worker: int) -> list[int]:
    """For each owner, how many of its points this worker has received."""
    return [int(text) for text in (folder / f"worker-{worker}.seen.txt").read_text().split()]


@pytest.mark.parametrize(
    "flags",
    [(), ("--migrate", "blocking"), ("--set", "processes=1")],
    ids=["auto", "blocking", "loader processes"],
)
def test_points_of_a_worker_that_shares_them_are_visited_by_others_once_per_pass(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    journal = train(JOB, tmp_path, *FLAGS, "--share-data", *flags)
    assert lines(journal, "points-moved")
    for owner in range(WORKERS):
        assert (visits(tmp_path, owner) == EPOCHS).all()
    assert seen(tmp_path, 0)[2] + seen(tmp_path, 1)[2] > 0, "fast workers visit points of worker-2"


def test_without_the_flag_no_point_leaves_its_worker(tmp_path: Path) -> None:
    journal = train(JOB, tmp_path, *FLAGS, "--epochs", 2)
    assert not lines(journal, "points-moved") and not lines(journal, "chunks")
    for worker in range(WORKERS):
        assert [n for n, points in enumerate(seen(tmp_path, worker)) if points] == [worker]


@pytest.mark.guarantee("shared-private-points", policies=("fsp",), k=(0,))
@pytest.mark.parametrize(("who", "did"), [(SLOW, "sent"), (FAST, "took")], ids=["owner", "target"])
def test_no_point_is_visited_twice_if_a_worker_dies_while_its_points_travel(
    who: str, did: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*FLAGS, "--share-data")
    journal = train_with_crash(who, did, monkeypatch, JOB, tmp_path, *flags)
    dead = int(who[-1])
    for owner in {0, 1, 2} - {dead}:
        assert (visits(tmp_path, owner) == EPOCHS).all()
    assert visits(tmp_path, dead).max() <= EPOCHS
    told = [line["reason"] for line in lines(journal, "data-set")]
    assert any(str(code).endswith("lost") for code in told), told


def test_an_owner_that_is_started_again_continues_with_the_points_that_it_still_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*FLAGS, "--share-data", "--respawn")
    train_with_crash(SLOW, "sent", monkeypatch, JOB, tmp_path, *flags)
    for owner in (0, 1):
        assert (visits(tmp_path, owner) == EPOCHS).all()
    assert visits(tmp_path, 2).max() <= EPOCHS


def test_a_worker_that_joins_decides_by_itself_whether_it_shares(tmp_path: Path) -> None:
    """worker-1 is slow and shares nothing. worker-2 joins, is slow too, and shares its points."""
    flags = ("--local-workers", 2, "--slow", "1=4x")
    with Command(JOB, *SLOW_WORKER, *FLAGS, *flags, cwd=tmp_path) as command:
        joiner = command.join(JOB, "--name", SLOW, "--share-data", "--slow", "8x")
        assert command.wait(LIMIT_S) == 0, command.stderr()
        assert joiner.wait(60) == 0
        announced = {line["name"]: line["shares"] for line in command.journal("data")}
        names = {line["worker"]: line["name"] for line in command.journal("joined")}
        moved = [
            (names[line["worker"]], names[line["target"]])
            for line in command.journal("points-moved")
        ]
    assert announced == {"worker-0": False, "worker-1": False, "worker-2": True}
    assert moved and {source for source, target in moved if target != SLOW} == {SLOW}
    for owner in range(WORKERS):
        assert (visits(tmp_path, owner) == EPOCHS).all()
    assert not seen(tmp_path, 0)[1] and not seen(tmp_path, 2)[1], "worker-1 has kept its points"
    assert not seen(tmp_path, 1)[0] and not seen(tmp_path, 2)[0], "worker-0 has kept its points"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--share-data", "--sync", "fsp"), "it needs --data-private"),
        (
            ("--share-data", "--data-private", "--sync", "fsp", "--migrate", "off"),
            "it contradicts --migrate off",
        ),
        (("--share-data", "--data-private", "--sync", "bsp"), "give --migrate full"),
        (
            ("--data-private", "--sync", "fsp", "--migrate", "full"),
            "without it no points leave their worker",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, flags: tuple[str, ...], why: str
) -> None:
    done = call("train", JOB, "--rounds", 1, *flags, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert why in line

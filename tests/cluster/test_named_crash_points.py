"""A server dies at each named crash point in turn and is restarted: no acknowledged contribution is
lost, and none is counted twice."""

import random
from pathlib import Path

import pytest

from tests.cluster.job_servers import JobServers
from tests.cluster.job_workers import JobWorkers
from tests.cluster.ledger_job import FEW, JOB, MANY, finish, flags, gather
from tests.cluster.processes import Command

OTHERS = 3
"""The number of servers besides the lead's. With fewer, one server would die five times within
seconds, and the engine would not restart it."""
BOTH = (
    "took Contribution",  # the contribution was added, but not acknowledged yet
    "sent Copy",  # a replica may have made the step, but the primary has not
    "took Copy",  # a replica has made the step, but has not acknowledged it yet
    "sent Copied",
    "took Copied",  # every replica has made the step, but the worker does not know it
    "sent Arrived",
    # the server dies in the middle of publishing, which acknowledges contributions under asp
    "sent Parameters",
)
ROUNDS = ("took Fold", "sent Folded")
WHEN_IT_CATCHES_UP = (
    "took Place",
    "took State",  # the server dies in the middle of catching up
    "sent Adopted",
    "sent Placed",  # the workers do not have the new routes yet
)


@pytest.mark.guarantee("worst-moment", k=(1,))
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("sync", "columns", "points"),
    [("bsp", FEW, (*BOTH, *ROUNDS)), ("asp", MANY, BOTH)],
    ids=["bsp", "asp"],
)
def test_nothing_is_lost_when_a_primary_or_replica_dies_at_a_crash_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, columns: int, points: tuple[str]
) -> None:
    with staged(tmp_path, monkeypatch, sync, columns) as command:
        job_workers, job_servers, file = meet(command)
        for number, point in enumerate(points):
            job_workers.begin("server", job_servers.crash(1 + number % OTHERS, point, file))
            job_workers.until_calm()
            job_workers.until_progress(5)
        finish(job_workers)


@pytest.mark.guarantee("worst-moment", k=(1,))
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("sync", "columns"), [("bsp", FEW), ("asp", MANY)], ids=["bsp", "asp"])
def test_nothing_is_lost_when_a_learner_dies_at_a_crash_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, columns: int
) -> None:
    """A killed server restarts, and dies again before it has caught up. Nothing is lost, because no
    slice depends on a server that has not caught up."""
    with staged(tmp_path, monkeypatch, sync, columns) as command:
        job_workers, job_servers, file = meet(command)
        for number, point in enumerate(WHEN_IT_CATCHES_UP):
            server = 1 + number % OTHERS
            job_workers.begin("server", job_servers.kill_and_crash(server, point, file))
            job_workers.until_calm()
            job_workers.until_progress(5)
        finish(job_workers)


def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, columns: int) -> Command:
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(tmp_path / "crash-at"))
    more = ["--workers", 2, "--servers", 1 + OTHERS, "--replicas", 1, "--min-step", "250ms"]
    return Command(JOB, *flags(sync, columns), *more, cwd=tmp_path)


def meet(command: Command) -> tuple[JobWorkers, JobServers, Path]:
    job_workers = gather(command, random.Random(0), workers=2)
    return job_workers, JobServers(job_workers, random.Random(0)), command.cwd / "crash-at"

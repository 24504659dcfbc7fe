"""A stopped reader costs a server the memory of one version, until the reader is removed."""

import os
import random
import signal
from pathlib import Path

from polyrhythm.cli.launch import WORKERS_FAILED
from tests.cluster.job_workers import JobWorkers
from tests.cluster.jobs.torn import LENGTH
from tests.cluster.processes import Command
from tests.cluster.test_torn import JOB, READER, trap

SLICES = 4
NBYTES = SLICES * LENGTH * 4
WORKERS = 3
PUSH_BUFFERS = 3
"""The number of push buffers of a worker: two with unacknowledged contributions, and one that is
being filled."""


def versions_of(server: int) -> int:
    """Return how many versions a server has memory for. The server may write to the segments of its
    versions, but not to the workers' push buffers."""
    found = 0
    for line in Path(f"/proc/{server}/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        first, end = (int(address, 16) for address in span.split("-"))
        found += "/memfd:" in line and rights == "rw-s" and end - first >= NBYTES
    return found


def shared_nbytes(server: int) -> int:
    """Return the shared memory that the server has touched: its versions and the workers' push
    buffers."""
    lines = Path(f"/proc/{server}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssShmem"))


def most_versions(readers: int) -> int:
    """Return the largest number of versions that a server may hold: the current one, one per
    reader, and a spare."""
    return readers + 2


def most_nbytes(workers: int) -> float:
    """Return the largest size of versions and push buffers together, plus half a version because
    sizes are rounded up."""
    return (most_versions(workers) + PUSH_BUFFERS * workers + 0.5) * NBYTES


def test_memory_grows_by_one_version_for_a_stopped_reader_and_shrinks_again(tmp_path: Path) -> None:
    flags = ["--sync", "asp", "--link", "local", "--set", f"slices={SLICES}", "--servers", 1]
    flags += ["--updater", "addition", "--workers", WORKERS, "--target-accuracy", 1.0, "--json"]
    # steps are long, because a job without pauses keeps both cores busy
    flags += ["--min-step", "120ms"]
    with Command(JOB, *flags, cwd=tmp_path) as command:
        job_workers = JobWorkers(command, random.Random(0))
        job_workers.until(lambda: len(job_workers.books) == WORKERS, "all train")
        server = command.servers()[0]
        reader = trap(job_workers)
        most = 0

        def others_went_on() -> bool:
            nonlocal most
            most = max(most, versions_of(server))
            return job_workers.told("evicted", READER) > 0 and job_workers.acknowledged() >= wanted

        wanted = job_workers.acknowledged() + 30
        job_workers.until(others_went_on, "the others go on, and it is evicted")
        assert 1 < most <= most_versions(WORKERS)
        assert shared_nbytes(server) <= most_nbytes(WORKERS)
        os.kill(reader, signal.SIGKILL)
        left = WORKERS - 1

        def shrunk() -> bool:
            few = versions_of(server) <= most_versions(left)
            return few and shared_nbytes(server) <= most_nbytes(left)

        job_workers.until(shrunk, "its memory is given back")
        most, wanted = 0, job_workers.acknowledged() + 30
        job_workers.until(others_went_on, "the others go on")
        assert most <= most_versions(left), "and it does not come back"
        (tmp_path / "finish").touch()
        assert command.wait() == WORKERS_FAILED, command.stderr()
        assert not (tmp_path / "torn").exists()

"""No torn reads: all bytes of a slice that a worker reads belong to one version, however slowly it
reads. A reader that is stopped in the middle of reading does not make other processes wait.

With POLYRHYTHM_TORTURE=N, the tests cover every policy over every link with small and large models,
and stop the reader N times.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.job_workers import JobWorkers
from tests.cluster.processes import Command

JOB = Path(__file__).parent / "jobs" / "torn.py"
TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
READER = "worker-1"
OTHERS = ("worker-0", "worker-2")
MB_20, MB_102 = 10, 51
"""The number of slices in models of 20 MB and 102 MB."""
CASES = [
    ("bsp", "local", MB_20),
    ("asp", "tcp", MB_20),
]
if TORTURE > 1:
    CASES = [
        (sync, link, slices)
        for sync in ("bsp", "ssp:2", "asp")
        for link in ("local", "tcp")
        for slices in (MB_20, MB_102)
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("sync", "link", "slices"), CASES)
def test_a_reader_that_stops_in_the_middle_of_a_pull_gets_one_version(
    tmp_path: Path, sync: str, link: str, slices: int
) -> None:
    flags = ["--sync", sync, "--timer", "1s", "--link", link, "--set", f"slices={slices}"]
    flags += ["--updater", "addition", "--workers", 3, "--servers", 2, "--slow", "2=2x"]
    # steps are this long because every step copies and checks the whole model
    flags += ["--min-step", "300ms"]
    with Command(JOB, *flags, "--target-accuracy", 1.0, "--json", cwd=tmp_path) as command:
        job_workers = JobWorkers(command, random.Random(0))
        job_workers.until(lambda: len(job_workers.books) == 3, "all three train")
        for _ in range(TORTURE):
            stop_shortly(job_workers)
            stop_for_long(job_workers)
        (tmp_path / "finish").touch()
        assert command.wait() == 0, command.stderr()
    assert not (tmp_path / "torn").exists(), (tmp_path / "torn").read_text()


def trap(job_workers: JobWorkers) -> int:
    """Make the reader stop itself in the middle of its next pull."""
    pid = job_workers.pid_of(READER)
    trapped = job_workers.command.cwd / f"{READER}.trapped"
    trapped.unlink(missing_ok=True)
    (job_workers.command.cwd / f"{READER}.trap").touch()
    job_workers.until(lambda: trapped.exists() and is_stopped(pid), "the reader is in a pull")
    return pid


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stop_shortly(job_workers: JobWorkers) -> None:
    pid, until_s = trap(job_workers), time.monotonic() + 0.2
    job_workers.until(lambda: time.monotonic() >= until_s, "a short while")
    go_on(job_workers, pid)


def stop_for_long(job_workers: JobWorkers) -> None:
    """Stop the reader until it is evicted, while the other workers continue."""
    before = job_workers.told("evicted", READER)
    pid = trap(job_workers)
    for name in OTHERS:
        wanted = len(job_workers.books[name].acknowledged) + 5
        job_workers.until(
            lambda name=name, wanted=wanted: len(job_workers.books[name].acknowledged) >= wanted,
            f"{name} goes on",
        )
    job_workers.until(lambda: job_workers.told("evicted", READER) > before, "it is evicted")
    came = job_workers.told("rejoined", READER)
    # the worker may first get acknowledgements for contributions that it sent before the stop
    go_on(job_workers, pid)
    job_workers.until(lambda: job_workers.told("rejoined", READER) > came, "it joins again")


def go_on(job_workers: JobWorkers, pid: int) -> None:
    wanted = len(job_workers.books[READER].acknowledged) + 2
    os.kill(pid, signal.SIGCONT)
    job_workers.until(
        lambda: len(job_workers.books[READER].acknowledged) >= wanted,
        "the reader contributes again",
    )

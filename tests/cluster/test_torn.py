"""Torn reads: what a worker has read of a slice is one version of it, however slow it reads, and a
reader that stops in the middle stops nobody else.

POLYRHYTHM_TORTURE: every policy over every link, small and large, and as many stops.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.company import Company
from tests.cluster.processes import Command

JOB = Path(__file__).parent / "jobs" / "torn.py"
TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
READER = "worker-1"
OTHERS = ("worker-0", "worker-2")
MB_20, MB_102 = 10, 51
"""In slices."""
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
def test_a_reader_that_stops_in_the_middle(
    tmp_path: Path, sync: str, link: str, slices: int
) -> None:
    flags = ["--sync", sync, "--timer", "1s", "--link", link, "--set", f"slices={slices}"]
    flags += ["--updater", "addition", "--workers", 3, "--servers", 2, "--slow", "2=2x"]
    with Command(JOB, *flags, "--target-accuracy", 1.0, "--json", cwd=tmp_path) as command:
        company = Company(command, random.Random(0))
        company.until(lambda: len(company.books) == 3, "all three train")
        for _ in range(TORTURE):
            stop_shortly(company)
            stop_for_long(company)
        (tmp_path / "finish").touch()
        assert command.wait(60) == 0, command.stderr()
    assert not (tmp_path / "torn").exists(), (tmp_path / "torn").read_text()


def trap(company: Company) -> int:
    """Let the reader stop in the middle of a pull."""
    pid = company.pid_of(READER)
    trapped = company.command.cwd / f"{READER}.trapped"
    trapped.unlink(missing_ok=True)
    (company.command.cwd / f"{READER}.trap").touch()
    company.until(lambda: trapped.exists() and is_stopped(pid), "the reader is in a pull")
    return pid


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stop_shortly(company: Company) -> None:
    pid, until_s = trap(company), time.monotonic() + 0.2
    company.until(lambda: time.monotonic() >= until_s, "a short while")
    go_on(company, pid)


def stop_for_long(company: Company) -> None:
    """Until it is evicted; the others go on all the while."""
    before = company.told("evicted", READER)
    pid = trap(company)
    for name in OTHERS:
        wanted = len(company.books[name].acknowledged) + 5
        company.until(
            lambda name=name, wanted=wanted: len(company.books[name].acknowledged) >= wanted,
            f"{name} goes on",
        )
    company.until(lambda: company.told("evicted", READER) > before, "it is evicted")
    came = company.told("rejoined", READER)
    go_on(company, pid)  # by what it had sent before, it may be
    company.until(lambda: company.told("rejoined", READER) > came, "it joins again")


def go_on(company: Company, pid: int) -> None:
    wanted = len(company.books[READER].acknowledged) + 2
    os.kill(pid, signal.SIGCONT)
    company.until(
        lambda: len(company.books[READER].acknowledged) >= wanted, "the reader contributes again"
    )

"""Servers join and leave while a job trains, with and without replicas: every acknowledged contribution
is in every slice once, and no server but a killed one is missed."""

import os
import random
import signal
from pathlib import Path

import pytest

from tests.cluster.job_workers import JobWorkers
from tests.cluster.ledger_job import (
    ADAGRAD,
    ADDITION,
    FEW,
    INT8,
    JOB,
    MOMENTUM,
    ONCE,
    OUTER,
    SPARSE_ADAM,
    finish,
    flags,
    gather,
)
from tests.cluster.processes import Command
from tests.cluster.test_statistics_processes import finish as finish_tally
from tests.commands.start import Process, start

TALLY = JOB.parent / "tally.py"


def until_told(job_workers: JobWorkers, number: int, *what: str) -> None:
    job_workers.until(lambda: told(job_workers, number, *what), f"s{number}: {what[0]}")


def told(job_workers: JobWorkers, number: int, *what: str) -> bool:
    lines = job_workers.lines
    return any(line["what"] in what and line.get("server") == number for line in lines)


def until_copied(job_workers: JobWorkers) -> None:
    """Wait until every slice has all of its copies again."""

    def restored() -> bool:
        at = [i for i, line in enumerate(job_workers.lines) if line["what"] in CHANGES]
        after = job_workers.lines[max(at, default=0) :]
        told = [line["learning"] for line in after if line["what"] in ("copied", "rerouted")]
        return bool(told) and not told[-1]

    job_workers.until(restored, "every slice has its copies")


CHANGES = ("server-joined", "server-lost", "draining")


def join(job_workers: JobWorkers, number: int, **environ: str) -> Process:
    """Start a server by command, and wait until it is in the job."""
    process = job_workers.command.serve(**environ)
    until_told(job_workers, number, "server-joined")
    return process


def drain(job_workers: JobWorkers, number: int) -> None:
    command = start("drain", "run", f"s{number}", cwd=job_workers.command.cwd)
    until_told(job_workers, number, "drained")
    assert command.wait() == 0


def replace_all(job_workers: JobWorkers) -> None:
    """Let two servers join in place of s1 and s2, and one more join and leave again."""
    first = join(job_workers, 3)
    for old, new in ((1, 4), (2, 5)):
        drain(job_workers, old)
        join(job_workers, new)
        job_workers.until_progress(5)
    os.kill(first.pid, signal.SIGTERM)
    until_told(job_workers, 3, "drained")
    assert first.wait(30) == 0


@pytest.mark.guarantee("servers-replaced", k=(0,))
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("sync", "link", "columns", "optimizer"),
    [
        ("bsp", "tcp", ONCE, ADAGRAD),
        ("bsp", "auto", FEW, ADDITION),
        ("bsp", INT8, ONCE, OUTER),
        ("asp", "auto", ONCE, MOMENTUM),
        ("bsp", "tcp", ONCE, SPARSE_ADAM),
    ],
    ids=["bsp-adagrad", "bsp", "bsp-outer-int8", "asp-momentum", "bsp-sparse-adam"],
)
def test_all_servers_but_the_leads_are_replaced_without_replicas(
    tmp_path: Path, sync: str, link: str, columns: int, optimizer: str
) -> None:
    rng = random.Random(f"replaced {sync}")
    more = ["--link", *link.split(), "--workers", 2, "--servers", 3]
    with Command(JOB, *flags(sync, columns, optimizer), *more, cwd=tmp_path) as command:
        job_workers = gather(command, rng, workers=2)
        replace_all(job_workers)
        finish(job_workers, optimizer)
        assert not command.journal("server-lost")


@pytest.mark.guarantee("servers-replaced", policies=("fsp",), k=(0,))
@pytest.mark.timeout(300)
def test_all_servers_but_the_leads_are_replaced_with_kind_statistics(tmp_path: Path) -> None:
    more = [
        "--kind",
        "statistics",
        "--sync",
        "fsp",
        "--interval",
        "60ms",
        "--timer",
        "1s",
        "--json",
    ]
    more += ["--target-accuracy", 1.0, "--workers", 3, "--servers", 3, "--min-step", "100ms"]
    with Command(TALLY, *more, cwd=tmp_path) as command:
        job_workers = gather(command, random.Random(0), workers=3)
        replace_all(job_workers)
        finish_tally(job_workers)
        assert not command.journal("server-lost")


@pytest.mark.guarantee("servers-replaced", k=(1,))
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("sync", "columns", "optimizer"),
    [("bsp", FEW, ADDITION), ("asp", ONCE, MOMENTUM)],
    ids=["bsp", "asp-momentum"],
)
def test_nothing_is_lost_while_servers_join_leave_and_die(
    tmp_path: Path, sync: str, columns: int, optimizer: str
) -> None:
    more = ["--workers", 3, "--servers", 3, "--replicas", 1]
    with Command(JOB, *flags(sync, columns, optimizer), *more, cwd=tmp_path) as command:
        job_workers = gather(command, random.Random(f"storm {sync}"), workers=3)
        joined = {number: join(job_workers, number) for number in (3, 4)}
        job_workers.begin_fault("kill")
        drain(job_workers, 1)
        job_workers.until_calm()
        until_copied(job_workers)
        # a server that takes slices over dies
        asked = start("drain", "run", "s2", cwd=tmp_path)
        until_told(job_workers, 2, "draining")
        os.kill(joined[3].pid, signal.SIGKILL)
        until_told(job_workers, 3, "server-lost")
        until_told(job_workers, 2, "drained")
        assert asked.wait(30) == 0
        joined[5] = join(job_workers, 5)
        until_copied(job_workers)
        # a server that gives slices up dies
        os.kill(joined[4].pid, signal.SIGTERM)
        until_told(job_workers, 4, "draining")
        os.kill(joined[4].pid, signal.SIGKILL)
        until_told(job_workers, 4, "server-lost", "drained")
        finish(job_workers, optimizer)


@pytest.mark.guarantee("servers-replaced", policies=("bsp",), k=(0,))
@pytest.mark.parametrize("point", ["took Place", "took State", "sent Adopted"])
def test_without_replicas_the_death_of_a_server_that_only_learns_is_survived(
    tmp_path: Path, point: str
) -> None:
    with Command(JOB, *flags("bsp", FEW), "--workers", 2, "--servers", 2, cwd=tmp_path) as command:
        job_workers = gather(command, random.Random(0), workers=2)
        (tmp_path / "crash-at").write_text(f"s2 {point}")
        join(job_workers, 2, POLYRHYTHM_CRASH_AT=str(tmp_path / "crash-at"))
        until_told(job_workers, 2, "server-lost")
        drain(job_workers, 1)
        finish(job_workers)

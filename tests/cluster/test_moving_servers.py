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
from tests.commands.start import Process, start


def until_told(job_workers: JobWorkers, what: str, number: int) -> None:
    job_workers.until(
        lambda: any(line["server"] == number for line in job_workers.command.journal(what)),
        f"s{number}: {what}",
    )


def join(job_workers: JobWorkers, number: int) -> Process:
    """Start a server by command, and wait until it is in the job."""
    process = job_workers.command.serve()
    until_told(job_workers, "server-joined", number)
    return process


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
        first = join(job_workers, 3)
        for old, new in ((1, 4), (2, 5)):
            drained = start("drain", "run", f"s{old}", cwd=tmp_path)
            until_told(job_workers, "drained", old)
            assert drained.wait(30) == 0
            join(job_workers, new)
            job_workers.until_progress(5)
        os.kill(first.pid, signal.SIGTERM)
        until_told(job_workers, "drained", 3)
        assert first.wait(30) == 0
        finish(job_workers, optimizer)
        assert not command.journal("server-lost")

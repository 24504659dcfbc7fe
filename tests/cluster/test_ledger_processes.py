"""The ledger with faults of workers: no acknowledged contribution is lost and none is counted
twice.

The tests use real processes, which are killed, are stopped, join and leave by a seeded schedule.

POLYRHYTHM_TORTURE is the number of schedules for each policy.
"""

import random
from pathlib import Path

import pytest

from tests.cluster.ledger_job import (
    ADAGRAD,
    ADDITION,
    FEW,
    INT8,
    JOB,
    MANY,
    MOMENTUM,
    ONCE,
    SEEDS,
    endure,
    finish,
    flags,
    gather,
    say_how_again,
)
from tests.cluster.processes import SHOWN_ELSEWHERE, Command

FAULTS = ("kill", "kill", "stop", "stop", "pause", "join", "join", "leave")


@pytest.mark.guarantee("worker-killed", k=(0,))
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("sync", "link", "columns", "optimizer"),
    [
        pytest.param("bsp", "auto", FEW, ADDITION, marks=SHOWN_ELSEWHERE),
        pytest.param("ssp:2", "tcp", MANY, ADDITION, marks=SHOWN_ELSEWHERE),
        pytest.param("asp", "auto", MANY, ADDITION, marks=SHOWN_ELSEWHERE),
        ("psp", "auto", MANY, ADDITION),
        ("fsp", "tcp", FEW, ADDITION),
        pytest.param("bsp", "auto", ONCE, ADAGRAD, marks=SHOWN_ELSEWHERE),
        pytest.param("ssp:2", "tcp", ONCE, MOMENTUM, marks=SHOWN_ELSEWHERE),
        pytest.param("asp", "auto", ONCE, MOMENTUM, marks=SHOWN_ELSEWHERE),
        pytest.param("asp", INT8, MANY, ADDITION, marks=SHOWN_ELSEWHERE),
    ],
    ids=[
        *("bsp", "ssp", "asp", "psp", "fsp", "bsp-adagrad", "ssp-momentum", "asp-momentum"),
        "asp-int8",
    ],
)
def test_every_acknowledged_contribution_is_counted_once(
    tmp_path: Path,
    sync: str,
    link: str,
    columns: int,
    optimizer: str,
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    say_how_again(request, seed)
    rng = random.Random(f"{sync} {seed}")
    more = ["--link", *link.split(), "--workers", 3, "--servers", 2]
    if sync in ("psp", "fsp"):
        more += ["--kind", "local", "--set", "local=1", "--interval", "40ms"]
        # a server with a slow fold (here s0) adds and folds on adder threads; s1 adds and folds on
        # the thread that receives a message
        more += ["--slow-fold", "0=1ms"]
    with Command(JOB, *flags(sync, columns, optimizer), *more, cwd=tmp_path) as command:
        job_workers = gather(command, rng, workers=3)
        endure(job_workers, rng.sample(FAULTS, len(FAULTS)), job_workers.begin_fault, rng)
        finish(job_workers, optimizer)
        assert all(command.journal("placed")[0]["slices"]), "both servers hold slices"

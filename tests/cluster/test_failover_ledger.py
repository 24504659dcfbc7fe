"""The ledger with faults of workers and servers: every acknowledged contribution is in every slice
once.

The tests use real processes and a seeded schedule of faults. Every slice has one replica, so at
most one server is missing at a time. The job runs with plain addition, and with optimizers whose
state must survive too.

POLYRHYTHM_TORTURE is the number of schedules for each policy.
"""

import random
from pathlib import Path

import pytest

from tests.cluster.job_servers import JobServers
from tests.cluster.ledger_job import (
    ADAGRAD,
    ADDITION,
    FEW,
    INT8,
    JOB,
    MANY,
    MOMENTUM,
    ONCE,
    OUTER,
    SEEDS,
    SPARSE_ADAM,
    SPARSE_MOMENTUM,
    endure,
    finish,
    flags,
    gather,
    say_how_again,
)
from tests.cluster.processes import SHOWN_ELSEWHERE, Command

SERVERS = ("kill-server", "stop-server")
"""The faults that every schedule has. The other faults are drawn at random."""
DRAWN = (
    *("pause-server", "cut-servers", "cut-lead", "kill-server"),
    *("cut", "cut", "kill", "stop", "pause", "join", "leave"),
)
FAULTS = 7


def draw(rng: random.Random) -> list[str]:
    faults = [*SERVERS, *rng.sample(DRAWN, FAULTS - len(SERVERS))]
    return rng.sample(faults, FAULTS)


@pytest.mark.guarantee("servers-killed", k=(1,))
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("sync", "link", "columns", "optimizer"),
    [
        ("bsp", "auto", FEW, ADDITION),
        pytest.param("ssp:2", "tcp", MANY, ADDITION, marks=SHOWN_ELSEWHERE),
        pytest.param("asp", "auto", MANY, ADDITION, marks=SHOWN_ELSEWHERE),
        pytest.param("bsp", "tcp", ONCE, ADAGRAD, marks=SHOWN_ELSEWHERE),
        ("bsp", "auto", ONCE, OUTER),
        ("ssp:2", "tcp", ONCE, MOMENTUM),
        ("asp", "auto", ONCE, MOMENTUM),
        ("bsp", "auto", ONCE, SPARSE_ADAM),
        ("asp", "tcp", ONCE, SPARSE_MOMENTUM),
        ("bsp", INT8, FEW, ADDITION),
        ("asp", INT8, ONCE, MOMENTUM),
        pytest.param("ssp:2", INT8, MANY, ADDITION, marks=SHOWN_ELSEWHERE),
        pytest.param("bsp", INT8, ONCE, OUTER, marks=SHOWN_ELSEWHERE),
    ],
    ids=[
        *("bsp", "ssp", "asp", "bsp-adagrad", "bsp-outer", "ssp-momentum", "asp-momentum"),
        *("bsp-rows-sparse-adam", "asp-rows-momentum"),
        *("bsp-int8", "asp-momentum-int8", "ssp-int8", "bsp-outer-int8"),
    ],
)
def test_no_contribution_is_lost_or_counted_twice(
    tmp_path: Path,
    sync: str,
    link: str,
    columns: int,
    optimizer: str,
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    say_how_again(request, seed)
    rng = random.Random(f"failover {sync} {seed}")
    faults = draw(rng)
    print(f"faults: {' '.join(faults)}")
    more = ["--link", *link.split(), "--workers", 3, "--servers", 3, "--replicas", 1]
    # a server with a slow fold (here s1) adds and folds on adder threads
    more += ["--slow-fold", "1=1ms"]
    with Command(JOB, *flags(sync, columns, optimizer), *more, cwd=tmp_path) as command:
        job_workers = gather(command, rng, workers=3)
        job_servers = JobServers(job_workers, rng)

        def begin_fault(fault: str) -> None:
            (job_servers if fault in job_servers.kinds else job_workers).begin_fault(fault)

        endure(job_workers, faults, begin_fault, rng)
        finish(job_workers, optimizer)
        assert "made dense" not in command.stderr(), "rows are contributed"
        partial = link == INT8 or optimizer in (SPARSE_ADAM, SPARSE_MOMENTUM)
        assert any("pushed" in line for line in command.journal("rounds")) is partial

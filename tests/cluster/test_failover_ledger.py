"""The ledger with servers among the victims: every acknowledged contribution is in every slice once,
whatever befalls workers and servers. Real processes, a seeded schedule, never more than one server
missing at a time, because every slice has one copy.

POLYRHYTHM_TORTURE is the number of schedules for each policy.
"""

import os
import random
import shlex
from pathlib import Path

import numpy as np
import pytest
from company import Company
from keepers import Keepers
from processes import Command
from test_ledger_processes import FEW, JOB, MANY, assert_right

SERVERS = ("kill-server", "stop-server")
"""In every schedule; the rest is drawn."""
DRAWN = (
    *("pause-server", "cut-servers", "cut-lead", "kill-server"),
    *("cut", "cut", "kill", "stop", "pause", "join", "leave"),
)
FAULTS = 7
SEEDS = range(int(os.environ.get("POLYRHYTHM_TORTURE", "1")))


def draw(rng: random.Random) -> list[str]:
    faults = [*SERVERS, *rng.sample(DRAWN, FAULTS - len(SERVERS))]
    return rng.sample(faults, FAULTS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("sync", "link", "columns"),
    [("bsp", "auto", FEW), ("ssp:2", "tcp", MANY), ("asp", "auto", MANY)],
    ids=["bsp", "ssp", "asp"],
)
def test_nothing_is_lost_and_nothing_twice(
    tmp_path: Path,
    sync: str,
    link: str,
    columns: int,
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    test = shlex.quote(request.node.nodeid)
    print(f"again: POLYRHYTHM_TORTURE={seed + 1} python -m pytest {test}")  # shown if it fails
    rng = random.Random(f"failover {sync} {seed}")
    faults = draw(rng)
    print(f"faults: {' '.join(faults)}")
    flags = ["--sync", sync, "--timer", "1s", "--link", link, "--set", f"columns={columns}"]
    flags += ["--updater", "addition", "--workers", 3, "--respawn", "--min-step", "5ms"]
    flags += ["--servers", 3, "--replicas", 1, "--target-accuracy", 1.0, "--json"]
    with Command(JOB, *flags, cwd=tmp_path) as command:
        company = Company(command, rng)
        company.until(lambda: len(company.books) == 3, "all three train")
        company.until_progress(10)
        keepers = Keepers(company, rng)
        for fault in faults:
            (keepers if fault in keepers.kinds else company).befall(fault)
            if rng.random() < 0.5:
                company.until_calm()
            company.until_progress(rng.randrange(5, 30))
        company.until_calm()
        stayed = company.present()
        (tmp_path / "finish").touch()
        assert command.wait(60) == 0, command.stderr()
    company.read()
    finals = [np.load(tmp_path / f"{name}.final.npy") for name in stayed]
    assert len(finals) >= 2
    for final in finals:
        assert_right(final, company)

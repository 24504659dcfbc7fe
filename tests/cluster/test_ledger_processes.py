"""The ledger: no contribution is lost that was acknowledged, none is counted twice, whatever befalls
the workers. Real processes, real kills, stops, joins and leaves, by a seeded schedule.

POLYRHYTHM_TORTURE is the number of schedules for each policy.
"""

import os
import random
import shlex
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from company import Company
from jobs.ledger import ROWS
from processes import Command

JOB = Path(__file__).parent / "jobs" / "ledger.py"
FAULTS = ("kill", "kill", "stop", "stop", "pause", "join", "join", "leave")
SEEDS = range(int(os.environ.get("POLYRHYTHM_TORTURE", "1")))
TORTURED = "POLYRHYTHM_TORTURE" in os.environ
ELSEWHERE = pytest.mark.skipif(
    not TORTURED, reason="its ledger with servers among the victims runs every time"
)
FEW, MANY = 64, 4096
"""Columns of a block. Few: elements are counted more than once, and all travels in small frames."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("sync", "link", "columns"),
    [
        ("bsp", "auto", FEW),
        pytest.param("ssp:2", "tcp", MANY, marks=ELSEWHERE),
        pytest.param("asp", "auto", MANY, marks=ELSEWHERE),
        ("psp", "auto", MANY),
        ("fsp", "tcp", FEW),
    ],
    ids=["bsp", "ssp", "asp", "psp", "fsp"],
)
def test_every_acknowledged_contribution_is_there_once(
    tmp_path: Path,
    sync: str,
    link: str,
    columns: int,
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    test = shlex.quote(request.node.nodeid)
    print(f"again: POLYRHYTHM_TORTURE={seed + 1} python -m pytest {test}")  # shown if it fails
    rng = random.Random(f"{sync} {seed}")
    flags = ["--sync", sync, "--timer", "1s", "--link", link, "--set", f"columns={columns}"]
    flags += ["--updater", "addition", "--workers", 3, "--servers", 2, "--respawn"]
    flags += ["--min-step", "5ms", "--target-accuracy", 1.0, "--json"]
    if sync in ("psp", "fsp"):
        flags += ["--kind", "local", "--set", "local=1", "--interval", "40ms"]
    with Command(JOB, *flags, cwd=tmp_path) as command:
        company = Company(command, rng)
        company.until_progress(10)
        company.until(lambda: len(company.books) == 3, "all three train")
        for fault in rng.sample(FAULTS, len(FAULTS)):
            company.befall(fault)
            if rng.random() < 0.5:
                company.until_calm()
            company.until_progress(rng.randrange(5, 30))
        company.until_calm()
        stayed = company.present()
        (tmp_path / "finish").touch()
        assert command.wait(60) == 0, command.stderr()
        assert all(command.journal("placed")[0]["slices"]), "both servers hold slices"
    company.read()
    finals = [np.load(tmp_path / f"{name}.final.npy") for name in stayed]
    assert len(finals) >= 2
    for final in finals:
        assert_right(final, company)


def assert_right(final: npt.NDArray[np.float32], company: Company) -> None:
    columns = final.shape[2]
    rows = {int(name.rpartition("-")[2]): book for name, book in company.books.items()}
    for row in range(ROWS):
        book = rows.get(row)
        sent = counted(book.sent if book else [], columns)
        acknowledged = counted(book.acknowledged if book else [], columns)
        for number, block in enumerate(final):
            more, less = block[row] > sent, block[row] < acknowledged
            assert not more.any(), f"slice {number}, worker {row}: {np.flatnonzero(more)} too often"
            assert not less.any(), f"slice {number}, worker {row}: {np.flatnonzero(less)} was lost"
    assert all(book.acknowledged for book in rows.values())


def counted(numbers: list[int], columns: int) -> npt.NDArray[np.int64]:
    return np.bincount(np.array(numbers, dtype=np.int64) % columns, minlength=columns)

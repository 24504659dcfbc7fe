"""The job of the ledgers (`jobs/ledger.py`), what befalls its company, and whether its blocks are right
at the end: every acknowledged contribution is in every slice once."""

import os
import random
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from company import Company
from jobs.ledger import ROWS
from processes import Command

JOB = Path(__file__).parent / "jobs" / "ledger.py"
FEW, MANY = 64, 4096
"""Columns of a block. Few: elements are counted more than once, and all travels in small frames."""
SEEDS = range(int(os.environ.get("POLYRHYTHM_TORTURE", "1")))


def flags(sync: str, columns: int) -> list[str | float]:
    return [
        *("--sync", sync, "--timer", "1s", "--set", f"columns={columns}", "--min-step", "5ms"),
        *("--updater", "addition", "--respawn", "--target-accuracy", 1.0, "--json"),
    ]


def say_how_again(request: pytest.FixtureRequest, seed: int) -> None:
    """It is shown if the test fails."""
    test = shlex.quote(request.node.nodeid)
    print(f"again: POLYRHYTHM_TORTURE={seed + 1} python -m pytest {test}")


def gather(command: Command, rng: random.Random, workers: int) -> Company:
    company = Company(command, rng)
    company.until(lambda: len(company.books) == workers, f"all {workers} train")
    company.until_progress(10)
    return company


def endure(
    company: Company, faults: Iterable[str], befall: Callable[[str], None], rng: random.Random
) -> None:
    for fault in faults:
        befall(fault)
        if rng.random() < 0.5:
            company.until_calm()
        company.until_progress(rng.randrange(5, 30))


def finish(company: Company) -> None:
    """Let the job end, and look at what those have who stayed."""
    command, folder = company.command, company.command.cwd
    company.until_calm()
    stayed = company.present()
    (folder / "finish").touch()
    assert command.wait(60) == 0, command.stderr()
    company.read()
    finals = [np.load(folder / f"{name}.final.npy") for name in stayed]
    assert len(finals) >= 2
    for final in finals:
        _assert_right(final, company)


def _assert_right(final: npt.NDArray[np.float32], company: Company) -> None:
    columns = final.shape[2]
    rows = {int(name.rpartition("-")[2]): book for name, book in company.books.items()}
    for row in range(ROWS):
        book = rows.get(row)
        sent = _counted(book.sent if book else [], columns)
        acknowledged = _counted(book.acknowledged if book else [], columns)
        for number, block in enumerate(final):
            more, less = block[row] > sent, block[row] < acknowledged
            assert not more.any(), f"slice {number}, worker {row}: {np.flatnonzero(more)} too often"
            assert not less.any(), f"slice {number}, worker {row}: {np.flatnonzero(less)} was lost"
    assert all(book.acknowledged for book in rows.values())


def _counted(numbers: list[int], columns: int) -> npt.NDArray[np.int64]:
    return np.bincount(np.array(numbers, dtype=np.int64) % columns, minlength=columns)

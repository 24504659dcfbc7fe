"""Run the counting job (`jobs/ledger.py`) with a schedule of faults, and check its blocks at the end.

Every acknowledged contribution must be in every slice once.
"""

import os
import random
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.cluster.job_workers import JobWorkers
from tests.cluster.jobs.ledger import ROWS
from tests.cluster.processes import TORTURED, Command

JOB = Path(__file__).parent / "jobs" / "ledger.py"
FEW, MANY = 64, 4096
"""The number of columns of a block. With few columns, several steps add to one element, and all
frames are small."""
_STEPS_MS = {"addition": 5, "other": 10} if TORTURED else {"addition": 150, "other": 250}
"""The shortest duration of a worker's step. With 5 ms, a job keeps both cores busy while a test
waits."""
_BETWEEN_FAULTS = (5, 30) if TORTURED else (3, 12)
"""How many contributions are acknowledged between two faults: at least the first number, and fewer than
the second."""
ONCE = 8192 if TORTURED else 2048
"""A number of columns with which no element gets two contributions: enough for more than a minute
of contributions."""
ADDITION, MOMENTUM, ADAGRAD, OUTER = "addition", "momentum", "adagrad", "outer"
SPARSE_MOMENTUM, SPARSE_ADAM = "sparse-momentum", "sparse-adam"
"""The updaters with which servers fold (`jobs/ledger.py`). `OUTER`: workers make the steps, and
servers fold their averaged change with adagrad. `SPARSE_...`: gradients of rows."""
_WITH_MOMENTUM = (MOMENTUM, SPARSE_MOMENTUM)
_CLOSE = 1e-3
_SETTLED = 12
"""The number of steps after which momentum has added all of a contribution except 2**-13 of it."""
INT8 = "tcp --push int8"
"""Links over TCP with quantised pushes. A contribution with one step has at most one number other than 0
in every block. Quantisation does not change the largest number of a block, so the contribution stays
exact."""
SEEDS = range(int(os.environ.get("POLYRHYTHM_TORTURE", "1")))


def flags(sync: str, columns: int, optimizer: str = ADDITION) -> list[str | float]:
    """Return the flags of the job. If servers fold with an optimizer, the flags turn off the
    scaling of a contribution by the number of members."""
    return [
        *("--sync", sync, "--timer", "1s", "--set", f"columns={columns}"),
        *("--min-step", f"{_STEPS_MS.get(optimizer, _STEPS_MS['other'])}ms"),
        *("--respawn", "--target-accuracy", 1.0, "--json", *folded_with(optimizer)),
    ]


def folded_with(optimizer: str) -> tuple[str, ...]:
    if optimizer == ADDITION:
        return ("--updater", "addition")
    if optimizer == OUTER:
        return ("--kind", "local", "--set", "local=1", "--outer", "adagrad:lr=1")
    plain = ("--async-scale", "none", "--async-momentum", "contribution")
    return ("--set", f"optimizer={optimizer}", *plain)


def say_how_again(request: pytest.FixtureRequest, seed: int) -> None:
    """Print the command that repeats the test. pytest shows it if the test fails."""
    test = shlex.quote(request.node.nodeid)
    print(f"again: POLYRHYTHM_TORTURE={seed + 1} python -m pytest {test}")


def gather(command: Command, rng: random.Random, workers: int) -> JobWorkers:
    job_workers = JobWorkers(command, rng)
    job_workers.until(lambda: len(job_workers.books) == workers, f"all {workers} train")
    job_workers.until_progress(10)
    return job_workers


def endure(
    job_workers: JobWorkers,
    faults: Iterable[str],
    begin_fault: Callable[[str], None],
    rng: random.Random,
) -> None:
    for fault in faults:
        begin_fault(fault)
        if rng.random() < 0.5:
            job_workers.until_calm()
        job_workers.until_progress(rng.randrange(*_BETWEEN_FAULTS))


def finish(job_workers: JobWorkers, optimizer: str = ADDITION) -> None:
    """Let the job end, and check the parameters of the workers that stayed."""
    command, folder = job_workers.command, job_workers.command.cwd
    job_workers.until_calm()
    stayed = job_workers.present()
    (folder / "finish").touch()
    assert command.wait() == 0, command.stderr()
    job_workers.read()
    finals = [np.load(folder / f"{name}.final.npy") for name in stayed]
    assert len(finals) >= 2
    for final in finals:
        if optimizer == ADDITION:
            _assert_right(final, job_workers)
        else:
            _assert_right_with(optimizer, final, job_workers)


def _assert_right(final: npt.NDArray[np.float32], job_workers: JobWorkers) -> None:
    columns = final.shape[2]
    rows = {int(name.rpartition("-")[2]): book for name, book in job_workers.books.items()}
    for row in range(ROWS):
        book = rows.get(row)
        sent = _counted(book.sent if book else [], columns)
        acknowledged = _counted(book.acknowledged if book else [], columns)
        for number, block in enumerate(final):
            more, less = block[row] > sent, block[row] < acknowledged
            assert not more.any(), f"slice {number}, worker {row}: {np.flatnonzero(more)} too often"
            assert not less.any(), f"slice {number}, worker {row}: {np.flatnonzero(less)} was lost"
    assert all(book.acknowledged for book in rows.values())


def _assert_right_with(
    optimizer: str, final: npt.NDArray[np.float32], job_workers: JobWorkers
) -> None:
    """Check a job with an optimizer. An optimizer is not linear, so each element gets at most one
    contribution. The element shows how often the contribution was folded: 0 if never, 1 if once
    (with momentum, 1/2 or more), at least 1.08 if twice."""
    columns = final.shape[2]
    for name, book in job_workers.books.items():
        row = int(name.rpartition("-")[2])
        assert max(book.sent) < columns, "an element stands for one contribution"
        acknowledged = np.array(sorted(book.acknowledged), dtype=np.int64)
        assert len(acknowledged) and len(set(book.acknowledged)) == len(book.acknowledged)
        settled = acknowledged[:-_SETTLED] if optimizer in _WITH_MOMENTUM else acknowledged
        for number, block in enumerate(final):
            where, values = f"slice {number}, {name}", block[row]
            folded = np.flatnonzero(values)
            lost = sorted(set(acknowledged.tolist()) - set(folded.tolist()))
            assert not lost, f"{where}: {lost} was lost"
            unsent = sorted(set(folded.tolist()) - set(book.sent))
            assert not unsent, f"{where}: {unsent} was never sent"
            least = 0.5 if optimizer in _WITH_MOMENTUM else 1.0
            wrong = (values[folded] > 1 + _CLOSE) | (values[folded] < least - _CLOSE)
            assert not wrong.any(), f"{where}: {folded[wrong]} became {values[folded][wrong]}"
            unfinished = settled[values[settled] < 1 - _CLOSE]
            assert not len(unfinished), f"{where}: {unfinished} lost its momentum"
    empty = set(range(ROWS)) - {int(name.rpartition("-")[2]) for name in job_workers.books}
    assert not final[:, sorted(empty)].any()


def _counted(numbers: list[int], columns: int) -> npt.NDArray[np.int64]:
    return np.bincount(np.array(numbers, dtype=np.int64) % columns, minlength=columns)

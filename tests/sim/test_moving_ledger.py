"""No acknowledged contribution is lost and none is folded twice while slices move, because servers join
and are drained, and now and then one dies.

The tests try 40 seeds, each with one of the policies. With POLYRHYTHM_TORTURE=N and N > 1 they try
5,000 seeds.
"""

import os

import pytest

from tests.sim.ledger import bookkeeping, settle, stir
from tests.sim.staged_run import Run

TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
FOUND = (212,)
SEEDS = (*range(40), *FOUND) if TORTURE == 1 else range(5_000)
SYNCS = ["bsp", "ssp:2", "asp", "psp", "fsp"]
LOST = {"server-died", "slices-lost"}


@pytest.mark.guarantee("servers-replaced", policies=("bsp", "ssp", "asp", "psp", "fsp"), k=(0, 1))
@pytest.mark.parametrize("seed", SEEDS)
def test_the_books_balance_though_slices_move(seed: int) -> None:
    text = stir(SYNCS[seed % len(SYNCS)], seed)
    try:
        with bookkeeping(seed) as books:
            run = Run(text, seed=seed)
        assert books.counted
        if run.end.failed:
            # a server that has just joined may die as the primary of its first slices
            assert run.end.reason.code in LOST and "crash" in text, run.end.reason
        else:
            settle(run, books)
    except Exception as error:
        again = (
            f"tests/sim/test_moving_ledger.py::test_the_books_balance_though_slices_move[{seed}]"
        )
        raise AssertionError(f"{error}; see it again with: python -m pytest '{again}'") from error

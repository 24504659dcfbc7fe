"""No acknowledged contribution is lost and none is folded twice, whatever happens to workers and
servers, as long as no more servers are lost at once than a slice has replicas.

The tests try 50 seeds, each with one of the policies, and all seeds that have shown a fault before.
With POLYRHYTHM_TORTURE=N and N > 1 they try 10,000 seeds.
"""

import os

import pytest

from tests.sim.ledger import keep_books, run_booked

TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
FOUND = (
    *(1216, 2411, 3224, 3232, 3311, 3490, 3976, 5666, 5836),
    *(6461, 6526, 7010, 7271, 7897, 8951, 9323, 9762, 9988),
)
SEEDS = (*range(50), *FOUND) if TORTURE == 1 else range(10_000)
SYNCS = ["bsp", "ssp:2", "asp", "psp", "fsp"]


@pytest.mark.guarantee("servers-killed", policies=("bsp", "ssp", "asp", "psp", "fsp"), k=(1, 2))
@pytest.mark.parametrize("seed", SEEDS)
def test_the_books_balance_though_servers_die(seed: int) -> None:
    sync = SYNCS[seed % len(SYNCS)]
    try:
        run = keep_books(sync, seed, servers=True, found=seed in FOUND)
    except Exception as error:
        again = (
            f"tests/sim/test_server_ledger.py::test_the_books_balance_though_servers_die[{seed}]"
        )
        command = f"POLYRHYTHM_TORTURE={TORTURE} python -m pytest '{again}'"
        raise AssertionError(f"{error}; see it again with: {command}") from error
    assert not run.end.failed, run.end.reason


def cut_and_crash(cut_ms: float) -> str:
    """A worker's link to server 2 breaks. Then server 1 dies, and the new routes make the worker
    link to server 2 again."""
    return f"""
        [job]
        sync = "ssp:3"
        servers = 3
        replicas = 1
        rounds = 20
        model = "60kB"
        slice = "15kB"
        heartbeat = "50ms"
        limit = "20s"
        [link]
        delay = "1ms"
        bandwidth = "20Mbit"
        [[workers]]
        count = 2
        step = "10ms"
        [[events]]
        at = "{cut_ms}ms"
        what = "cut"
        server = 2
        worker = "worker-1"
        [[events]]
        at = "{cut_ms + 3}ms"
        what = "crash"
        server = 1
    """


@pytest.mark.parametrize("cut_ms", range(100, 160, 5))
def test_contributions_in_flight_over_a_cut_link_are_sent_again(cut_ms: int) -> None:
    run, _ = run_booked(cut_and_crash(cut_ms))
    assert not run.end.failed, run.end.reason

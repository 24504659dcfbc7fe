"""Nothing acknowledged is lost and nothing is folded twice, whatever befalls workers and servers, as
long as no more servers are lost at once than there are copies (the design's §9).

50 seeds, which take turns with the policies, and those that found a fault once; POLYRHYTHM_TORTURE
makes that 10,000.
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
        run = keep_books(sync, seed, servers=True)
    except Exception as error:
        again = (
            f"tests/sim/test_server_ledger.py::test_the_books_balance_though_servers_die[{seed}]"
        )
        command = f"POLYRHYTHM_TORTURE={TORTURE} python -m pytest '{again}'"
        raise AssertionError(f"{error}; see it again with: {command}") from error
    assert not run.end.failed, run.end.reason


def cut_and_crash(cut_ms: float) -> str:
    """A worker's link breaks, and the worker links again because another server dies."""
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

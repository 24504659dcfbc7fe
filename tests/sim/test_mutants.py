"""A suite that lets one of these faults live is not done: each is switched on, and must be shown."""

from collections.abc import Callable

import pytest
from ledger import keep_books, run_booked
from mutants import (
    MUTANTS,
    folds_write_what_is_read,
    replicas_heed_anybody,
    what_a_cut_link_lost_stays_lost,
)

from polyrhythm.core.ledger import Ledger
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.clocks import Clocks
from polyrhythm.core.sync.onarrival import OnArrival
from polyrhythm.core.sync.staleness import Staleness
from polyrhythm.errors import InvariantBroken, PolyrhythmError
from polyrhythm.wire import messages as m

SEEDS = range(30)


def goes_wrong(policy: str, seed: int, *, check: bool) -> bool:
    """Unchecked, so that the books are what shows it."""
    try:
        return keep_books(policy, seed, check=check, servers=True).end.failed
    except (AssertionError, InvariantBroken, PolyrhythmError):
        return True


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, check = MUTANTS[mutant], mutant is folds_write_what_is_read
    mutant(monkeypatch)
    found = next((seed for seed in SEEDS if goes_wrong(policy, seed, check=check)), None)
    assert found is not None, "it lives"
    monkeypatch.undo()
    assert not goes_wrong(policy, found, check=check), "it goes wrong without the mutant too"


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


def test_what_was_on_its_way_over_a_cut_link_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = range(100, 160, 5)
    for moment in moments:
        run, _ = run_booked(cut_and_crash(moment))
        assert not run.end.failed
    what_a_cut_link_lost_stays_lost(monkeypatch)
    with pytest.raises((AssertionError, PolyrhythmError)):
        for moment in moments:
            run_booked(cut_and_crash(moment), check=False)


def makes_a_stale_primarys_step() -> bool:
    """Whether a copy whose primary is s2 now makes the next step of s0, which was that before."""
    ledger = Ledger(rounds=True, copying=True)
    ledger.begin(1, {4: m.Route(0, (1, 2), (), 1)}, 1)
    assert ledger.may_copy(0, m.Stamp(4, 0, 1))
    ledger.copied(m.Stamp(4, 0, 1), ())
    ledger.reroute(1, {4: m.Route(2, (1,), (), 2)}, 2)
    ledger.adopt(m.Stamp(4, 0, 1), ())
    assert ledger.may_copy(2, m.Stamp(4, 2, 2))
    return ledger.may_copy(0, m.Stamp(4, 0, 2))


def test_a_stale_primary_is_refused_by_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not makes_a_stale_primarys_step()
    replicas_heed_anybody(monkeypatch)
    assert makes_a_stale_primarys_step()


def lets_go_on_after_a_join() -> bool:
    """Whether a member that is one step ahead of the others may go on when somebody has come."""
    policy = OnArrival(Staleness(2))
    for worker in (0, 1):
        policy.on(sync.Joined(worker), 0)
    policy.on(sync.Opened(0), 0)
    for _ in range(5):
        for worker in (0, 1):
            policy.on(sync.Arrived(worker, 1), 1)
    policy.on(sync.Joined(2), 2)
    policy.on(sync.Opened(1), 3)
    return 0 in policy.on(sync.Arrived(0, 1), 4).release


def test_a_joiner_that_begins_at_0_holds_everybody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lets_go_on_after_a_join()
    monkeypatch.setattr(
        Clocks, "enter", lambda clocks, workers: [clocks._at.put(worker, 0) for worker in workers]
    )
    assert not lets_go_on_after_a_join()

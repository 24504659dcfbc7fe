"""The patience of FSP (`--abandon`): when a round closes without late workers, and which
micro-batches those workers leave out."""

import pytest

from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.barrier.abandoning import abandons, parse_patience
from polyrhythm.core.sync.policy import SyncPolicy
from polyrhythm.core.sync.registry import choose_policy
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire.messages import ContributionReport, JobSpec

MS = 10**6


def fsp(**fields: str) -> SyncPolicy:
    spec = JobSpec(job="j", sync="fsp", interval="100ms", abandon="50ms")
    policy = choose_policy(
        JobSpec(**{**{f: getattr(spec, f) for f in spec.__struct_fields__}, **fields})
    )
    for worker in (0, 1, 2):
        policy.on(sync.Joined(worker), 0)
    policy.on(sync.Opened(0), 0)
    return policy


def arrived(worker: int, round_: int = 1) -> sync.MemberContributed:
    return sync.MemberContributed(worker, round_, ContributionReport(weight=1.0))


def test_the_patience_begins_when_the_interval_is_over() -> None:
    policy = fsp()
    policy.on(arrived(0), 99 * MS)
    decision = policy.on(arrived(1), 101 * MS)
    assert not decision.fold and decision.wake_at == 150 * MS
    assert not policy.on(sync.TimePassed(), 149 * MS).fold
    decision = policy.on(sync.TimePassed(), 150 * MS)
    assert decision.fold and decision.release == {0, 1}
    assert in_words(decision.reason) == (
        "round 1 closes 0.050 s after its interval, without waiting for w2"
    )


def test_a_worker_that_arrives_after_the_fold_goes_on_with_the_newest_version() -> None:
    policy = fsp()
    policy.on(arrived(0), 99 * MS)
    policy.on(arrived(1), 99 * MS)
    policy.on(sync.TimePassed(), 150 * MS)
    policy.on(sync.Opened(1), 151 * MS)
    decision = policy.on(arrived(2, round_=1), 160 * MS)
    assert decision.release == {2} and not decision.fold


def test_the_patience_begins_when_a_worker_asked_for_the_barrier() -> None:
    policy = fsp(interval="10s")
    assert policy.on(sync.Asked(0), 300 * MS).pause
    policy.on(arrived(0), 301 * MS)
    assert not policy.on(sync.TimePassed(), 350 * MS).fold
    assert policy.on(sync.TimePassed(), 351 * MS).fold


def test_the_patience_begins_with_the_first_arrival_after_the_interval() -> None:
    policy = fsp()
    assert not policy.on(sync.TimePassed(), 200 * MS).fold
    decision = policy.on(arrived(1), 210 * MS)
    assert not decision.fold and decision.wake_at == 260 * MS
    assert not policy.on(arrived(0), 211 * MS).fold, "the patience began with the first arrival"
    decision = policy.on(sync.TimePassed(), 260 * MS)
    assert decision.fold and decision.release == {0, 1}


def test_a_worker_counted_in_the_round_before_does_not_begin_the_patience() -> None:
    policy = fsp()
    policy.on(arrived(0), 99 * MS)
    policy.on(arrived(1), 99 * MS)
    assert policy.on(sync.TimePassed(), 150 * MS).fold
    policy.on(sync.Opened(1), 151 * MS)
    assert policy.on(arrived(2, round_=1), 160 * MS).release == {2}
    assert not policy.on(arrived(0, round_=2), 310 * MS).fold
    assert policy.on(sync.TimePassed(), 360 * MS).fold


def test_a_fold_at_the_deadline_releases_a_worker_whose_contribution_was_counted_before() -> None:
    policy = fsp()
    policy.on(arrived(0), 99 * MS)
    policy.on(arrived(1), 99 * MS)
    assert policy.on(sync.TimePassed(), 150 * MS).fold
    policy.on(sync.Opened(1), 151 * MS)
    policy.on(arrived(0, round_=2), 260 * MS)
    decision = policy.on(arrived(2, round_=1), 320 * MS)
    assert decision.fold and decision.release == {0, 2}


def test_a_worker_that_arrived_and_left_does_not_begin_the_patience() -> None:
    policy = fsp()
    policy.on(arrived(0), 10 * MS)
    policy.on(sync.Left(0), 20 * MS)
    assert not policy.on(arrived(1), 210 * MS).fold
    assert policy.on(sync.TimePassed(), 260 * MS).fold


def test_a_round_that_measures_the_objective_waits_for_all_workers() -> None:
    policy = fsp(interval="auto")
    for worker in (0, 1, 2):
        decision = policy.on(arrived(worker), 200 * MS)
    assert decision.fold
    policy.on(sync.Opened(1), 200 * MS)
    assert policy.terms(0).probe
    policy.on(arrived(0, 2), 400 * MS)
    assert not policy.on(sync.TimePassed(), 900 * MS).fold


def test_without_a_patience_the_round_waits_for_all_workers() -> None:
    policy = fsp(abandon="off", timer="off")
    policy.on(arrived(0), 99 * MS)
    decision = policy.on(sync.TimePassed(), 5_000 * MS)
    assert not decision.fold and decision.wake_at is None


@pytest.mark.parametrize(
    ("late_ms", "patience", "gathered", "left_out"),
    [(51, "50ms", 8, True), (50, "50ms", 8, False), (51, "50ms", 0, False), (900, "off", 8, False)],
)
def test_a_micro_batch_is_left_out_if_it_exceeds_the_patience(
    late_ms: int, patience: str, gathered: float, left_out: bool
) -> None:
    assert abandons(late_ms * MS, parse_patience(patience), gathered) == left_out

"""Suspicion adapts to each worker's heartbeats. Silence is suspect soon after regular heartbeats,
and later after irregular ones. A worker that keeps its usual rhythm is never suspect."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core import liveness
from polyrhythm.core.liveness import Pulse, Suspicion
from polyrhythm.observe.reasons import limit_in_words

MS = 10**6
SECOND_NS = 10**9
BEAT_S = 0.5
beats_ms = st.integers(10, 5_000)


def pulse_of(*gaps_ms: int, agreed_ms: int = 10) -> Pulse:
    pulse = Pulse.begin(agreed_ms * MS, 0)
    now_ns = 0
    pulse.beat(now_ns)
    for gap_ms in gaps_ms:
        now_ns += gap_ms * MS
        pulse.beat(now_ns)
    return pulse


@given(beats_ms, st.integers(3, 40))
def test_a_worker_with_regular_heartbeats_is_suspected_soon(gap_ms: int, count: int) -> None:
    limit_ns = pulse_of(*[gap_ms] * count).limit_ns
    assert 3 * gap_ms * MS < limit_ns <= 3 * gap_ms * MS + SECOND_NS


@given(beats_ms, st.floats(0.0, 0.5), st.integers(30, 80), st.randoms(use_true_random=False))
def test_a_worker_with_its_usual_heartbeats_is_never_suspected(
    gap_ms: int, jitter: float, count: int, random: object
) -> None:
    """Each gap between heartbeats is up to `jitter` longer or shorter than usual."""
    found = Suspicion(gap_ms / 1000)
    now_ns = SECOND_NS
    found.expect(7, now_ns)
    for _ in range(count):
        gap_ns = gap_ms * MS * (1 + jitter * (2 * random.random() - 1))  # type: ignore[attr-defined]
        now_ns += round(gap_ns)
        assert found.silent(now_ns) == [], found.pulse(7)
        found.beat(7, now_ns)


@given(beats_ms, st.integers(2, 20))
def test_a_worker_with_irregular_heartbeats_is_suspected_later(gap_ms: int, factor: int) -> None:
    regular = pulse_of(*[gap_ms] * 20).limit_ns
    irregular = pulse_of(*[gap_ms, gap_ms, gap_ms, gap_ms * (1 + factor)] * 5)
    assert irregular.limit_ns > regular
    assert irregular.limit_ns > gap_ms * (1 + factor) * MS, "it was as silent before"


@given(beats_ms, beats_ms)
def test_only_the_last_twenty_gaps_count(before_ms: int, now_ms: int) -> None:
    changed = pulse_of(*[before_ms] * 30, *[now_ms] * 20)
    assert changed.limit_ns == pulse_of(*[now_ms] * 20).limit_ns


@given(st.lists(st.integers(1, 4_000), min_size=3, max_size=30))
def test_the_derivation_adds_up(gaps_ms: list[int]) -> None:
    pulse = pulse_of(*gaps_ms)
    text = limit_in_words(pulse.silence(0))
    found = re.fullmatch(
        r"(.+) s = mean gap (.+) s \(of the last (\d+)\) \+ (\d) x (.+) s"
        r" \(the larger of 2 gaps and 4 standard deviations\) \+ (.+) s",
        text,
    )
    assert found is not None, text
    limit, usual, of_the_last, times, what, way = (float(part) for part in found.groups())
    assert of_the_last == min(20, len(gaps_ms))
    assert limit == pytest.approx(usual + times * what + way, abs=0.05)
    assert limit == pytest.approx(pulse.limit_ns / 1e9, abs=0.01)


def test_heartbeats_read_together_count_as_sent_at_the_agreed_interval() -> None:
    together = pulse_of(*[500] * 5, 12_000, *[0] * 24, agreed_ms=500)
    assert together.limit_ns == pulse_of(*[500] * 20, agreed_ms=500).limit_ns


def test_the_agreed_interval_counts_until_three_gaps_are_known() -> None:
    pulse = pulse_of(1, 1, agreed_ms=500)
    assert pulse.limit_ns == 10 * SECOND_NS
    assert limit_in_words(pulse.silence(0)) == "10.00 s = 20 x the heartbeat interval of 0.50 s"


def test_other_messages_are_signs_of_life_but_not_heartbeats() -> None:
    pulse = pulse_of(1000, 1000, 1000)
    until_ns = pulse.deadline_ns()
    pulse.heard_ns = 3_500 * MS
    assert pulse.deadline_ns() == until_ns + 500 * MS
    assert list(pulse._gaps) == [SECOND_NS] * 3


def test_a_known_rhythm_shortens_the_time_to_suspicion() -> None:
    found = Suspicion(BEAT_S)
    found.expect(0, 0)
    assert found.deadline.wake_ns == 10 * SECOND_NS
    for beat in range(1, 5):
        found.beat(0, beat * SECOND_NS // 2)
    assert found.deadline.wake_ns == 4 * SECOND_NS
    assert found.silent(4 * SECOND_NS) == [0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2_000)), min_size=1, max_size=60))
def test_silent_workers_are_found_at_their_limit_and_not_before(
    beats: list[tuple[int, int]],
) -> None:
    """Compare with a brute-force check of every worker at every time. A worker that was found
    silent is removed, as an evicted worker is."""
    found = Suspicion(0.05)
    now_ns = SECOND_NS
    expected = set(range(4))
    for worker in expected:
        found.expect(worker, now_ns)
    for worker, pause_ms in beats:
        now_ns += pause_ms * MS
        late = {w for w in expected if found.pulse(w).deadline_ns() <= now_ns}
        if late:
            wake_ns = found.deadline.wake_ns
            assert wake_ns is not None and wake_ns <= now_ns, "no wake-up was asked for"
        assert set(found.silent(now_ns)) == late
        for one in late:
            found.forget(one)
        expected -= late
        found.beat(worker, now_ns)
    assert (found.deadline.wake_ns is None) == (not expected)


def test_irregular_heartbeats_are_suspected_if_the_standard_deviation_is_ignored(
    monkeypatch,
) -> None:
    monkeypatch.setattr(liveness, "_DEVIATIONS", 0)
    with pytest.raises(AssertionError, match="it was as silent before"):
        test_a_worker_with_irregular_heartbeats_is_suspected_later.hypothesis.inner_test(5_000, 20)


def test_silent_workers_are_missed_if_their_limit_is_not_checked_again(monkeypatch) -> None:
    honest = Suspicion.expect

    def once(self: Suspicion, worker: int, now_ns: int) -> None:
        honest(self, worker, now_ns)
        self.deadline.wake_ns = now_ns + 10**15

    monkeypatch.setattr(Suspicion, "expect", once)
    with pytest.raises(AssertionError, match="no wake-up was asked for"):
        test_silent_workers_are_found_at_their_limit_and_not_before.hypothesis.inner_test(
            [(0, 2000)]
        )

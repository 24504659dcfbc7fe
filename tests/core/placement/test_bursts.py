"""What a process remembers of the bytes that it receives."""

from polyrhythm.core.placement.bursts import Bursts
from polyrhythm.wire.messages import MOST_BURSTS, Burst

MS = 10**6
KB = 1000


def test_bursts_without_a_break_are_one() -> None:
    bursts = Bursts()
    bursts.add("w0", 0, 10 * MS, 100 * KB)
    bursts.add("w0", 10 * MS, 20 * MS, 90 * KB)
    bursts.add("w0", 20 * MS + MS // 2, 30 * MS, 95 * KB)
    bursts.add("w1", 5 * MS, 30 * MS, 95 * KB)
    received = bursts.take(40 * MS)
    assert received is not None and received.at_ns == 40 * MS
    assert received.bursts == (
        Burst("w0", 0, 30 * MS, 285 * KB),
        Burst("w1", 5 * MS, 30 * MS, 95 * KB),
    )
    assert bursts.take(10**10) is None, "nothing new"


def test_a_pause_or_another_rate_begins_a_burst() -> None:
    bursts = Bursts()
    bursts.add("w0", 0, 10 * MS, 100 * KB)
    bursts.add("w0", 12 * MS, 20 * MS, 80 * KB)
    bursts.add("w0", 20 * MS, 30 * MS, 300 * KB)
    received = bursts.take(40 * MS)
    assert received is not None and len(received.bursts) == 3


def test_what_is_too_short_to_be_measured_is_left_out() -> None:
    bursts = Bursts()
    bursts.add("w0", 0, MS // 10, 30 * KB)
    bursts.add("w0", 0, 0, 30 * KB)
    assert bursts.take(MS) is None


def test_a_fast_link_is_seen() -> None:
    bursts = Bursts()
    bursts.add("w0", MS, MS + MS // 10, 100 * KB)
    received = bursts.take(2 * MS)
    assert received is not None
    assert received.bursts == (Burst("w0", 9 * MS // 10, MS + MS // 10, 100 * KB),)


def test_reports_are_not_made_too_often_and_have_a_limit() -> None:
    bursts = Bursts()
    bursts.add("w0", 0, MS, 100 * KB)
    assert bursts.take(MS) is not None
    for number in range(10 * MOST_BURSTS):
        at_ns = 10 * number * MS
        bursts.add(f"w{number % 3}", at_ns, at_ns + MS, 100 * KB)
    assert bursts.take(2 * MS) is None
    received = bursts.take(10**12)
    assert received is not None and MOST_BURSTS // 3 < len(received.bursts) <= MOST_BURSTS
    assert sum(burst.nbytes for burst in received.bursts) == 10 * MOST_BURSTS * 100 * KB


def test_more_sources_than_a_report_can_name() -> None:
    bursts = Bursts()
    for number in range(3 * MOST_BURSTS):
        bursts.add(f"w{number}", 0, MS, 100 * KB)
    received = bursts.take(MS)
    assert received is not None and 0 < len(received.bursts) <= MOST_BURSTS

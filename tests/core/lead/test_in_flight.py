"""Whose window is full, and since when."""

from polyrhythm.core.lead.in_flight import InFlight


def test_a_window_is_full_from_its_last_place_on() -> None:
    windows = InFlight(2)
    windows.sent(1, 4, 1, 10)
    assert windows.full() is None
    windows.sent(1, 4, 2, 20)
    assert windows.full() == ({1}, 20)
    windows.sent(1, 4, 2, 30)  # it was sent again
    assert windows.full() == ({1}, 20)
    windows.counted(1, 4, 1)
    assert windows.full() is None


def test_the_first_that_is_full_counts_and_who_is_gone_does_not() -> None:
    windows = InFlight(1)
    windows.sent(1, 4, 1, 10)
    windows.sent(2, 5, 1, 15)
    assert windows.full() == ({1, 2}, 10)
    windows.forget(1, 4)
    assert windows.full() == ({2}, 15)
    windows.counted(3, 9, 1)  # nothing was known of it
    assert windows.full() == ({2}, 15)

"""Which workers have as many contributions in flight as their window permits, and since when."""

from polyrhythm.core.lead.rounds.contributions import InFlight


def test_a_window_is_full_when_its_last_place_is_used() -> None:
    in_flight = InFlight(2)
    in_flight.sent(1, 4, 1, 10)
    assert in_flight.full() is None
    in_flight.sent(1, 4, 2, 20)
    assert in_flight.full() == ({1}, 20)
    in_flight.sent(1, 4, 2, 30)  # the same contribution is reported a second time
    assert in_flight.full() == ({1}, 20)
    in_flight.on_completed(1, 4, 1)
    assert in_flight.full() is None


def test_full_windows_are_reported_since_the_first_and_without_removed_workers() -> None:
    in_flight = InFlight(1)
    in_flight.sent(1, 4, 1, 10)
    in_flight.sent(2, 5, 1, 15)
    assert in_flight.full() == ({1, 2}, 10)
    in_flight.forget(1, 4)
    assert in_flight.full() == ({2}, 15)
    in_flight.on_completed(3, 9, 1)  # this contribution was never reported as sent
    assert in_flight.full() == ({2}, 15)

"""Which workers have as many contributions in flight as their window permits, and since when."""

from polyrhythm.core.lead.rounds.contributions import Contributions, InFlight
from polyrhythm.wire.messages import Arrived, ContributionReport, Trailer


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


def trailer(sequence: int) -> Trailer:
    report = ContributionReport(weight=1.0)
    return Trailer(worker=1, incarnation=4, sequence=sequence, report=report)


def test_a_worker_stays_if_the_lead_hears_late_from_a_server() -> None:
    """The lead reads the reports of s0 at once. s1 has acknowledged as many contributions to the
    worker, but the lead has read none of its reports."""
    contributions, primary_since = Contributions(), {0: 1, 1: 1}
    for sequence in range(1, 301):
        assert contributions.fault("worker-1", trailer(sequence)) is None
        assert contributions.on_trailer(trailer(sequence), primary_since) is None
        early = Arrived(worker=1, incarnation=4, sequence=sequence, server=0, routing=1, round=0)
        assert contributions.on_arrived(early, primary_since) is None
    for sequence in range(1, 301):
        late = Arrived(worker=1, incarnation=4, sequence=sequence, server=1, routing=1, round=0)
        assert contributions.on_arrived(late, primary_since) is not None
    assert not contributions.any


def test_a_worker_whose_contributions_never_become_complete_is_removed() -> None:
    contributions = Contributions()
    for sequence in range(1, 1001):
        assert contributions.fault("worker-1", trailer(sequence)) is None
        contributions.on_trailer(trailer(sequence), {0: 1})
    reason = contributions.fault("worker-1", trailer(1001))
    assert reason is not None and reason.code == "too-many-contributions"

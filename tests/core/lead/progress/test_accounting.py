"""The accounting writes one journal line for many routine rounds."""

from polyrhythm.core.lead.progress.accounting import Accounting
from polyrhythm.wire.messages import ContributionReport, Trailer

SECOND_NS = 10**9


def trailer(worker: int = 0, sequence: int = 0, **fields: object) -> Trailer:
    report = ContributionReport(weight=2.0, **fields)
    return Trailer(worker=worker, sequence=sequence, report=report)


def test_routine_rounds_are_rolled_up() -> None:
    tally = Accounting()
    assert tally.close(0, "opened", 0, SECOND_NS, final=False)
    for round_ in (1, 2, 3):
        tally.count(trailer(objective=float(round_)), 2)
        now_ns = SECOND_NS + round_
        assert tally.close(round_, "all-arrived", 0, now_ns, final=False) is None
    line = tally.close(4, "all-arrived", 1, 3 * SECOND_NS, final=False)
    assert line is not None
    assert (line["round"], line["rounds"], line["contributions"]) == (4, 4, 3)
    assert (line["points"], line["objective"], line["passes"]) == (6, 2.0, 1)


def test_contributions_that_were_left_out_are_among_those_made() -> None:
    tally = Accounting()
    tally.count(trailer(skipped=2), 2)
    tally.count(trailer(worker=1), 2)
    assert tally.skip(0) == 3
    assert tally.skip(1, without_step=True) == 1
    assert tally.made == 2 + 2 + 1 + 1


def test_numbers_that_are_too_large_for_the_journal_are_cut() -> None:
    tally = Accounting()
    for _ in range(2):
        tally.count(trailer(compute_ns=2**63 - 1, wait_ns=7), 2)
    fields = tally.workers[0].fields()
    assert (fields["compute_ns"], fields["wait_ns"]) == (2**63 - 1, 14)
    assert "skipped" not in fields


def test_an_unusual_or_final_round_has_a_line_at_once() -> None:
    tally = Accounting()
    tally.close(0, "opened", 0, SECOND_NS, final=False)
    assert tally.close(1, "timer", 0, SECOND_NS + 1, final=False) is not None
    assert tally.close(2, "all-arrived", 0, SECOND_NS + 2, final=True) is not None


def test_the_objective_is_weighted_and_may_be_missing() -> None:
    tally = Accounting()
    line = tally.close(1, "timer", 0, 1, final=False)
    assert line is not None and line["objective"] is None
    tally.count(Trailer(worker=0, report=ContributionReport(weight=1.0, objective=4.0)), 1)
    tally.count(Trailer(worker=1, report=ContributionReport(weight=3.0, objective=0.0)), 3)
    line = tally.close(2, "timer", 0, 2, final=False)
    assert line is not None and line["objective"] == 1.0


def test_with_whole_objectives_the_last_one_counts() -> None:
    """Each objective is computed over all points, so a mean over rounds would include objectives of
    earlier parameters."""
    tally = Accounting(whole_objectives=True)
    tally.count(Trailer(worker=0, report=ContributionReport(weight=3.0, objective=9.0)), 3)
    tally.count(Trailer(worker=1, report=ContributionReport(weight=1.0, objective=4.0)), 1)
    tally.count(Trailer(worker=0, report=ContributionReport(weight=1.0)), 1)
    line = tally.close(2, "timer", 0, 2, final=False)
    assert line is not None and line["objective"] == 4.0
    line = tally.close(3, "timer", 0, 3, final=False)
    assert line is not None and line["objective"] is None


def test_workers_totals_are_since_the_beginning() -> None:
    tally = Accounting()
    for round_ in (1, 2):
        tally.count(trailer(5, compute_ns=3, wait_ns=2, transfer_ns=1), 4)
        line = tally.close(round_, "timer", 0, round_, final=False)
    assert line is not None
    assert line["workers"][5] == {
        "contributions": 2,
        "points": 8,
        "compute_ns": 6,
        "wait_ns": 4,
        "transfer_ns": 2,
        "redone_ns": 0,
    }


def test_the_arrival_spread_is_the_time_from_first_to_last_arrival() -> None:
    tally = Accounting()
    tally.close(0, "opened", 0, SECOND_NS, final=False)
    at_ns = SECOND_NS
    for round_, spread_ms in enumerate((4, 30, 6), start=1):
        for worker, after_ns in enumerate((0, 10**6, spread_ms * 10**6)):
            tally.count(trailer(worker), 2, at_ns + after_ns)
        at_ns += 100 * 10**6
        line = tally.close(round_, "all-arrived", 0, at_ns, final=round_ == 3)
    assert line is not None and line["spread_ms"] == 6.0
    line = tally.close(4, "all-arrived", 0, at_ns, final=True)
    assert line is not None and line["spread_ms"] is None, "no worker contributed"


Came = dict[int, tuple[int, int]]
"""The contributions of a round in the order of their arrival: per worker, the sequence number and
how many milliseconds the worker had waited for the answer to its previous contribution."""


def ways_ms(*given: tuple[str, Came]) -> list[float | None]:
    """The round-trip times in the journal lines of rounds that close for these reasons."""
    tally, ways = Accounting(), []
    for round_, (reason, came) in enumerate(given, start=1):
        for worker, (sequence, wait_ms) in came.items():
            tally.count(trailer(worker, sequence=sequence, wait_ns=wait_ms * 10**6), 2)
        line = tally.close(round_, reason, 0, round_ * SECOND_NS, final=True)
        assert line is not None
        ways.append(line["rtt_ms"])
    return ways


def test_the_round_trip_time_is_the_wait_of_the_last_worker_to_arrive() -> None:
    """Worker 1 arrives last in round 1 and waits 1 ms. Worker 0 arrives last in round 2 and waits 3
    ms. The mean wait of either worker is longer."""
    first = ("all-arrived", {0: (1, 0), 1: (1, 0)})
    second = ("all-arrived", {1: (2, 1), 0: (2, 9)})
    assert ways_ms(first, second, ("all-arrived", {1: (3, 7), 0: (3, 3)})) == [None, 1.0, 3.0]


def test_no_round_trip_time_is_measured_where_a_timer_closes_the_round() -> None:
    first = ("all-arrived", {0: (1, 0), 1: (1, 0)})
    alone = [("timer", {0: (2, 500)}), ("timer", {0: (3, 500)})]
    both = ("all-arrived", {1: (2, 1), 0: (4, 500)})
    assert ways_ms(first, *alone, both) == [None, None, None, 1.0]


def test_the_first_wait_after_a_rejoin_is_no_round_trip_time() -> None:
    first = ("all-arrived", {0: (1, 0), 1: (1, 0)})
    assert ways_ms(first, ("all-arrived", {0: (2, 80), 1: (1, 70)})) == [None, None]


def test_without_rounds_there_is_no_round_trip_time() -> None:
    tally = Accounting()
    for sequence in (1, 2, 3):
        tally.count(trailer(sequence=sequence, wait_ns=5), 2)
        line = tally.close(sequence, "on-arrival", 0, SECOND_NS, final=True)
    assert line is not None and line["rtt_ms"] is None


def test_each_pass_has_a_line_with_the_mean_of_its_own_objectives() -> None:
    tally = Accounting()
    tally.passes = 3  # the passes of the checkpoint from which the job continues
    lines = []
    for round_, objective in enumerate([5.0, 3.0, 2.0, 1.0], 1):
        tally.count(trailer(objective=objective), 2)
        now_ns = SECOND_NS + 10**8 * round_
        lines.append(tally.passed(round_, 3 + round_ // 2, now_ns, final=False))
    assert lines[0] is lines[2] is None
    assert lines[1] == {"round": 2, "passes": 4, "points": 4, "objective": 4.0}
    assert lines[3] == {"round": 4, "passes": 5, "points": 8, "objective": 1.5}


def test_passes_that_follow_each_other_at_once_share_a_line() -> None:
    tally = Accounting()
    assert tally.passed(1, 1, SECOND_NS, final=False) is not None
    tally.count(trailer(objective=4.0), 2)
    assert tally.passed(2, 2, SECOND_NS + 1, final=False) is None
    tally.count(trailer(objective=2.0), 2)
    last = tally.passed(3, 3, SECOND_NS + 2, final=True)
    assert last == {"round": 3, "passes": 3, "points": 4, "objective": 3.0}


def test_the_size_of_contributions_is_their_own_where_they_report_it() -> None:
    """A contribution that reports no size carries the whole model."""
    tally = Accounting()
    for nbytes in (-1, 100, 0):
        tally.count(trailer(nbytes=nbytes), 2)
    line = tally.close(1, "timer", 0, 1, final=False)
    assert line is not None and line["pushed"] == {"contributions": 2, "nbytes": 100}
    line = tally.close(2, "timer", 0, 2, final=False)
    assert line is not None and "pushed" not in line

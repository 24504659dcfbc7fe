"""How the time of a run was spent: computing, waiting, transferring, repeating work; and the
resource usage as PSP's paper defines it."""

from pathlib import Path

import pytest

from polyrhythm.core.lead.progress.accounting import Accounting
from polyrhythm.observe.state import fold
from polyrhythm.observe.summary import described, summarise, summary_text
from polyrhythm.observe.work import Totals
from polyrhythm.wire.messages import ContributionReport, JobSpec, Trailer
from tests.observe.journals import ended, opened, rounds, totals

S = 10**9


def trailer(worker: int, compute_s: float, weight: float = 10.0) -> Trailer:
    return Trailer(
        worker=worker,
        report=ContributionReport(
            weight=weight,
            objective=None,
            compute_ns=round(compute_s * S),
            wait_ns=0,
            transfer_ns=0,
            progress=(),
        ),
    )


def test_eq_1_is_the_mean_over_rounds() -> None:
    tally = Accounting()
    for round_, times in enumerate([(1.0, 2.0, 3.0), (2.0, 2.0, 2.0)], start=1):
        for worker, seconds in enumerate(times):
            tally.count(trailer(worker, seconds), 10)
        line = tally.close(round_, "timer" if round_ == 2 else "all-arrived", 0, S // 2, False)
    assert line is not None
    assert line["usage"] == pytest.approx((6 / 9 + 1) / 2)


def test_without_rounds_there_is_no_eq_1() -> None:
    tally = Accounting()
    tally.count(trailer(0, 1.0), 10)
    line = tally.close(1, "on-arrival", 0, 2 * S, False)
    assert line is not None and line["usage"] is None


def test_what_was_not_counted_is_done_again() -> None:
    tally = Accounting()
    tally.count(trailer(0, 8.0, weight=100.0), 75)
    tally.count(trailer(0, 1.0, weight=100.0), 100)
    assert tally.workers[0].redone_ns == 2 * S


def run_of_two() -> list[dict[str, object]]:
    both = {"0": {**totals(4, 1.0, 1.0, 2.0), "redone_ns": S // 2}, "1": totals(2, 3.0, 0.0, 1.0)}
    return [
        *opened(0, 1),
        {**rounds(3.0, 3), "rounds": 3, "usage": 0.9},
        {**rounds(5.0, 4, both), "rounds": 1, "usage": 0.5},
        ended(7.0),
    ]


def test_the_job_s_time_is_that_of_its_workers() -> None:
    result = summarise(run_of_two())
    assert result["time"] == {
        "compute_s": 4.0,
        "wait_s": 1.0,
        "transfer_s": 3.0,
        "redone_s": 0.5,
    }
    assert result["per_worker"]["worker-0"]["redone_s"] == 0.5
    assert result["resource_usage"]["overall"] == pytest.approx(0.5), "Eq. 14"
    assert result["resource_usage"]["per_round"] == pytest.approx(0.8), "three of 0.9, one of 0.5"


def test_people_read_it_too(tmp_path: Path) -> None:
    text = summary_text(
        {**described(JobSpec(job="")), **summarise(run_of_two())}, tmp_path, details=True
    )
    assert (
        "  all workers: computing 4.0 s, waiting 1.0 s, transferring 3.0 s, redone 0.5 s;"
        " 50% of the time computing (80% while the"
        " slowest worker of each round computed)\n" in text
    )


def test_the_spread_of_arrivals_is_the_median_over_rounds() -> None:
    lines = [
        *opened(0, 1),
        {**rounds(3.0, 3), "rounds": 3, "spread_ms": 40.0},
        {**rounds(5.0, 9), "rounds": 6, "spread_ms": 2.5},
        {**rounds(6.0, 9), "rounds": 0, "spread_ms": None},
        ended(7.0),
    ]
    result = summarise(lines)
    assert result["arrival_spread_ms"] == 2.5
    assert summarise(opened(0, 1))["arrival_spread_ms"] is None
    text = summary_text({**described(JobSpec(job="j")), **result}, Path("runs/x"), details=True)
    assert "time between the first and the last contribution of a round: 2.5 ms (median)" in text


def test_the_way_is_the_median_over_rounds() -> None:
    lines = [
        *opened(0, 1),
        {**rounds(3.0, 3), "rounds": 3, "rtt_ms": 2.0},
        {**rounds(5.0, 4), "rounds": 1, "rtt_ms": 900.0},
    ]
    assert fold(lines).rtt_s == 0.002
    assert fold(opened(0, 1)).rtt_s is None


def test_what_was_done_recently_is_since_a_line_some_seconds_ago() -> None:
    done = [{"contributions": n, "points": 10 * n, "compute_ns": n * 10**9} for n in (2, 5, 50)]
    lines = [
        *opened(0),
        *(
            {**rounds(at_s, at_s), "workers": {0: one}}
            for at_s, one in zip((1, 2, 40), done, strict=True)
        ),
    ]
    worker = fold(lines).workers[0]
    assert worker.totals.contributions == 50
    assert worker.recent == Totals(45, 450, 45.0), (
        "the line before the last is the one to compare with"
    )
    assert worker.recent_s == 38


def test_of_many_workers_those_are_shown_that_others_waited_for(tmp_path: Path) -> None:
    result = {**described(JobSpec(job="")), **summarise(run_of_two())}
    usual = result["per_worker"]["worker-0"]
    result["per_worker"] = {
        f"w{n}": {**usual, "compute_s": 1.0, "wait_s": 1.0 + n, "transfer_s": 0.0}
        for n in range(100)
    }
    rows = summary_text(result, tmp_path).splitlines()
    names = [row.split()[0] for row in rows if row.startswith("  w")]
    assert names == ["worker", *(f"w{n}" for n in range(9))]
    assert "  and 91 others: 10 points/s, computing 1% to 9% (all: --verbose)" in rows
    every = summary_text(result, tmp_path, details=True)
    assert all(f"\n  w{n} " in every for n in range(100))

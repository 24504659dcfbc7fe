"""Kind statistics: a fold names the rows of its version and the contributions that they contain."""

from typing import Any

from polyrhythm.core.machine import Effect, Reason
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, sent


def stage(**job: Any) -> Stage:
    return Stage(**{"kind": "statistics", "workers": 2, "servers": 2, "timer": "1s", **job}).begin()


def rows(effects: list[Effect]) -> list[dict[int, int]]:
    """For each order to fold, the rows that it names: per worker, the last sequence number."""
    folds = sent(effects, m.Fold, "s0")
    assert folds == sent(effects, m.Fold, "s1"), "every server gets the same order"
    return [{row.worker: row.sequence for row in fold.rows} for fold in folds]


def report(made: Stage, server: int, worker: int, sequence: int, round_: int) -> list[Effect]:
    who = {**made.who(worker), "routing": made.routing}
    return made.tell(m.Arrived(**who, server=server, sequence=sequence, round=round_))


def test_a_fold_names_the_contributions_that_are_complete() -> None:
    made = stage()
    made.contribute(0, 1)
    assert rows(made.contribute(1, 1)) == [{0: 1, 1: 1}]


def test_other_kinds_name_nothing() -> None:
    made = stage(kind="gradient")
    made.contribute(0, 1)
    assert rows(made.contribute(1, 1)) == [{}]


def test_a_late_contribution_is_named_by_the_fold_after_it_is_complete() -> None:
    made = stage()
    made.contribute(0, 1)
    made.tell(m.Trailer(**made.who(1), sequence=1, report=m.ContributionReport(weight=1.0)))
    report(made, 0, 1, 1, round_=1)
    assert rows(made.tick(200.0))[0] == {0: 1, 1: 0}, "s1 has not reported it"
    assert report(made, 1, 1, 1, round_=1) == [], "it had come to s1 before the fold did"
    made.folded(1)
    assert rows(made.contribute(0, 2, round_=2)) == [{0: 2, 1: 1}]


def test_a_contribution_that_all_servers_had_before_the_fold_counts_in_the_next_round() -> None:
    """The lead learns of the contribution after it has ordered the fold, so the fold does not
    contain the contribution, although every server has it."""
    made = stage(workers=2)
    made.contribute(0, 1)
    assert rows(made.tick(200.0))[0] == {0: 1, 1: 0}
    made.contribute(1, 1, round_=1)
    out = made.folded(1)
    assert not [r for r in sent(out, m.Release) if r.worker == 1], "its round is the next one"
    out = made.contribute(0, 2, round_=2)
    assert rows(out) == [{0: 2, 1: 1}]
    out = made.folded(2)
    assert {r.worker for r in sent(out, m.Release)} == {0, 1}


def test_the_row_of_a_worker_that_died_is_not_named() -> None:
    made = stage()
    made.contribute(1, 1)
    made.closed("w1")
    assert rows(made.contribute(0, 1)) == [{0: 1}]


def test_a_worker_that_rejoins_has_another_row() -> None:
    made = stage()
    made.contribute(0, 1)
    made.contribute(1, 1)
    made.folded(1)
    made.closed("w1")
    made.contribute(0, 2, round_=2)
    made.folded(2)
    made.hello("worker-1")
    made.attach(1)
    folds = sent(made.contribute(0, 3, round_=3), m.Fold, "s0")
    again = made.incarnations[1]
    assert m.Row(1, again, 0) in folds[-1].rows


def terminated(made: Stage, worker: int, sequence: int, why: str) -> list[Effect]:
    made.tell(
        m.Trailer(
            **made.who(worker),
            sequence=sequence,
            report=m.ContributionReport(weight=1.0, terminated=why),
        )
    )
    return made.from_servers(m.Arrived, **made.who(worker), sequence=sequence, round=1)


def test_the_job_ends_with_the_fold_of_the_final_parameters() -> None:
    made = stage()
    out = terminated(made, 0, 1, "converged")
    assert {pause.worker for pause in sent(out, m.Pause)} == {0, 1}, (
        "they contribute what they have"
    )
    made.contribute(1, 1)
    out = made.folded(1)
    releases = sent(out, m.Release)
    assert {release.worker for release in releases} == {0, 1}
    assert all(release.stop for release in releases)
    ended = Reason("goal", {"goal": "terminated", "why": "converged"})
    assert made.lead.parts.ending.goal == ended


def test_only_the_evaluator_ends_the_job() -> None:
    made = stage()
    assert not sent(terminated(made, 1, 1, "converged"), m.Pause)
    made.contribute(0, 1)
    assert not any(release.stop for release in sent(made.folded(1), m.Release))

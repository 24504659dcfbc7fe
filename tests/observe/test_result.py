"""The result that `--json` prints, the estimate of the remaining time, and the summary for
people."""

from pathlib import Path
from typing import Any

import pytest

from polyrhythm.observe.advice import advise
from polyrhythm.observe.estimate import counts, estimate, left_s, open_end
from polyrhythm.observe.state import fold, history_of
from polyrhythm.observe.summary import described, seconds_to_target, summarise, summary_text
from polyrhythm.wire.messages import JobSpec, Target
from tests.observe.journals import Line, ended, left, line, opened, rounds, totals


def job(**fields: Any) -> JobSpec:
    return JobSpec(job="x", name="digits", workers=2, **fields)


def accuracy(value: float) -> Target:
    return Target("accuracy", value, True)


def objective(value: float) -> Target:
    return Target("objective", value, False)


LINES = [
    *opened(0, 1),
    rounds(3.0, 5, contributions=6, points=60, objective=0.9, passes=1),
    line(3.5, "reported", worker=0, name="worker-0", metrics={"accuracy": 0.9}),
    rounds(
        5.0,
        9,
        {"0": totals(5, 2.0, 1.0, 1.0), "1": totals(5, 3.0, 0.5, 0.5)},
        contributions=4,
        points=40,
        objective=0.4,
        passes=2,
    ),
    ended(5.1),
]


def test_the_result() -> None:
    result = summarise(LINES, job())
    assert (result["link"], result["rounds"]) == ("local", 9)
    assert (result["passes"], result["seconds"], result["seconds_per_pass"]) == (2, 4.0, 2.0)
    assert (result["contributions_per_s"], result["points_per_s"]) == (2.5, 25.0)
    assert result["bytes_pushed"] == 10 * 4_000
    assert result["bytes_pulled"] == 12 * 4_000
    assert result["seconds_to_target"] is None
    worker = result["per_worker"]["worker-1"]
    assert (worker["contributions"], worker["points"], worker["compute_s"]) == (5, 50, 3.0)


def test_after_a_resume_the_summary_says_what_it_counts_since_then() -> None:
    resumed = line(0.1, "resumed", number=3, round=4, store="s")
    text = text_of([resumed, *LINES], job(resume="s"))
    assert "9 rounds; since the resume 5 rounds, 10 contributions, 100 points in 4.00 s" in text[1]
    assert summarise([resumed, *LINES], job(resume="s"))["resumed_round"] == 4
    assert "  9 rounds, 10 contributions" in text_of(LINES, job())[1]


def test_every_reported_value_is_in_the_result_and_in_the_summary() -> None:
    lines = [
        *opened(0, 1),
        line(2.0, "reported", worker=0, name="worker-0", metrics={"f1": 0.5, "val_loss": 2e-5}),
        line(2.5, "reported", worker=1, name="worker-1", metrics={"f1": 0.7}),
        rounds(3.0, 5),
    ]
    result = summarise(lines, job())
    assert result["metrics"] == pytest.approx({"f1": 0.6, "val_loss": 2e-5})
    assert result["per_worker"]["worker-1"]["reported"] == {"f1": 0.7}
    rows = text_of(lines, job())
    assert "  f1 0.6000, val_loss 2e-05" in rows


def test_the_summary_says_how_to_load_the_parameters_of_kind_statistics() -> None:
    run = job(kind="statistics")
    result = {**described(run), **summarise(LINES, run), "model": "model.safetensors"}
    assert summary_text(result, Path("runs/mine")).endswith(
        "\n  parameters: runs/mine/model.safetensors"
    )
    rows = summary_text(result, Path("runs/mine"), details=True).splitlines()
    assert "    from safetensors.numpy import load_file" in rows
    assert '    parameters = load_file("runs/mine/model.safetensors")' in rows


def test_a_record_of_an_evaluation_has_its_own_round() -> None:
    """A line about rounds is written about once per second, so the last one may be many rounds
    old."""
    fields = {"worker": 0, "name": "worker-0"}
    lines = [
        *opened(0),
        rounds(2.0, 10, passes=1),
        line(2.5, "reported", **fields, round=37, metrics={"accuracy": 0.5}),
        line(2.6, "reported", **fields, metrics={"error": 0.1}),
    ]
    *_, evaluated, local = history_of(lines)
    assert (evaluated["round"], evaluated["accuracy"]) == (37, 0.5)
    assert (local["round"], local["error"]) == (10, 0.1)


def test_the_value_of_an_evaluation_replaces_those_of_all_workers() -> None:
    lines = [
        *opened(0, 1),
        line(2.0, "reported", worker=0, name="worker-0", metrics={"f1": 0.5}),
        line(3.0, "reported", worker=1, name="worker-1", evaluated=True, metrics={"f1": 0.9}),
    ]
    assert summarise(lines, job())["metrics"] == {"f1": 0.9}


@pytest.mark.parametrize(
    ("target", "seconds"),
    [
        (Target("val_loss", 0.5, False), 1.0),
        (Target("val_loss", 0.25, False), 3.0),
        (Target("val_loss", 0.1, False), None),
        (Target("val_loss", 0.7, True), 2.0),
        (Target("other", 0.7, True), None),
    ],
)
def test_the_time_to_a_target_is_that_of_its_first_value(
    target: Target, seconds: float | None
) -> None:
    values = {2.0: 0.4, 3.0: 0.8, 4.0: 0.2, 5.0: 0.9}
    reports = [
        line(at_s, "reported", worker=0, name="worker-0", metrics={"val_loss": value})
        for at_s, value in values.items()
    ]
    state = fold([*opened(0), *reports])
    assert seconds_to_target(state, job(targets=(target,))) == seconds


def test_bf16_travels_at_half_size() -> None:
    assert summarise(LINES, job(wire_dtype="bf16"))["bytes_pushed"] == 10 * 2_000


@pytest.mark.parametrize(
    ("links", "shown"),
    [
        (["local", "local"], "  pushed 40.0 kB (--push int8, exact between processes of one host)"),
        (["local", "tcp"], "  pushed 40.0 kB (--push int8)"),
    ],
)
def test_the_summary_says_where_pushes_stayed_exact(links: list[str], shown: str) -> None:
    linked = [line(0.1, "linked", peer=f"w{n}", link=link) for n, link in enumerate(links)]
    others = [each for each in LINES if each["what"] != "linked"]
    run = job(push="int8")
    result = {**described(run), **summarise([*linked, *others], run)}
    assert shown in summary_text(result, Path("runs/mine"), details=True).splitlines()


def test_a_run_that_never_opened_has_a_result() -> None:
    result = summarise([])
    assert (result["rounds"], result["seconds_per_pass"], result["ended"]) == (0, None, None)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({"targets": (accuracy(0.9),)}, 2.5),
        ({"targets": (accuracy(0.95),)}, None),
        ({"targets": (objective(0.9),)}, 2.0),
        ({"targets": (objective(0.5),)}, 4.0),
        ({"targets": (objective(0.5), accuracy(0.8))}, 2.5),
    ],
)
def test_seconds_to_target(fields: dict[str, Any], seconds: float | None) -> None:
    assert seconds_to_target(fold(LINES), job(**fields)) == seconds


@pytest.mark.parametrize(
    ("fields", "rest_s"),
    [
        ({"rounds": 18}, 4.0),
        ({"epochs": 4}, 4.0),
        ({"max_seconds": 10.0}, 6.0),
        ({"rounds": 18, "max_seconds": 5.0}, 1.0),
        ({"targets": (accuracy(0.99),)}, None),
    ],
)
def test_when_it_may_end(fields: dict[str, Any], rest_s: float | None) -> None:
    """The remaining time is estimated after 4 s, in which the job has made 9 rounds and 2 passes of
    50 points."""
    assert left_s(fold(LINES), job(**fields), 5.0) == (
        None if rest_s is None else pytest.approx(rest_s)
    )


def test_the_remaining_time_of_a_resumed_job_counts_what_was_done_before() -> None:
    """The job resumed after 6 of 10 passes of 50 points, and makes 25 points a second."""
    resumed = line(0.1, "resumed", number=3, round=4, points=300, store="s")
    lines = [resumed, *opened(0, 1), line(1.0, "data", points=50)]
    lines.append(rounds(3.0, 9, contributions=5, points=50, passes=7))
    state = fold(lines)
    assert left_s(state, job(epochs=10), 3.0) == pytest.approx(6.0)
    assert left_s(state, job(points=500), 3.0) == pytest.approx(6.0)
    assert "350 of 500 points" in counts(state, job(points=500))


def test_an_estimate_says_when_a_target_may_end_the_run_earlier() -> None:
    state = fold(LINES)
    surely = estimate(state, job(epochs=4), 5.0)
    assert surely is not None and (surely.in_words(), surely.share) == ("about 4 s left", 0.5)
    perhaps = estimate(state, job(epochs=4, targets=(accuracy(0.99),)), 5.0)
    assert perhaps is not None and perhaps.in_words() == "at most 4 s left"
    assert estimate(state, job(targets=(accuracy(0.99),)), 5.0) is None
    assert open_end(job(targets=(accuracy(0.99),))) == "ends at its target"
    assert open_end(job(epochs=4)) is None


@pytest.mark.parametrize(
    "data",
    [
        [line(0.5, "data", points=60)],
        [line(0.5, "data", points=20, name="a"), line(0.6, "data", points=40, name="b")],
    ],
)
def test_the_first_pass_is_estimated_by_the_size_of_the_data(data: list[Line]) -> None:
    """After 2 s, the job has visited 30 of 60 points: the other 30, and one more pass, take 6 s."""
    lines = [*opened(0, 1), *data, rounds(3.0, 5, contributions=3, points=30)]
    assert left_s(fold(lines), job(epochs=2), 3.0) == pytest.approx(6.0)
    assert left_s(fold([*opened(0), lines[-1]]), job(epochs=2), 3.0) is None


def test_the_time_to_the_target_is_unknown_before_round_1_opens() -> None:
    assert left_s(fold([]), job(max_seconds=5.0), 1.0) is None


def text_of(lines: list[Line], job: JobSpec, *, details: bool = False) -> list[str]:
    result, advice = {**described(job), **summarise(lines, job)}, advise(fold(lines), job)
    return summary_text(result, Path("runs/mine"), advice, details=details).splitlines()


def test_the_summary_says_nothing_about_folds_that_were_not_reported() -> None:
    """The lead reports the folds of all servers when the job ends."""
    ended = line(9.0, "ended", reason="stopped", fields={}, folds={})
    assert "  folds: none" in text_of([*opened(0), ended], job(), details=True)
    cut_short = text_of([*opened(0), rounds(3.0, 5)], job(), details=True)
    assert cut_short[1].startswith("  at least 5 rounds")
    assert not any("folds" in row for row in cut_short)


def test_the_summary_ends_with_the_result() -> None:
    rows = text_of(LINES, job(targets=(objective(0.5),)))
    assert rows[0] == "digits: the job reached its goal: 9 rounds"
    assert "  target reached after 4.00 s" in rows
    assert rows[2].split() == ["worker", "points/s", "computing", "waiting", "transferring"]
    assert rows[3].split() == ["worker-0", "12", "50%", "25%", "25%"]
    assert rows[4].split() == ["worker-1", "12", "75%", "12%", "12%", "1.5x", "slower"]
    wide = summary_text({"job": "x", **summarise(LINES)}, Path("x"), columns=100).splitlines()
    assert wide[2].split()[-1] == "contributions" and wide[3].split()[-1] == "5"
    assert rows[-1] == "  objective 0.4000, accuracy 0.9000"
    assert not any(row.startswith("  try ") for row in rows), "all is well: there is no advice"
    slow = rounds(9.0, 9, {"0": totals(5, 1.0, 0.0, 7.0)})
    assert text_of([*opened(0), slow], job())[-1] == (
        "  try --kind local --local-steps 8 for up to 4.3x points/s; compare the time to the same"
        " objective"
    )


def test_the_summary_says_which_workers_were_not_there_at_the_end() -> None:
    lines = [*LINES[:-1], left(5.0, 1, "link-ended", detail="x"), left(5.0, 0, "done"), LINES[-1]]
    died, done = text_of(lines, job())[4], text_of(lines, job())[3]
    assert died.startswith("  worker-1 ") and died.endswith("  died at 5.0 s")
    assert done.startswith("  worker-0 ") and done.endswith("25%")


def test_the_details_have_the_journal_and_the_folds() -> None:
    brief, long = text_of(LINES, job()), text_of(LINES, job(), details=True)
    assert "  journal: runs/mine/journal.jsonl" in long
    assert not any("journal" in row or "folds" in row or "median" in row for row in brief)
    assert brief[-2:] == long[-2:]


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({"trained": False}, "  model: none was trained, because no contribution has counted"),
        ({}, "  model: runs/mine/model.safetensors"),
    ],
)
def test_a_model_that_was_not_trained_is_not_named(fields: dict[str, object], row: str) -> None:
    run = job()
    result = {**described(run), **summarise(LINES, run), "model": "model.safetensors", **fields}
    assert summary_text(result, Path("runs/mine")).splitlines()[-1] == row


def test_a_job_that_failed_before_its_first_contribution_has_trained_no_model() -> None:
    failed = line(9.0, "ended", reason="deserted", fields={}, failed=True)
    assert not summarise([*opened(0), failed], job())["trained"]
    assert summarise([*opened(0), failed], job(resume="/store"))["trained"]
    trained = {**rounds(3.0, 5), "contributions": 5}
    assert summarise([*opened(0), trained, failed], job())["trained"]
    assert summarise([*opened(0), {**failed, "failed": False}], job())["trained"]


def test_errors_that_the_user_has_seen_are_not_repeated() -> None:
    run, failures = job(), {"worker-0": "ValueError: a\nTraceback", "late": "ValueError: b"}
    result = {**described(run), **summarise(LINES, run), "worker_failures": failures}
    rows = summary_text(result, Path("runs/mine"), said=["worker-0"]).splitlines()
    assert "  failed: worker-0; its log is in runs/mine/logs" in rows
    assert "  late failed: ValueError: b" in rows
    assert not any("ValueError: a" in row for row in rows)
    assert "  worker-0 failed: ValueError: a" in summary_text(result, Path("x")).splitlines()

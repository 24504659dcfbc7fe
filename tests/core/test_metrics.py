"""Metrics: their names, which direction is better, how targets are written, and their values."""

import pytest

from polyrhythm.core.metrics import (
    MOST_NAMES,
    Reported,
    lower_is_better,
    name_fault,
    parse_best,
    parse_target,
)
from polyrhythm.wire.messages import Target


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("val_loss", True),
        ("valLoss", True),
        ("loss/val", True),
        ("test_error", True),
        ("perplexity", True),
        ("rmse", True),
        ("val_rmse", True),
        ("word.wer", True),
        ("objective", True),
        ("accuracy", False),
        ("f1", False),
        ("answer", False),
        ("merit", False),
        ("bleu", False),
    ],
)
def test_the_name_says_whether_lower_is_better(name: str, lower: bool) -> None:
    assert lower_is_better(name) == lower


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("val_loss=0.3", Target("val_loss", 0.3, False)),
        ("accuracy=0.95", Target("accuracy", 0.95, True)),
        ("f1>=0.9", Target("f1", 0.9, True)),
        (" latency <= 2 ", Target("latency", 2.0, False)),
        ("val_loss>=1e-3", Target("val_loss", 1e-3, True)),
        ("test/loss=-1", Target("test/loss", -1.0, False)),
        ("objective=0.5", Target("objective", 0.5, False)),
    ],
)
def test_a_target(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("val_loss", "give NAME=VALUE"),
        ("val_loss==1", "give NAME=VALUE"),
        ("val_loss>0.3", "give NAME=VALUE"),
        ("", "give NAME=VALUE"),
        ("=0.3", "is not the name of a metric"),
        ("val loss=0.3", "'val loss' is not the name of a metric"),
        ("f1=0. 9", "'0. 9' is not a number"),
        ("1st=0.3", "begins with a letter"),
        (f"{'a' * 65}=1", "65 characters"),
        ("f1=good", "'good' is not a number"),
        ("f1=nan", "'nan' is not a number"),
        ("f1=inf", "'inf' is not a number"),
        ("f1=", "'' is not a number"),
    ],
)
def test_a_faulty_target_is_refused_with_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        parse_target(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "targets", "expected"),
    [
        ("accuracy", (), ("accuracy", False)),
        ("val_loss", (), ("val_loss", True)),
        ("lowest:score", (), ("score", True)),
        ("highest:val_loss", (), ("val_loss", False)),
        ("score", (Target("score", 1.0, False),), ("score", True)),
        ("highest:score", (Target("score", 1.0, False),), ("score", False)),
    ],
)
def test_the_metric_of_the_best_model(
    text: str, targets: tuple[Target, ...], expected: tuple[str, bool]
) -> None:
    assert parse_best(text, targets) == expected


@pytest.mark.parametrize("text", ["objective", "round", "best:score", ":score", "a b", "lowest:"])
def test_what_cannot_choose_the_best_model(text: str) -> None:
    with pytest.raises(ValueError, match="metric"):
        parse_best(text)


@pytest.mark.parametrize(
    "name", ["", "a b", "a\n", "a\x1b[31m", "1a", "-a", "a=b", "a" * 65, "é b"]
)
def test_what_is_not_a_name(name: str) -> None:
    assert name_fault(name) is not None


@pytest.mark.parametrize("name", ["a", "_a", "précision", "val/loss", "top-5.acc", "a" * 64])
def test_what_is_a_name(name: str) -> None:
    assert name_fault(name) is None


def test_a_report_counts_for_its_worker_and_an_evaluation_for_all() -> None:
    reported = Reported()
    reported.take(0, {"f1": 0.4}, evaluated=False)
    reported.take(1, {"f1": 0.6, "loss": 2.0}, evaluated=False)
    assert reported.means() == {"f1": 0.5, "loss": 2.0}
    reported.take(2, {"f1": 0.9}, evaluated=True)
    assert reported.value("f1") == 0.9
    reported.take(1, {"f1": 0.7}, evaluated=False)
    assert reported.value("f1") == pytest.approx(0.8)
    reported.left(1)
    assert reported.means() == {"f1": 0.9}, "no worker that is present has reported a loss"
    assert "loss" in reported


def test_the_number_of_names_is_limited() -> None:
    reported = Reported()
    reported.take(0, {f"m{number}": 0.0 for number in range(MOST_NAMES)}, evaluated=False)
    assert reported.has_room_for(["m0", "m1"])
    assert not reported.has_room_for(["m0", "one more"])

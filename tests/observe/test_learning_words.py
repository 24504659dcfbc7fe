"""The sentences about a run's learning, and the advice for each case."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyrhythm.observe import tables
from polyrhythm.observe.learning import (
    ended_in_words,
    learning_advice,
    learning_in_short,
    learning_in_words,
    learning_remedies,
    shape_of,
)
from polyrhythm.observe.state import RunState, fold
from polyrhythm.observe.story import Teller, tell
from polyrhythm.observe.summary import result, summary_text
from polyrhythm.observe.why import explain, in_sentences
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import refused
from tests.observe.journals import Line, ended, learning, opened, rounds

SGD = {"optimizer": "SGD", "rate": 0.1, "momentum": 0.9}
RISING: dict[str, Any] = {"objective": 2.1, "best": 0.4, "best_pass": 3, "rises": 1}


def job(**fields: Any) -> JobSpec:
    return JobSpec(job="x", **fields)


def begun(*lines: Line, **placed: Any) -> RunState:
    """Return the state of a run with two workers, after these further lines."""
    first = [{**each, **placed} if each["what"] == "placed" else each for each in opened(0, 1)]
    return fold([*first, rounds(3.0, 7, objective=2.0, passes=5), *lines])


def test_a_run_that_learns_is_not_talked_about() -> None:
    state = begun(learning(4.0, "falling"))
    assert learning_in_words(state) is None and learning_advice(state, job()) is None
    assert learning_in_words(begun()) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"state": "rising", **RISING},
            "the objective rises: 2.1 in pass 5, 0.4 in pass 3",
        ),
        (
            {"state": "rising", **RISING, "rises": 3, "best_pass": 0},
            "the objective rises: 2.1 in pass 5, 0.4 in the first round; it has risen 3 times",
        ),
        (
            {"state": "stalled", "objective": 2.29},
            "the objective stagnates: 2.29 in pass 5, 2.3 in the first round",
        ),
        (
            {"state": "settled", "objective": 0.03125},
            "the objective changes little from pass to pass: 0.03125 in pass 5, 2.3 in the first"
            " round; training may have converged",
        ),
        (
            {"state": "not-finite", "workers": [1]},
            "the objective is not finite: worker-1 reported NaN or infinity",
        ),
        (
            {"state": "falling", "rises": 2},
            "the objective falls again: 2 in pass 5; it has risen 2 times before",
        ),
    ],
)
def test_findings_in_words(fields: dict[str, Any], words: str) -> None:
    note = learning(4.0, **fields)
    assert learning_in_words(begun(note)) == words
    told = list(tell([*opened(0, 1), note]))
    assert told[-1].endswith(words)


LOWER = "a lower rate (such as --set rate=0.03)"


@pytest.mark.parametrize(
    ("state", "spec", "tries"),
    [
        (
            "rising",
            {"sync": "asp"},
            [LOWER, "less momentum (it is 0.9)", "a bound on staleness (--sync ssp:4)"],
        ),
        (
            "rising",
            {"sync": "ssp:1000", "path": "/mine.py"},
            [
                "a lower rate (it is 0.1)",
                "less momentum (it is 0.9)",
                "a smaller bound (--sync ssp:4)",
            ],
        ),
        ("rising", {}, [LOWER]),
        (
            "rising",
            {"sync": "asp", "async_scale": "none", "kind": "local", "local_steps": 4},
            [
                LOWER,
                "less momentum (it is 0.9)",
                "--async-scale members",
                "a bound on staleness (--sync ssp:4)",
                "fewer local steps (--local-steps 2)",
            ],
        ),
        (
            "rising",
            {"sync": "asp", "async_momentum": "contribution", "read_ahead": True},
            [LOWER, "less momentum (it is 0.9)", "--async-momentum round", "no --read-ahead"],
        ),
        ("rising", {"sync": "bsp", "async_momentum": "contribution"}, [LOWER]),
        (
            "rising",
            {"sync": "psp", "kind": "local"},
            [
                LOWER,
                "less momentum (if there is any)",
                "fewer steps between barriers (--most-steps 32)",
            ],
        ),
        ("not-finite", {"sync": "fsp"}, [LOWER, "clipped gradients", "a shorter --interval"]),
        (
            "stalled",
            {"sync": "asp"},
            ["another rate (it is 0.1), higher or lower", "other data (check the labels first)"],
        ),
    ],
)
def test_what_may_help_fits_the_case(state: str, spec: dict[str, Any], tries: list[str]) -> None:
    found = begun(learning(4.0, state, **(RISING if state == "rising" else {})), **SGD)
    assert learning_remedies(found, job(**spec)) == tries
    advice = learning_advice(found, job(**spec))
    assert advice is not None and advice.startswith(f"try {tries[0]}: "), "the first one only"


@pytest.mark.parametrize(
    ("fields", "gain"),
    [
        ({"state": "rising", **RISING}, "the objective was 0.4 in pass 3, before it rose"),
        (
            {"state": "rising", **RISING, "best_pass": 0},
            "the objective has risen since the first round",
        ),
        (
            {"state": "falling", "rises": 2, "best": 0.3, "best_pass": 9},
            "the objective may fall without rising on the way",
        ),
        (
            {"state": "stalled"},
            "with a rate that is too low or too high, the objective hardly falls",
        ),
        (
            {"state": "not-finite", "workers": [0]},
            "steps that are too large end in NaN or infinity",
        ),
    ],
)
def test_the_advice_says_what_it_would_gain(fields: dict[str, Any], gain: str) -> None:
    advice = learning_advice(begun(learning(4.0, **fields)), job())
    assert advice is not None and advice.endswith(f": {gain}")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], None),
        ([rounds(5.0, 9, objective=1.96)], None),
        ([rounds(5.0, 9, objective=1.9)], "falling"),
        ([rounds(5.0, 9, objective=1.9), learning(6.0, "falling")], "falling"),
        ([learning(6.0, "falling", rises=1)], "falling again"),
        ([learning(6.0, "settled")], "level"),
        ([learning(6.0, "stalled")], "stagnating"),
        ([learning(6.0, "rising", **RISING)], "rising"),
    ],
)
def test_whether_it_learns_in_a_word(lines: list[Line], words: str | None) -> None:
    """The objective was 2.0 at first. It is called falling when 5% of that are gained."""
    assert learning_in_short(begun(*lines)) == words


def test_the_shape_of_the_objective() -> None:
    values = [8.0, 4.0, 2.0, *[1.0] * 13]
    lines = [rounds(2.0 + at, at, objective=value) for at, value in enumerate(values)]
    assert shape_of(fold([*opened(0), *lines]).curve) == "█▄▂" + "▁" * 13
    twice = [line for line in lines for _ in range(2)]
    assert shape_of(fold([*opened(0), *twice]).curve) == "█▄▂" + "▁" * 13, "means of two values"
    assert shape_of(fold([*opened(0), *lines[:7]]).curve) == ""
    flat = [rounds(2.0 + at, at, objective=1.0) for at in range(9)]
    assert shape_of(fold([*opened(0), *flat]).curve) == "▁" * 9


def test_convergence_needs_no_advice() -> None:
    assert learning_advice(begun(learning(4.0, "settled"), **SGD), job(sync="asp")) is None


def test_an_unstable_run_gets_advice_until_it_has_settled() -> None:
    assert learning_advice(begun(learning(4.0, "falling", rises=1)), job()) is not None
    assert learning_advice(begun(learning(4.0, "settled", rises=1)), job()) is None


GOAL = "the job reached its goal: 9 rounds"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "falling"}, GOAL),
        ({"state": "settled", "rises": 1}, GOAL),
        ({"state": "falling", "rises": 1}, f"{GOAL}, but its objective has risen once on the way"),
        ({"state": "rising", **RISING}, f"{GOAL}, but its model has diverged"),
        (
            {"state": "rising", **RISING, "objective": 0.7},
            f"{GOAL}, but its objective was lower in pass 3",
        ),
        (
            {"state": "rising", "first": 1.55, "best": 1.53, "objective": 2.32},
            f"{GOAL}, but its objective has risen",
        ),
        (
            {"state": "rising", "first": 1.55, "best": 1.53, "objective": 3.2},
            f"{GOAL}, but its model has diverged",
        ),
        ({"state": "stalled"}, f"{GOAL}, but its objective has hardly fallen"),
        (
            {"state": "not-finite", "workers": [0]},
            f"{GOAL}, but losses of its last pass are not finite",
        ),
    ],
)
def test_a_bad_model_is_no_plain_success(fields: dict[str, Any], words: str) -> None:
    found = learning(4.0, **fields)
    end = ended(9.0, learning={key: found[key] for key in found if key not in ("at_s", "what")})
    state = begun(end)
    assert ended_in_words(state) == words
    assert result(state, job())["ended"] == words
    assert list(tell([*opened(0, 1), end]))[-1].endswith(words)


def test_a_failed_job_says_why_it_failed_and_no_more() -> None:
    state = begun(learning(4.0, "stalled"), ended(9.0, refused("every worker left"), failed=True))
    assert ended_in_words(state) == "every worker left"


def test_the_summary_and_its_json() -> None:
    state = begun(learning(4.0, "rising", **RISING), ended(9.0), **SGD)
    found = result(state, job(sync="asp"))
    assert found["learning"]["state"] == "rising" and found["learning"]["rises"] == 1
    assert found["learning"]["advice"].startswith("try a lower rate")
    text = summary_text({"job": "digits", **found}, Path("runs/x"))
    assert "but its model has diverged" in text.splitlines()[0]
    assert "  the objective rises: 2.1 in pass 5, 0.4 in pass 3" in text.splitlines()
    assert result(begun(), job())["learning"] is None


def test_why_tells_of_learning_beside_of_waiting() -> None:
    state = begun(learning(4.0, "rising", **RISING), **SGD)
    explanation = explain(state, job=job(sync="asp"))
    said = in_sentences(explanation)
    assert said[0].startswith("waiting for nothing")
    assert said[1] == "learning: the objective rises: 2.1 in pass 5, 0.4 in pass 3"
    assert said[2].startswith("you can: try a lower rate")
    assert "or: try less momentum (it is 0.9)" in said
    assert explanation.as_dict()["learning"] == "the objective rises: 2.1 in pass 5, 0.4 in pass 3"
    assert explain(begun()).learning is None


def test_a_run_that_settles_again_and_again_says_so_once() -> None:
    states = ("settled", "falling", "settled", "rising", "settled")
    lines = [learning(float(at), state) for at, state in enumerate(states, 2)]
    teller = Teller(job())
    told = [str(sentence) for line in (*opened(0, 1), *lines) for sentence in teller.take(line)]
    assert sum("may have converged" in words for words in told) == 1
    assert any("the objective rises" in words for words in told)


def test_an_objective_that_rises_again_and_again_is_told_ever_less_often() -> None:
    """The story has every rise; a terminal gets the first, second, fourth and eighth."""
    teller = Teller(job())
    told = [
        teller.take(learning(float(rises), "rising", **{**RISING, "rises": rises}))
        for rises in range(1, 10)
    ]
    shown = [rises for rises, (said,) in enumerate(told, 1) if not said.routine]
    assert shown == [1, 2, 4, 8]
    (said,) = teller.take(learning(11.0, "not-finite", workers=[1], rises=9))
    assert not said.routine, "any other fault is told at once"


def test_progress_shows_a_fault() -> None:
    state = begun(learning(4.0, "rising", **RISING), **SGD)
    assert "objective 2.0000 (rising)" in tables.headline(state, None, 5.0)
    drawn = io.StringIO()
    Console(file=drawn, width=120).print(tables.live(state, None, 5.0))
    assert "the objective rises: 2.1 in pass 5" in drawn.getvalue()
    (sentence,) = [
        sentence
        for sentence in Teller(job(sync="asp")).take(learning(4.0, "rising", **RISING))
        if not sentence.routine
    ]
    assert "; try a lower rate" in sentence.text


def test_an_objective_that_is_not_finite_is_not_shown_as_the_number_before() -> None:
    state = begun(learning(4.0, "not-finite", workers=[0]))
    assert state.objective is None
    assert "objective not finite" in tables.headline(state, None, 5.0)
    nan = rounds(5.0, 8, objective=float("nan"))
    assert begun(nan).objective == 2.0, "the learning line tells of it"


def test_a_job_with_an_outer_optimizer_is_advised_to_lower_its_rate_too() -> None:
    state = begun(learning(4.0, "rising", **RISING), **SGD)
    local = {"kind": "local", "local_steps": 50, "path": "job.py"}
    tries = learning_remedies(state, job(**local, outer="nesterov:lr=0.7,momentum=0.9"))
    assert "a lower lr of --outer (it is 0.7)" in tries
    assert "fewer local steps (--local-steps 25)" in tries
    assert not any("--outer" in remedy for remedy in learning_remedies(state, job(**local)))
    one = learning_remedies(state, job(**{**local, "local_steps": 1}, outer="nesterov:lr=0.7"))
    assert "more --local-steps (each round is one step)" in one

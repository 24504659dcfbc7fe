"""`why`: what the job waits for, which workers wait, since when, until when, by which rule, and
what helps."""

from polyrhythm.observe.state import fold
from polyrhythm.observe.why import explain, in_sentences
from tests.observe.journals import line, opened, rounds, waiting


def test_a_round_that_waits_for_one() -> None:
    state = fold([*opened(0, 1), waiting(10.0, 2.0, [1], until_s=8.0)])
    said = in_sentences(explain(state, now_s=10.5))
    assert said[:5] == [
        "round 5 waits for worker-1",
        "missing: worker-1",
        "waiting: worker-0",
        "since: 2.5 s ago, at 8.0 s",
        "until: in 7.5 s at the latest, at 18.0 s",
    ]
    assert said[5].startswith("rule: bsp folds a round when every member")
    policies = [sentence for sentence in said[6:] if "--sync" in sentence]
    assert policies
    assert all("compare the seconds to the same objective" in sentence for sentence in policies)
    assert not any("asp" in sentence for sentence in policies), "no policy for its speed alone"


def test_without_a_timer() -> None:
    state = fold([*opened(0, 1), waiting(10.0, 2.0, [1])])
    assert "until: it arrives; no timer limits this wait" in in_sentences(explain(state))


def test_an_unknown_reason_is_shown_with_its_code_and_fields() -> None:
    note = line(3.0, "waiting", reason="new", fields={"steps": 3}, since_s=2.0, until_s=None)
    explanation = explain(fold([*opened(0), note]))
    assert (explanation.what, explanation.rule) == ("new steps=3", None)


def test_nothing_is_waited_for() -> None:
    state = fold([*opened(0, 1), rounds(3.0, 7)])
    assert explain(state, 3.5).what == "nothing is being waited for: round 7, 2 workers at work"
    assert explain(fold([]), 0.0).what == "round 1 has not opened yet; 0 workers joined so far"


def test_a_journal_that_fell_silent_is_not_called_well() -> None:
    state = fold([*opened(0, 1), rounds(3.0, 7)])
    assert (
        explain(state, 9.0).what
        == "no contribution has arrived for 6.0 s after round 7; 2 workers in the job"
    )


def test_a_stale_worker_is_held_and_the_slowest_is_missing() -> None:
    fields = {"held": [0, 2], "missing": [1], "ahead": 3, "bound": 2, "clock": 7}
    note = line(5.0, "waiting", reason="stale", fields=fields, since_s=2.0, until_s=None)
    explanation = explain(fold([*opened(0, 1, 2, 3), note]))
    ahead = "worker-0 and worker-2 are up to 3 steps ahead of worker-1 (limit 2)"
    assert explanation.what == ahead
    assert explanation.missing == ("worker-1",)
    assert explanation.held == ("worker-0", "worker-2")
    assert explanation.rule is not None and explanation.rule.startswith("ssp lets a worker begin")

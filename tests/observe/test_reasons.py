"""Codes and fields of reasons become sentences in `observe/`, and nowhere else."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import polyrhythm
from polyrhythm.observe.reasons import in_words, limit_in_words, noticed_by, parting
from polyrhythm.observe.templates import SENTENCES
from polyrhythm.wire.messages.reasons import DONE, TOLD_TO_LEAVE, Reason, failed, refused

SOURCE = Path(polyrhythm.__file__).parent
NUMBERS = (
    *("interval_ms", "before_ms", "gain", "promised", "phi_ms", "micro_ms", "horizon_ms"),
    *("cap", "raised", "after_s", "mb", "silent_s", "timeout_s", "within_s", "share", "usage"),
)
FIELDS: dict[str, Any] = {
    **dict.fromkeys(NUMBERS, 1.5),
    **{"round": 3, "rounds": 3, "members": 4, "points": 8, "unacknowledged": 2, "absent": 1},
    **{"server": 7, "lost": 2, "by": 0, "slices": 3, "deaths": 5, "resting": 1, "bound": 2},
    **{"ahead": 3, "missing": [2], "held": [5], "workers": [1, 2], "servers": [8]},
    **{"number": 3, "times": 3, "left": 2, "versions": 4},
    **{"steps": [4, 1], "name": "worker-9", "peer": "s1", "detail": "gone", "attempt": "again"},
    **{"characters": 200, "most": 100, "least": 2, "expected": 2, "protocol": 1, "weight": 0.0},
    **{"seen": "critic", "model": 7, "device": "cuda:0"},
    **{
        "servers_wanted": 3,
        "contributions": 16,
        "incarnation": 5,
        "what": "dance",
        "number": 3,
        "left": 2,
        "times": 3,
        "total": 9,
    },
    **{
        "goal": "rounds",
        "cause": "done",
        "differs": "form",
        "limit_s": 2.0,
        "heartbeats": 20,
        "heartbeat_s": 0.1,
        "kind": "statistics",
        "sync": "asp",
    },
    **{"count": 4, "apart": 0.4, "passes": 1.5, "target_passes": 2.5, "seconds": 3.0},
    **{"targets": [0, 3], "nbytes": 10, "kept": 4, "before": 6, "all": 12, "first": "worker-8"},
    **{"target": "val_los", "names": "accuracy, val_loss", "joined": 2, "start_s": 60.0},
    **{"node": "10.0.0.7", "on_it": "worker-9, s1"},
}


@pytest.mark.parametrize("code", SENTENCES)
def test_every_code_has_a_sentence_that_its_fields_fill(code: str) -> None:
    text = in_words(Reason(code, FIELDS))
    assert "{" not in text and "detail=" not in text, text


def test_every_code_in_the_source_has_a_sentence() -> None:
    """The pattern looks for codes in calls of `Reason`, and of the helpers that policies and
    intervals use in its place."""
    made = re.compile(r'\b(?:Reason|_told|_reason|_refused|leave_behind)\(\s*"([a-z-]+)"')
    codes = {code for path in SOURCE.rglob("*.py") for code in made.findall(path.read_text())}
    assert {"goal", "link-ended", "timer", "evicted"} <= codes
    assert codes - SENTENCES.keys() == set()


def test_counts_and_verbs_agree_with_their_numbers() -> None:
    assert in_words(Reason("goal", {"goal": "rounds", "rounds": 1})).endswith("goal: 1 round")
    assert in_words(Reason("goal", {"goal": "passes", "passes": 2})).endswith(
        "2 passes over the data"
    )
    one = Reason("window", {"held": [0], "servers": [1, 2]})
    assert in_words(one).startswith("w0 waits: s1 and s2 have not acknowledged")
    assert in_words(Reason("gathering", {"absent": 2})) == (
        "waiting for 2 more workers to join and to attach a model"
    )


def test_workers_are_shown_by_name_and_many_of_them_by_their_number() -> None:
    named = in_words(Reason("round", {"round": 5, "missing": [0, 2]}), lambda n: f"worker-{n}")
    assert named == "round 5 waits for worker-0 and worker-2"
    many = in_words(Reason("round", {"round": 5, "missing": list(range(100))}))
    assert many == "round 5 waits for w0, w1, w2, w3, w4, w5, w6, w7 and 92 more"


def test_a_stale_worker_is_told_how_far_ahead_it_is() -> None:
    fields = {"held": [0], "missing": [1], "ahead": 2, "bound": 1, "clock": 7}
    assert in_words(Reason("stale", fields)) == "w0 is 2 steps ahead of w1 (limit 1)"


def test_a_cause_has_its_own_sentence() -> None:
    ended = Reason("server-died", {"server": 1}).because(
        Reason("link-ended", {"detail": "s1 closed the link"})
    )
    assert in_words(ended) == (
        "server s1 died (s1 closed the link); without replicas its slices are lost"
    )
    late = Reason("too-late", {"name": "anna"}).because(
        Reason("goal", {"goal": "rounds", "rounds": 2})
    )
    assert in_words(late) == "anna came too late: the job reached its goal: 2 rounds"


def test_a_cause_that_names_itself_ends() -> None:
    """A peer chooses the fields of its reason, so a reason may name itself as its cause. This must
    not recurse forever."""
    assert in_words(Reason("rejoining", {"cause": "rejoining"})).startswith(
        "this worker joins again"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"limit_s": "x"},
        {"workers": "w1"},
        {"cause": 3},
        {"goal": [1]},
        {"steps": [1], "workers": []},
    ],
)
@pytest.mark.parametrize("code", [*SENTENCES, "unknown"])
def test_fields_that_do_not_fit_are_shown_as_they_are(code: str, fields: dict[str, Any]) -> None:
    assert in_words(Reason(code, fields))


def test_the_limit_on_a_silence_is_derived_in_words() -> None:
    agreed = {"limit_s": 10.0, "heartbeats": 20, "heartbeat_s": 0.5, "gaps": 0}
    assert limit_in_words(agreed) == "10.00 s = 20 x the heartbeat interval of 0.50 s"
    measured = {"limit_s": 2.0, "mean_s": 0.5, "deviation_s": 0.1, "gaps": 4, "network_s": 0.5}
    assert limit_in_words(measured) == (
        "2.00 s = mean gap 0.50 s (of the last 4) + 2 x 0.50 s (the larger of 2 gaps and 4 standard"
        " deviations) + 0.5 s"
    )


@pytest.mark.parametrize(
    ("gain", "promised", "chosen", "over"),
    [
        (0.25, 0.5, "should fall by 0.25 per second", "falls by 0.25 per second instead of 0.5"),
        (
            -0.361,
            0.5,
            "should rise by 0.361 per second, and faster with other intervals",
            "rises by 0.361 per second instead of falling by 0.5",
        ),
        (
            -2.0,
            -1.0,
            "should rise by 2 per second, and faster with other intervals",
            "rises by 2 per second instead of 1",
        ),
    ],
)
def test_an_objective_that_rises_is_not_said_to_fall(
    gain: float, promised: float, chosen: str, over: str
) -> None:
    fields = {"interval_ms": 20.0, "before_ms": 10.0, "gain": gain, "promised": promised}
    assert in_words(Reason("interval-chosen", fields)).endswith(f": the objective {chosen}")
    assert f"the objective {over}: intervals" in in_words(Reason("interval-stage-over", fields))


def test_why_a_worker_left() -> None:
    assert parting(Reason("link-ended", {"detail": "w1 closed the link"})) == "its link ended"
    assert parting(DONE) == "it was done"
    assert parting(TOLD_TO_LEAVE) == "it was told to leave"
    assert parting(failed(ValueError("no"))) == "it failed: no"


def test_how_the_loss_of_a_server_was_noticed() -> None:
    assert noticed_by(Reason("link-ended", {"detail": "x"})) == "the end of its link"
    assert noticed_by(Reason("unreachable", {"by": 2, "detail": "x"})) == (
        "s2, whose link to it ended"
    )


def test_a_reason_survives_the_wire_and_the_journal() -> None:
    reason = Reason("stale", {"held": [0, 2], "missing": [1], "ahead": 2, "bound": 1, "clock": 7})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reason), type=Reason) == reason
    noted = msgspec.json.decode(msgspec.json.encode(reason.noted()))
    assert Reason(noted["reason"], noted["fields"]) == reason


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2**60},
        {"n": float("nan")},
        {"n": {"nested": 1}},
        {"n": ["w1"]},
        {str(number): number for number in range(100)},
    ],
)
def test_fields_outside_their_ranges_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(["refused", fields]), type=Reason)


def test_a_refusal_is_the_message_of_the_check() -> None:
    assert in_words(refused("eve was refused: another job")) == "eve was refused: another job"

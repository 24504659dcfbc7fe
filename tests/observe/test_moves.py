"""Passes of workers, points that moved and why, and points that are lost: in status and summary."""

from pathlib import Path
from typing import Any

from polyrhythm.core.names import worker_name
from polyrhythm.observe import moves as words
from polyrhythm.observe.moves import losses_in_words, moves_in_words
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.state import fold
from polyrhythm.observe.summary import result, summary_text
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Reason

JOINED = [
    {"at_s": 0.0, "what": "joined", "worker": number, "name": f"worker-{number}", "epoch": 1}
    for number in range(3)
]
ENDED = {"at_s": 9.0, "what": "ended", "reason": "done", "fields": {}}
MOVE = {
    "at_s": 3.0,
    "what": "chunks",
    "moved": 5,
    "points": 40,
    "reason": "balance-passes",
    "fields": {
        "workers": [2],
        "targets": [0, 1],
        "passes": 1.5,
        "target_passes": 3.0,
        "times": 4.0,
        "seconds": 8.0,
    },
}


def rounds(**passes: float) -> dict[str, Any]:
    return {
        "at_s": 4.0,
        "what": "rounds",
        "round": 9,
        "rounds": 9,
        "workers": {int(name[1:]): {"passes": number} for name, number in passes.items()},
    }


def data_set(code: str, **fields: Any) -> dict[str, Any]:
    return {"at_s": 5.0, "what": "data-set", "reason": code, "fields": fields}


def test_the_moves_and_the_last_one_are_told() -> None:
    state = fold([*JOINED, MOVE, {**MOVE, "at_s": 3.5, "points": 8}, rounds(w0=3.25, w1=3, w2=2.5)])
    moves = moves_in_words(state)
    assert moves[0] == "48 points (10 chunks) began to move between workers"
    assert moves[1].startswith(
        "the last time after 3.5 s: 8 points (5 chunks) move from worker-2 to worker-0 and worker-1:"
        " worker-2 would fall behind"
    )


def kept(chunks: int, points: int, target: int = 0) -> dict[str, Any]:
    about = {"worker": 2, "target": target, "chunks": chunks, "points": points}
    return {"at_s": 6.0, "what": "points-kept", **about, "reason": "move-job-ends", "fields": {}}


def test_moves_that_were_all_interrupted_are_not_told() -> None:
    lines = [*JOINED, MOVE, kept(3, 24), kept(2, 16, target=1)]
    assert moves_in_words(fold(lines)) == []
    found = result(fold(lines), JobSpec(job="x"))
    assert (found["moved_points"], found["last_move"]) == (0, None)


def test_the_last_move_is_the_last_one_that_was_not_interrupted() -> None:
    later = {**MOVE, "at_s": 5.0, "moved": 4, "points": 32}
    moves = "; ".join(moves_in_words(fold([*JOINED, MOVE, later, kept(1, 8)])))
    assert (
        "64 points (8 chunks) began to move" in moves
        and "after 5.0 s: 24 points (3 chunks)" in moves
    )
    moves = "; ".join(moves_in_words(fold([*JOINED, MOVE, later, kept(6, 48)])))
    assert (
        "24 points (3 chunks) began to move" in moves
        and "after 3.0 s: 24 points (3 chunks)" in moves
    )


def test_the_result_and_the_summary_have_the_last_move_and_lost_points() -> None:
    lost = data_set("data-lost", name="worker-1", points=70, total=140)
    found = result(fold([*JOINED, MOVE, rounds(w0=3.0), lost, ENDED]), JobSpec(job="x"))
    assert (found["moved_points"], found["moved_chunks"]) == (40, 5)
    assert found["last_move"]["reason"] == "balance-passes"
    assert found["per_worker"]["worker-0"]["passes"] == 3.0
    assert found["lost_points"] == {"worker-1": 70}
    text = summary_text({**found, "job": "x", "ended": "done"}, Path("runs/x"), details=True)
    (row,) = (each.split() for each in text.splitlines() if each.startswith("  worker-0 "))
    assert row == ["worker-0", "0", "-", "-", "-", "0", "3.0"]
    assert "  the last time after 3.0 s: 40 points (5 chunks) move from worker-2" in text
    brief = summary_text({**found, "job": "x", "ended": "done"}, Path("runs/x"))
    assert "  40 points (5 chunks) moved between workers\n" in brief and "last time" not in brief
    assert "  40 points (5 chunks) moved between workers" in text
    assert "  9 rounds" in text
    assert "  the 70 points of worker-1 are lost: no pass includes them" in text


def test_points_that_are_back_are_not_lost() -> None:
    lost = data_set("data-lost", name="worker-1", points=70, total=140)
    back = data_set("data-back", name="worker-1", points=70, total=210)
    assert not fold([*JOINED, lost, back]).lost_points


def test_an_owner_that_is_back_is_said_to_have_all_of_its_points() -> None:
    """The number of its points does not contradict the number of those that were lost."""
    partly = {"name": "worker-1", "points": 30, "total": 90, "kept": 40}
    back = {"name": "worker-1", "points": 30, "total": 120, "all": 70}
    assert in_words(Reason("data-partly-back", back)) == (
        "worker-1 is back with its 70 points: passes again include the 30 that were lost, and other"
        " workers have the rest, which it has shared: the job now has 120 points"
    )
    lines = [data_set("data-partly-lost", **partly), data_set("data-partly-back", **back)]
    assert not fold([*JOINED, *lines]).lost_points


def test_nothing_is_said_if_passes_do_not_differ() -> None:
    assert moves_in_words(fold([*JOINED, rounds()])) == []


def test_shared_points_that_stay_with_others_are_not_lost() -> None:
    partly = {"name": "worker-1", "points": 30, "total": 90, "kept": 40}
    later = {"name": "worker-1", "points": 10, "total": 80}
    lines = [
        {"at_s": 5.0, "what": "data-set", "reason": "data-partly-lost", "fields": partly},
        {"at_s": 6.0, "what": "data-set", "reason": "data-lost-later", "fields": later},
    ]
    assert fold([*JOINED, lines[0]]).lost_points == {"worker-1": 30}
    assert fold([*JOINED, *lines]).lost_points == {"worker-1": 40}


def test_the_summary_says_how_chunks_move_if_any_have_moved() -> None:
    chosen = {"at_s": 0.1, "what": "migration", "mode": "lease", "reason": "migrate-lease"}
    words = "--migrate auto means lease: every worker can read the whole data set"
    assert words in moves_in_words(fold([*JOINED, chosen, MOVE]))
    assert words not in moves_in_words(fold([*JOINED, chosen]))


def test_a_move_that_ends_early_does_not_say_where_the_points_are() -> None:
    """The worker that had the points may be the one that left."""
    left = {**kept(3, 24), "reason": "move-member-left", "fields": {"workers": [2], "targets": [0]}}
    assert words.kept(left, worker_name) == (
        "24 points (3 chunks) do not move from w2 to w0 after all: w2 or w0 left before the"
        " move was complete"
    )


def test_a_job_that_was_killed_does_not_say_that_its_last_moves_are_complete() -> None:
    found = result(fold([*JOINED, MOVE]), JobSpec(job="x"))
    text = summary_text({**found, "job": "x"}, Path("runs/x"), None)
    assert "x: did not end properly\n  at least 0 rounds" in text
    assert "  40 points (5 chunks) began to move between workers" in text


def m_steps(code: str, **fields: int) -> dict[str, Any]:
    return {"at_s": 5.0, "what": "m-steps", "reason": code, "fields": fields}


def test_the_summary_says_once_how_many_versions_have_no_new_parameters() -> None:
    held = m_steps("m-steps-held", absent=300, points=1000)
    resumed = m_steps("m-steps-resumed", absent=0, points=1000, versions=7, passes=2)
    without = m_steps("m-steps-without", absent=200, points=1000, versions=5, passes=2)
    found = result(fold([*JOINED, held, resumed, held, without, ENDED]), JobSpec(job="x"))
    assert found["held_versions"] == 12
    rows = [row for row in found["losses"] if "parameters" in row]
    assert rows == ["12 versions without new parameters, because points were missing from the sum"]


def test_the_summary_of_a_job_that_ended_within_a_hold_has_the_reason() -> None:
    held = m_steps("m-steps-held", absent=300, points=1000)
    assert losses_in_words(fold([*JOINED, held, ENDED])) == [
        "300 of 1,000 points are missing from the sum: the parameters stay as they are until these"
        " points were visited again"
    ]

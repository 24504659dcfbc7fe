"""The commands `status`, `why`, `story` and `runs` read only the folder of a run."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import Result

from polyrhythm.errors import UsageError
from polyrhythm.observe import runs, tables

Call = Callable[..., Result]
Write = Callable[..., Path]

WORKERS = {
    "0": {"contributions": 30, "points": 300, "compute_ns": 1, "wait_ns": 3, "transfer_ns": 0},
    "1": {"contributions": 30, "points": 300, "compute_ns": 4, "wait_ns": 0, "transfer_ns": 0},
}
ROUNDS = {"passes": 1, "reason": "all-arrived", "longest_s": 0.1, "rounds": 30}
LINES: list[dict[str, Any]] = [
    {"at_s": 0.1, "what": "joined", "worker": 0, "name": "worker-0", "epoch": 1},
    {"at_s": 0.1, "what": "joined", "worker": 1, "name": "worker-1", "epoch": 2},
    {"at_s": 1.0, "what": "rounds", "round": 0, **ROUNDS, "workers": {}},
    {"at_s": 4.0, "what": "rounds", "round": 30, **ROUNDS, "objective": 0.5, "workers": WORKERS},
]
LISTENING = {"at_s": 0.0, "what": "listening", "host": "127.0.0.1", "port": 7000, "job": "j"}
WAITING = {
    "at_s": 9.0,
    "what": "waiting",
    "reason": "round",
    "fields": {"round": 31, "missing": [1]},
    "since_s": 4.5,
    "until_s": 1000.0,
}
ENDED = {
    "at_s": 10.0,
    "what": "ended",
    "reason": "goal",
    "fields": {"goal": "rounds", "rounds": 30},
    "rounds": 30,
}


@pytest.fixture
def running(write_run: Write) -> Path:
    """The folder of a run that waits for a worker. The run counts as alive as long as the process
    of the test lives."""
    path = write_run("now", [LISTENING, *LINES, WAITING], name="digits", rounds=60)
    runs.write_process(path)
    return path


def test_status_shows_a_running_job(call: Call, running: Path) -> None:
    text = call("status").stdout
    assert text.startswith("now: running\n")
    assert "round 30" in text and "objective 0.5000" in text and "left" in text
    assert "worker-1" in text and "100%" in text
    assert "round 31 waits for worker-1: ask 'polyrhythm why'" in text
    assert text.endswith("others may join: polyrhythm worker --connect 127.0.0.1:7000\n")


def test_a_small_objective_is_shown_with_its_digits(call: Call, write_run: Write) -> None:
    """`0.0000` would say that nothing is left to learn."""
    small = {**LINES[-1], "objective": 3.98e-05}
    write_run("small", [*LINES[:-1], small, ENDED], name="digits", rounds=30)
    for command in ("status", "story", "runs"):
        assert "3.98e-05" in call(command).stdout, command


def test_a_bar_without_colours_ends_where_the_run_is(call: Call, running: Path) -> None:
    (bar,) = (row for row in call("status").stdout.splitlines() if "left" in row)
    drawn, share, *_ = bar.split()
    assert 24 * int(share[:-1]) / 100 == pytest.approx(len(drawn), abs=1.0)


def test_a_stopped_run_is_described_once(call: Call, write_run: Write) -> None:
    stopped = {**ENDED, "reason": "stopped", "fields": {}}
    write_run("then", [LISTENING, *LINES, stopped])
    assert call("status").stdout.startswith("then: stopped on request\n")
    assert call("why").stdout.startswith("stopped on request\n")


def test_status_prints_json(call: Call, running: Path) -> None:
    status = json.loads(call("status", "now", "--json").stdout)
    assert (status["run"], status["is"], status["rounds"]) == ("now", "running", 30)
    assert status["members"][0]["shares"] == [0.25, 0.75, 0.0]
    assert status["waiting"]["missing"] == ["worker-1"]


def test_why_names_the_worker_that_is_waited_for(call: Call, running: Path) -> None:
    said = call("why").stdout.splitlines()
    assert said[0] == "round 31 waits for worker-1"
    keys = ["missing", "waiting", "since", "until", "rule"]
    assert [line.split(":")[0] for line in said[1:6]] == keys
    assert said[6] == "slow: worker-1 is 4.0x slower than the others"
    assert said[7].startswith("lately: ") and said[7].endswith("75% of the time for worker-1")
    assert said[8].startswith("you can: ")
    answer = json.loads(call("why", "--json").stdout)
    assert (answer["is"], answer["since_s"], answer["until_s"]) == ("running", 4.5, 1009.0)


def test_an_ended_run_waits_for_nothing(call: Call, write_run: Write) -> None:
    write_run("over", [*LINES, WAITING, ENDED])
    first, advice = call("why").stdout.splitlines()
    assert first == "ended: the job reached its goal: 30 rounds"
    assert advice.startswith("you can: try --sync fsp for up to ")


def test_why_of_an_ended_run_names_the_workers_that_failed(call: Call, write_run: Write) -> None:
    detail = "ValueError: bad\nTraceback"
    failed = [
        {"at_s": 5.0 + n, "what": "left", "worker": n, "name": f"worker-{n}", "reason": "failed"}
        | {"fields": {"detail": detail}}
        for n in (0, 1)
    ]
    write_run("over", [*LINES, *failed, ENDED])
    assert "gone: worker-0 and worker-1: ValueError: bad\n" in call("why").stdout
    shown = "gone: worker-0 (failed at 5.0 s) and worker-1 (failed at 6.0 s): it failed: ValueError: bad"
    assert shown in call("status").stdout


def test_a_killed_run_is_reported_as_killed(call: Call, write_run: Write) -> None:
    write_run("killed", [*LINES, WAITING])
    assert call("status").stdout.startswith("killed: ended without a word: ")
    assert call("why").stdout.startswith("ended without a word: ")
    assert call("story").stdout.splitlines()[-1].startswith("   9.0 s  ended without a word: ")


def test_story_tells_of_a_run_and_of_one_worker(call: Call, write_run: Write) -> None:
    write_run("over", [*LINES, ENDED])
    assert call("story", "over").stdout.splitlines() == [
        "   0.1 s  worker-0 joined; 1 worker now",
        "   0.1 s  worker-1 joined; 2 workers now",
        "   1.0 s  round 1 opened with 2 workers",
        "   4.0 s  rounds 1 to 30 are folded, pass 1, objective 0.5000",
        "  10.0 s  the job reached its goal: 30 rounds",
        "  10.0 s  contributions of each worker, and the share of its time spent computing: 30 of"
        " worker-0 (25%) and 30 of worker-1 (100%)",
    ]
    by_number = call("story", "over", "--worker", 1).stdout
    assert "worker-1 made 30 contributions" in by_number and "worker-0" not in by_number
    assert call("story", "over", "--worker", "worker-1").stdout == by_number
    told = json.loads(call("story", "over", "--worker", "1", "--json").stdout)
    assert told == {"run": "over", "story": by_number.splitlines()}


def test_runs_lists_all_runs(call: Call, write_run: Write, running: Path) -> None:
    older = write_run("older", [*LINES, ENDED], name="mine.py")
    os.utime(older / "job.json", ns=(1, 1))
    rows = call("runs").stdout.splitlines()
    assert [row.split() for row in rows[1:]] == [
        ["older", "ended", "30", "0.5000", "3.0", "mine.py", "bsp", "-"],
        ["now", "running", "30", "0.5000", "3.0", "digits", "bsp", "-"],
    ]
    listed = json.loads(call("runs", "--json").stdout)
    assert [(run["run"], run["is"]) for run in listed] == [("older", "ended"), ("now", "running")]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_list_of_runs_fits_the_terminal(
    call: Call, write_run: Write, running: Path, columns: int
) -> None:
    """Of a name that is longer than the terminal, the end is left out."""
    write_run("a-name-that-is-much-longer-than-the-terminal-" * 3, [*LINES, ENDED])
    found = [runs.load_run(path) for path in runs.run_dirs(Path("runs"))]
    long, short = tables.runs(found, columns), tables.runs(found[:1], columns)
    assert max(map(cell_len, [*long, *short])) <= columns
    assert [row.split()[1] for row in long[1:]] == ["running", "ended"]
    assert ("objective" in short[0], "reported" in short[0]) == (True, columns > 60)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["status", "nope"], "there is no run 'nope'"),
        (["story", "over", "--worker", "9"], "its workers are worker-0, worker-1"),
        (["runs", "--runs-dir", "empty"], "there is no run in empty"),
    ],
)
def test_unknown_runs_and_workers_are_refused(
    call: Call, write_run: Write, args: list[str], words: str
) -> None:
    write_run("over", [*LINES, ENDED])
    result = call(*args)
    assert isinstance(result.exception, UsageError) and words in str(result.exception)


@pytest.mark.parametrize("command", ["train", "status", "why", "story", "runs"])
def test_the_help_of_every_command_has_examples(call: Call, command: str) -> None:
    text = call(command, "--help", env={"COLUMNS": "200"}).stdout
    assert f"polyrhythm {command}" in text.partition("Examples:")[2]


RISING = {
    "at_s": 4.5,
    "what": "learning",
    "state": "rising",
    "passes": 4,
    "objective": 2.1,
    "first": 2.3,
    "best": 0.4,
    "best_pass": 2,
    "rises": 1,
    "workers": [],
}


def test_status_and_why_warn_of_a_run_that_does_not_learn(call: Call, write_run: Write) -> None:
    path = write_run("bad", [*LINES, RISING], name="digits", sync="asp")
    runs.write_process(path)
    said = "the objective rises: 2.1 in pass 4, 0.4 in pass 2"
    assert said in call("status").stdout
    text = call("why").stdout
    assert f"learning: {said}" in text
    assert "you can: try a lower rate: the objective was 0.4 in pass 2, before it rose" in text
    assert "or: try a bound on staleness (--sync ssp:4)" in text
    explained = json.loads(call("why", "--json").stdout)
    assert (explained["learning"], explained["advice"] is None) == (said, False)
    assert json.loads(call("status", "--json").stdout)["learning"]["state"] == "rising"


def test_status_and_why_report_a_run_that_ended_with_a_bad_model(
    call: Call, write_run: Write
) -> None:
    write_run("bad", [*LINES, RISING, ENDED], name="digits")
    text = call("why").stdout
    words = "the job reached its goal: 30 rounds, but its model has diverged"
    assert text.startswith(f"ended: {words}\n") and "you can: try a lower rate" in text
    assert words in call("status").stdout
    assert json.loads(call("status", "--json").stdout)["ended"] == words

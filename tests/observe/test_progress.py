"""Progress is a live table in a terminal and plain lines elsewhere. With `--quiet`, only lines
about trouble are printed."""

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from polyrhythm.observe import tables
from polyrhythm.observe.progress import ProgressDisplay
from polyrhythm.observe.state import fold
from polyrhythm.wire.messages import JobSpec
from tests.observe.journals import Line, joined, line, opened, rounds, totals, waiting

JOB = JobSpec(job="x", name="digits", rounds=100)


def write(path: Path, lines: list[Line]) -> Path:
    with path.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in lines)
    return path


def shown(path: Path, *, quiet: bool = False, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, highlight=False)
    with ProgressDisplay(path, quiet=quiet, job=JOB, console=console) as progress:
        progress.tick()
        progress.say("worker-1 failed: killed")
    return out.getvalue()


def test_plain_lines_tell_what_is_unusual(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", [*opened(0, 1), rounds(2.0, 4), joined(2.5, 2)])
    text = shown(path)
    assert "   0.2 s  worker-0 joined; 1 worker now\n" in text
    assert "   2.5 s  worker-2 joined; 3 workers now\n" in text
    assert "folded" not in text, "routine is for the headline"
    assert text.endswith("polyrhythm: worker-1 failed: killed\n")


def test_quiet_lets_only_trouble_through(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", opened(0, 1))
    assert shown(path, quiet=True) == "polyrhythm: worker-1 failed: killed\n"


def test_quiet_says_that_a_store_fails_and_that_it_works_again(tmp_path: Path) -> None:
    why = {"reason": "cut-unwritten", "fields": {"detail": "no space is left on the device"}}
    made = {"round": 7, "nbytes": 2000, "seconds": 0.25}
    lines = [*opened(0, 1), line(2.0, "checkpoint", number=1, **made)]
    lines += [line(3.0, "checkpoint-failed", number=number, **why) for number in (2, 3)]
    lines += [line(4.0, "checkpoint", number=number, **made) for number in (4, 5)]
    text = shown(write(tmp_path / "journal.jsonl", lines), quiet=True)
    assert " ".join(text.split()) == (
        "polyrhythm: checkpoint 2 is not made: no space is left on the device; training goes on"
        " polyrhythm: checkpoint 4 of round 7 is made: 2.0 kB in 0.2 s; the store works again,"
        " after 2 checkpoints that were not made"
        " polyrhythm: worker-1 failed: killed"
    )


def test_without_a_journal_there_is_nothing_to_show(tmp_path: Path) -> None:
    assert shown(tmp_path / "none.jsonl") == "polyrhythm: worker-1 failed: killed\n"


def test_the_journal_is_closed_at_the_end(tmp_path: Path) -> None:
    journal = write(tmp_path / "journal.jsonl", opened(0))

    def open_files() -> set[str]:
        found = (os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
        return {name for name in found if name == str(journal)}

    with ProgressDisplay(journal, quiet=True) as progress:
        progress.tick()
        assert open_files()
    assert not open_files()
    assert progress.state.at_s > 0, "the state can still be read"


def test_a_terminal_is_left_with_its_cursor(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", opened(0, 1))
    text = shown(path, terminal=True)
    assert "\x1b[?25l" in text, "hidden while the table lives"
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_the_headline() -> None:
    both = {"0": totals(10, 1.0), "1": totals(20, 1.0)}
    lines = [*opened(0, 1), rounds(3.0, 20, both, objective=0.25, passes=2)]
    lines.append(line(3.0, "reported", worker=0, name="worker-0", metrics={"accuracy": 0.5}))
    assert tables.headline(fold(lines), JOB, 4.0) == (
        "round 20  pass 2  objective 0.2500  accuracy 0.5000  150 points/s  3.0 s  about 7.0 s left"
    )
    assert tables.headline(fold(opened(0)[:3]), JOB, 1.0) == "starting: 1 server, 1 worker"


@pytest.mark.parametrize("clock", [None, 7])
def test_the_live_table_fits_a_terminal(clock: int | None) -> None:
    more = {} if clock is None else {"clock": clock}
    both = {str(worker): totals(1_000, 1.0, 2.0, 1.0, **more) for worker in (0, 1)}
    state = fold([*opened(0, 1), rounds(3.0, 4, both), waiting(5.0, 2.0, [1])])
    out = io.StringIO()
    Console(file=out, width=80, highlight=False).print(tables.live(state, JOB, 5.5))
    text = out.getvalue()
    assert "…" not in text
    assert "round 5 waits for worker-1, for 2.5 s" in text
    assert [word in text for word in ("comp.", "25%", "50%")] == [True] * 3
    assert ("clock" in text) == (clock is not None)


@pytest.mark.parametrize("width", [60, 200])
def test_no_line_of_the_live_table_is_longer_than_60_columns(width: int) -> None:
    """A terminal that becomes narrower, but not narrower than 60 columns, breaks no line."""
    many = {str(worker): totals(123_456, 1.0, 2.0, 1.0, clock=123_456) for worker in (0, 1)}
    long = joined(1.0, 2) | {"name": "a-worker-with-a-very-long-host-name.example.org-12345"}
    lines = [*opened(0, 1), long, rounds(3.0, 4, many), waiting(5.0, 2.0, [1])]
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(tables.live(fold(lines), JOB, 5.5))
    drawn = out.getvalue().splitlines()
    assert max(map(len, drawn)) <= 60, drawn
    (row,) = (each for each in drawn if each.startswith("worker-0"))
    assert row.split()[:3] == ["worker-0", "123456", "123456"], "numbers are not cut"

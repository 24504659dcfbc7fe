"""Progress is a live table in a terminal and plain lines elsewhere. With `--quiet`, only lines
about trouble are printed."""

import io
import json
import os
import time
from pathlib import Path
from statistics import median

import pytest
from rich.cells import cell_len
from rich.console import Console

from polyrhythm.observe import tables
from polyrhythm.observe.progress import ProgressDisplay, line_every_s
from polyrhythm.observe.state import fold
from polyrhythm.observe.story import tell
from polyrhythm.observe.workers import slow_in_words, times_slower, worker_rows
from polyrhythm.wire.messages import JobSpec
from tests.commands.terminal import Screen
from tests.observe.journals import Line, ended, joined, left, line, opened, rounds, totals, waiting

JOB = JobSpec(job="x", name="digits", workers=2, rounds=100)


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


def test_what_a_policy_tunes_again_and_again_is_left_to_the_story(tmp_path: Path) -> None:
    raised = line(
        2.0, "policy", reason="interval-raised", fields={"interval_ms": 45.0, "phi_ms": 45.0}
    )
    blind = line(3.0, "policy", reason="interval-blind", fields={"interval_ms": 45.0})
    lines = [*opened(0, 1), raised, blind]
    text = shown(write(tmp_path / "journal.jsonl", lines))
    assert "the interval is raised" not in text and "while there is no objective" in text
    told = "\n".join(tell(lines))
    assert "   2.0 s  the interval is raised to 45.0 ms" in told


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


def test_a_job_that_is_over_tells_of_its_model_and_not_of_time_that_is_left() -> None:
    lines = [*opened(0, 1), rounds(3.0, 20, {"0": totals(10, 1.0)}, passes=2)]
    lines.append(line(3.0, "saving"))
    assert tables.headline(fold(lines), JOB, 4.0).endswith(", the model is being saved")
    lines.append(line(4.0, "model-held", reason="model-held", fields={"detail": "disk full"}))
    assert tables.headline(fold(lines), JOB, 90.0).endswith(
        ", the model cannot be written yet: see 'polyrhythm why'"
    )


def test_the_headline() -> None:
    both = {"0": totals(10, 1.0), "1": totals(20, 1.0)}
    lines = [*opened(0, 1), rounds(3.0, 20, both, objective=0.25, passes=2)]
    lines.append(line(3.0, "reported", worker=0, name="worker-0", metrics={"accuracy": 0.5}))
    assert tables.headline(fold(lines), JOB, 4.0) == (
        "2 passes, round 20 of 100, objective 0.2500, accuracy 0.5000, 150 points/s,"
        " worker-0 is 2.0x slower than the others, about 7 s left"
    )
    assert tables.headline(fold(opened(0)[:3]), JOB, 1.0) == (
        "starting: 1 of 1 server and 1 of 2 workers joined"
    )


def test_a_pipe_gets_lines_with_times_and_fewer_of_them_as_the_run_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", [*opened(0, 1), rounds(2.0, 4, contributions=8)])
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False)
    with ProgressDisplay(path, quiet=False, job=JOB, console=console) as progress:
        progress._shown_s -= 10
        progress.tick()
    assert out.getvalue().splitlines()[-1].startswith("   2.0 s  round 4 of 100, ")
    assert [line_every_s(at_s) for at_s in (0.0, 60.0, 200.0, 1200.0, 36_000.0)] == [
        3,
        3,
        10,
        60,
        60,
    ]


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path: Path) -> None:
    """rich draws no table in such a terminal, so without lines nothing would be shown."""
    path = write(tmp_path / "journal.jsonl", [*opened(0, 1), rounds(2.0, 4, contributions=8)])
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, _environ={"TERM": "dumb"})
    with ProgressDisplay(path, quiet=False, job=JOB, console=console) as progress:
        progress._shown_s -= 10
        progress.tick()
    assert "round 4 of 100" in out.getvalue() and "\x1b[" not in out.getvalue()


def drawn(lines: list[Line], now_s: float, columns: int = 80, rows: int = 24) -> list[str]:
    """The live table in a terminal of this size."""
    out = io.StringIO()
    table = tables.live(fold(lines), JOB, now_s, columns=columns, lines=rows)
    Console(file=out, width=columns, highlight=False, soft_wrap=True).print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("clock", [None, 7])
def test_the_live_table(clock: int | None) -> None:
    more = {} if clock is None else {"clock": clock}
    spent = {"0": totals(1_000, 1.0, 2.0, 1.0, **more), "1": totals(1_000, 2.5, 0.5, 1.0, **more)}
    lines = [*opened(0, 1), rounds(3.0, 4, spent, objective=0.5), waiting(5.0, 2.0, [1])]
    text = drawn(lines, 5.5)
    assert text[0].endswith("  9%  4 s so far, about 46 s left")
    assert text[1] == "round 4 of 100, 10,000 points/s" and text[2] == "objective 0.5000"
    assert [word in text[3] for word in ("computing", "waiting", "transferring")] == [True] * 3
    assert [word in text[4] for word in ("5,000", "25%", "50%")] == [True] * 3
    assert text[5].endswith("  2.5x slower")
    assert text[-1] == "round 5 waits for worker-1, for 2 s so far"
    assert ("clock" in text[3]) == (clock is not None)


def test_a_worker_that_is_nearly_as_fast_is_not_called_slow() -> None:
    spent = {"0": totals(100, 1.0), "1": totals(100, 1.4), "2": totals(100, 1.0)}
    text = drawn([*opened(0, 1, 2), rounds(3.0, 4, spent)], 5.0)
    assert not any("slower" in each for each in text)
    assert times_slower({"a": (10, 1.0), "b": (10, 2.0), "c": (0, 9.0)}) == {"b": 2.0}
    assert times_slower({"a": (10, 1.0)}) == {} == times_slower({})


@pytest.mark.parametrize("count", range(2, 8))
def test_a_worker_is_compared_with_the_median_of_the_others(count: int) -> None:
    speeds = {f"w{n}": (1, (n * 5) % 7 + 1.0) for n in range(count)}
    found = times_slower(speeds)
    for name, (_, seconds) in speeds.items():
        usual = median(other for each, (_, other) in speeds.items() if each != name)
        assert found.get(name, 0.0) == (seconds / usual if seconds >= 1.5 * usual else 0.0)


def test_of_several_slow_workers_the_slowest_is_named() -> None:
    assert slow_in_words({}) is None
    assert slow_in_words({"a": 2.0}) == "a is 2.0x slower than the others"
    assert (
        slow_in_words({"a": 2.0, "b": 3.5})
        == "2 workers are slow; the slowest is b (3.5x slower than the others)"
    )


def test_after_the_end_workers_have_the_speeds_of_the_whole_run() -> None:
    spent = {"0": totals(100, 1.0), "1": totals(100, 3.0)}
    end = [left(4.0, 0, "done"), left(4.0, 1, "done"), ended(4.0)]
    rows = worker_rows(fold([*opened(0, 1), rounds(3.0, 4, spent), *end]))
    assert [(row.points_per_s, row.note) for row in rows] == [(500.0, ""), (500.0, "3.0x slower")]


def test_colours_say_whether_the_run_learns_and_which_worker_needs_attention() -> None:
    spent = {"0": totals(100, 1.0), "1": totals(100, 3.0), "2": totals(100, 1.0)}
    gone = line(4.0, "left", worker=2, name="worker-2", reason="failed", fields={"detail": "x"})
    lines = [*opened(0, 1, 2), rounds(2.0, 1, objective=1.0), rounds(3.0, 4, spent, objective=0.5)]
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard")
    console.print(tables.live(fold([*lines, gone]), JOB, 5.0))
    _, _, objective, _, _, slow, failed = out.getvalue().splitlines()
    assert objective == "\x1b[32mobjective 0.5000 (falling)\x1b[0m"
    assert slow.startswith("\x1b[33mworker-1") and slow.endswith("3.0x slower\x1b[0m")
    assert failed.startswith("\x1b[31mworker-2") and failed.endswith("failed at 4.0 s\x1b[0m")


@pytest.mark.parametrize("columns", [30, 45, 60, 80, 120, 200])
def test_no_line_of_the_live_table_is_longer_than_the_terminal(columns: int) -> None:
    """Also with wide characters, which fill two columns each."""
    many = {str(worker): totals(123_456, 1.0, 2.0, 1.0, clock=123_456) for worker in range(4)}
    wide = joined(1.0, 2) | {"name": "工作者" * 8, "device": "cuda:0"}
    long = joined(1.0, 3) | {"name": "a-worker-with-a-very-long-host-name.example.org-12345"}
    lines = [*opened(0, 1), wide, long, rounds(3.0, 4, many), waiting(5.0, 2.0, [1, 2])]
    text = drawn(lines, 5.5, columns)
    assert max(map(cell_len, text)) <= min(columns, tables.MOST_COLUMNS), text
    titles, row = (
        next(each for each in text if each.startswith(name)) for name in ("worker ", "worker-0")
    )
    assert "617,280" in row.split(), "numbers are not cut"
    assert titles.index("points/s") + len("points/s") == row.index("617,280") + len("617,280")
    assert ("clock" in titles, "waiting" in titles) == (columns > 45, columns > 80)


def test_of_more_workers_than_fit_those_that_need_attention_are_shown() -> None:
    shares = {str(n): totals(100, 1.0 + (n == 7), 2.0 + n / 100) for n in range(30)}
    gone = line(4.0, "left", worker=29, name="worker-29", reason="link-ended", fields={})
    text = drawn([*opened(*range(30)), rounds(3.0, 4, shares), gone], 5.0)
    assert len(text) <= 24 - 8, "lines that are printed above the table stay in sight"
    (slow,) = [each for each in text if each.startswith("worker-7 ")]
    (died,) = [each for each in text if each.startswith("worker-29 ")]
    assert slow.endswith("2.0x slower") and died.endswith("died at 4.0 s")
    assert text[-1].startswith("and 18 others: 500 points/s, computing ")
    assert len(drawn([*opened(*range(30)), rounds(3.0, 4, shares), gone], 5.0, rows=60)) > 30


def test_a_table_that_the_terminal_has_broken_is_erased_whole(tmp_path: Path) -> None:
    """A terminal that becomes narrower breaks the lines of the table, which are then more rows."""
    path = write(tmp_path / "journal.jsonl", [*opened(0, 1), rounds(2.0, 4, objective=0.5)])
    out, screen, read = io.StringIO(), Screen(80), 0
    console = Console(file=out, force_terminal=True, width=80, height=40, highlight=False)
    with ProgressDisplay(path, quiet=False, job=JOB, console=console) as progress:
        for columns in (80, 40, 100, 45):
            screen.resize(columns)
            console.width = columns
            progress._shown_s -= 10
            progress.tick()
            screen.feed(out.getvalue()[read:].replace("\n", "\r\n"))
            read = len(out.getvalue())
            rows = screen.text.splitlines()
            assert sum(row.startswith("worker ") for row in rows) == 1, screen.text
            assert sum("so far" in row for row in rows) == 1, screen.text
            assert rows[0].startswith("   0.1 s  server s0 has joined")
    screen.feed(out.getvalue()[read:].replace("\n", "\r\n"))
    assert "points/s" not in screen.text, "the table is removed at the end"


def test_a_table_that_takes_long_to_make_is_drawn_seldom(tmp_path: Path) -> None:
    """Drawing takes at most a twentieth of the time."""
    path = write(tmp_path / "journal.jsonl", [*opened(0, 1), rounds(2.0, 4, objective=0.5)])
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=40, highlight=False)
    with ProgressDisplay(path, quiet=False, job=JOB, console=console) as progress:
        for cost_s, ago_s, drawn in ((0.0, 1.0, True), (1.0, 19.0, False), (1.0, 21.0, True)):
            progress._draws_s = cost_s
            progress._shown_s = time.monotonic() - ago_s
            before = out.tell()
            progress.tick()
            assert ("points/s" in out.getvalue()[before:]) is drawn

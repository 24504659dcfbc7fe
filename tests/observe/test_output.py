"""The lines that processes write to their logs reach the terminal, each with the name of its
process."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from polyrhythm.observe import output
from polyrhythm.observe.output import Output, log_file, older_log
from polyrhythm.observe.progress import ProgressDisplay


def write(run_dir: Path, name: str, data: bytes) -> Path:
    log = log_file(run_dir, name)
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as file:
        file.write(data)
    return log


def new_lines(read: Output) -> list[tuple[str, str]]:
    return [(name, line) for name, lines in read.lines() for line in lines]


def test_new_lines_of_every_process_are_read_once(tmp_path: Path) -> None:
    read = Output(tmp_path)
    assert new_lines(read) == []
    write(tmp_path, "worker-10", b"ten\n")
    write(tmp_path, "worker-2", b"two\nand")
    assert new_lines(read) == [("worker-2", "two"), ("worker-10", "ten")]
    write(tmp_path, "worker-2", b" more\n")
    write(tmp_path, "s0", b"hello\n")
    assert new_lines(read) == [("worker-2", "and more"), ("s0", "hello")]
    assert new_lines(read) == []


def test_a_note_is_in_the_log_and_is_not_shown(tmp_path: Path) -> None:
    read = Output(tmp_path)
    log = write(tmp_path, "worker-0", b"before")
    read.note("worker-0", "Traceback\n  frames\n")
    read.note("worker-0", "again")
    read.note("worker-1", "it has no log")
    write(tmp_path, "worker-0", b"after\n")
    assert new_lines(read) == [("worker-0", "before"), ("worker-0", "after")]
    assert log.read_text() == "before\nTraceback\n  frames\nagain\nafter\n"


def test_a_log_that_is_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    read = Output(tmp_path)
    log = write(tmp_path, "worker-0", b"one\ntwo")
    assert new_lines(read) == [("worker-0", "one")]
    write(tmp_path, "worker-0", b" is\n")
    log.rename(older_log(log))
    write(tmp_path, "worker-0", b"three\n")
    assert new_lines(read) == [("worker-0", "two is"), ("worker-0", "three")]


def test_a_line_says_where_output_is_missing_if_two_logs_were_begun(tmp_path: Path) -> None:
    """The rest of the first log cannot be read any more, because two logs have replaced it. The
    second and the third log are shown completely."""
    read = Output(tmp_path)
    log = write(tmp_path, "worker-0", b"one\ntwo")
    assert new_lines(read) == [("worker-0", "one")]
    third = write(tmp_path, "third", b"four\n").rename(tmp_path / "third")
    write(tmp_path, "worker-0", b" is\n")
    log.rename(older_log(log))
    write(tmp_path, "worker-0", b"three\n")
    log.rename(older_log(log))
    third.rename(log)
    gap = f"… output may be missing here: {log} was replaced twice before it was shown"
    assert [line for _, line in new_lines(read)] == ["two", gap, "three", "four"]
    assert new_lines(read) == []


def test_a_deleted_folder_is_no_error(tmp_path: Path) -> None:
    read = Output(tmp_path)
    log = write(tmp_path, "worker-0", b"one\n")
    assert new_lines(read) == [("worker-0", "one")]
    log.unlink()
    log.parent.rmdir()
    read.note("worker-0", "gone")
    assert new_lines(read) == []


def test_output_that_is_far_behind_is_left_out_with_a_line_that_names_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_MOST_BEHIND", 1_000_000)
    read = Output(tmp_path)
    log = write(tmp_path, "worker-0", b"".join(b"line %07d\n" % n for n in range(100_000)))
    lines = new_lines(read)
    name, first = lines[0]
    assert first == f"… 1.2 MB of output are only in {log}" and name == "worker-0"
    assert lines[-1] == ("worker-0", "line 0099999")
    assert 4_000 < len(lines) < 6_000
    assert all(len(line) == 12 for _, line in lines[1:]), "whole lines only"


def display(run_dir: Path, file: io.TextIOBase) -> ProgressDisplay:
    console = Console(file=file, width=80, highlight=False)  # type: ignore[arg-type]
    return ProgressDisplay(run_dir / "journal.jsonl", quiet=True, console=console)


def test_the_line_about_left_out_output_names_the_older_log_if_the_output_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_MOST_BEHIND", 1_000_000)
    read = Output(tmp_path)
    write(tmp_path, "worker-0", b"one\n")
    assert new_lines(read) == [("worker-0", "one")]
    log = write(tmp_path, "worker-0", b"".join(b"line %07d\n" % n for n in range(100_000)))
    log.rename(older_log(log))
    write(tmp_path, "worker-0", b"last\n")
    lines = [line for _, line in new_lines(read)]
    assert lines[0] == f"… 1.2 MB of output are only in {older_log(log)}"
    assert lines[-2:] == ["line 0099999", "last"]


def test_lines_have_the_name_of_their_process(tmp_path: Path) -> None:
    shown = io.StringIO()
    with display(tmp_path, shown) as progress:
        write(tmp_path, "worker-3", b"loss 0.5 [red]\nand")
        progress.tick()
        progress.say("worker-3 failed: killed")
        progress.end(brief=False)
    assert shown.getvalue().replace("│", "|") == (
        "worker-3 | loss 0.5 [red]\npolyrhythm: worker-3 failed: killed\nworker-3 | and\n"
    )


def test_a_pipe_that_is_not_read_holds_nothing_up_and_loses_no_line(tmp_path: Path) -> None:
    outside, inside = os.pipe()
    os.set_blocking(outside, False)
    count = 20_000
    read = b""
    with open(inside, "w") as file, open(outside, "rb", buffering=0) as reader:
        # if the test fails, `reader` is closed before `file`, so that closing `file` does not block
        progress = display(tmp_path, file)
        write(tmp_path, "worker-0", b"".join(b"line %07d\n" % n for n in range(count)))
        for _ in range(20):
            progress.tick()  # must return although the pipe is full
        progress.say("something to say")
        while read.count(b"line ") < count or b"to say" not in read:
            progress.tick()
            read += reader.read(65_536) or b""
    lines = [line for line in read.decode().splitlines() if not line.startswith("polyrhythm")]
    assert [line[-12:] for line in lines] == [f"line {n:07}" for n in range(count)]


def test_after_an_interruption_only_the_last_lines_are_printed(tmp_path: Path) -> None:
    shown = io.StringIO()
    with display(tmp_path, shown) as progress:
        log = write(tmp_path, "worker-0", b"".join(b"line %07d\n" % n for n in range(50_000)))
        progress.end(brief=True)
    *lines, left_out = shown.getvalue().splitlines()
    assert lines[-1].endswith("line 0049999") and 4_000 < len(lines) < 6_000
    assert left_out.endswith(f"of output are only in {log}")

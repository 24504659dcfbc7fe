"""Long lines are broken between words."""

import io
import re

from rich.cells import cell_len

from polyrhythm.observe.words import width_of, wrapped

LONG = "waiting for worker-2 and worker-3, which have not contributed to round 17 yet"


def test_lines_fit_the_width_and_keep_their_words() -> None:
    text = wrapped(f"polyrhythm: {LONG}\nshort", 40)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert text.split() == f"polyrhythm: {LONG} short".split()
    assert text.splitlines()[1].startswith("  ") and text.endswith("\nshort")


def test_a_sentence_continues_below_its_text_and_not_below_its_time() -> None:
    first, second, *_ = wrapped(f"  12.3 s  {LONG}", 50).splitlines()
    assert first.startswith("  12.3 s  waiting") and second.startswith(" " * 10 + "have")


def test_a_row_of_the_summary_stays_indented() -> None:
    first, second = wrapped(f"  {LONG}", 60).splitlines()
    assert first.startswith("  waiting") and second.startswith("    ")


def test_paths_options_and_tracebacks_stay_whole() -> None:
    path = "/a" * 60
    assert path in wrapped(f"the model is in {path} now", 40).split()
    assert "--kind" in wrapped("x" * 37 + " --kind local", 40).split()
    frames = f'Traceback (most recent call last):\n  File "{path}", line 1, in main\n'
    assert wrapped(f"worker-0 failed\n{frames}", 40) == f"worker-0 failed\n{frames}"


def test_files_and_pipes_get_whole_lines() -> None:
    assert width_of(io.StringIO()) is None and width_of(None) is None
    assert wrapped(LONG * 3, None) == LONG * 3


def test_numbers_stay_with_their_units_and_commands_stay_whole() -> None:
    text = "the run took 1 h 20 min 5 s, and made 1,234 points/s in round 17, with worker-2 4711"
    for width in range(10, 80):
        rows = wrapped(text, width).splitlines()
        assert not any(re.fullmatch(r"\s*(h|min|s,|points/s)( .*)?", row) for row in rows[1:]), rows
    command = "polyrhythm worker mine.py --connect 127.0.0.1:35381"
    for width in range(len(command) + 2, 90):
        assert any(
            command in row for row in wrapped(f"start a worker: {command}", width).splitlines()
        )


def test_wide_characters_count_twice() -> None:
    rows = wrapped("模型 " * 30, 40).splitlines()
    assert all(cell_len(row) <= 40 for row in rows) and len(rows) == 5
    assert "".join(rows).split() == ["模型"] * 30

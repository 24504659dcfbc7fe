"""Tracebacks show the user's frames, and not those of polyrhythm."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from polyrhythm.engines.tracebacks import begins_in_ours, traceback_of, without_ours
from polyrhythm.engines.worker_process import call
from polyrhythm.learn.load import load_module
from polyrhythm.wire.messages.reasons import failed

LEFT_OUT = "  (frames inside polyrhythm are left out: --debug shows them)\n"


def error_of(main: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        call(main, None)  # type: ignore[arg-type]
    return caught.value


def deep(worker: object) -> None:
    raise ValueError("no such label")


def test_only_the_frames_of_the_user_are_shown() -> None:
    text = traceback_of(error_of(lambda worker: deep(worker)))
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith(LEFT_OUT)
    assert "in deep" in text and "in <lambda>" in text
    assert "engines/worker_process.py" not in text
    assert "ValueError: no such label" not in text, "the error is named before its traceback"


def test_frames_of_polyrhythm_below_the_user_are_left_out() -> None:
    text = traceback_of(error_of(lambda worker: failed(1, 2, 3, 4, 5)))  # type: ignore[call-arg]
    assert "in <lambda>" in text and "reasons.py" not in text


def test_the_causes_of_an_error_are_shortened_too() -> None:
    def main(worker: object) -> None:
        try:
            load_module("/nowhere/mine.py")
        except Exception as error:
            raise RuntimeError("the job cannot be loaded") from error

    text = traceback_of(error_of(main))
    assert "direct cause" in text and "learn/load.py" not in text


def test_all_frames_are_shown_if_the_user_wants_them() -> None:
    text = traceback_of(error_of(deep), whole=True)
    assert "engines/worker_process.py" in text and LEFT_OUT not in text


def test_an_error_of_polyrhythm_itself_keeps_its_frames() -> None:
    with pytest.raises(TypeError) as caught:
        failed(1, 2, 3, 4, 5)  # type: ignore[call-arg]
    text = traceback_of(caught.value)
    assert "test_tracebacks.py" in text and LEFT_OUT not in text


def test_an_error_while_a_file_is_imported_has_the_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine_broken.py"
    path.write_text("def main(worker):\n    pass\n\n1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        load_module(str(path))
    text = traceback_of(caught.value)
    assert f'File "{path}", line 4' in text
    assert "importlib" not in text and "learn/load.py" not in text


def trace_of(function: Any) -> TracebackType | None:
    try:
        function()
    except Exception:
        return sys.exc_info()[2]
    return None


def test_a_program_that_connects_sees_its_own_frames_to_the_last() -> None:
    trace = without_ours(trace_of(lambda: load_module("/nowhere/mine.py")))
    files = []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert files and all(file == __file__ for file in files)


def test_threads_of_the_user_are_told_from_our_own() -> None:
    assert not begins_in_ours(trace_of(lambda: deep(None)))
    trace = trace_of(lambda: load_module("/nowhere/mine.py"))
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    assert begins_in_ours(trace)

"""Tracebacks of errors in the user's code, without the frames of this package."""

import traceback
from pathlib import Path
from types import TracebackType

from polyrhythm.learn import load

_PACKAGE = str(Path(__file__).parents[1]) + "/"
_JOBS = f"{_PACKAGE}learn/jobs/"
_CALLS = {(f"{_PACKAGE}engines/worker_process.py", "call"), (load.__file__, "load_module")}
"""The functions that call the user's code, or import it: file and name."""
_IMPORTS = "<frozen importlib"
_LEFT_OUT = "  (frames inside polyrhythm are left out: --debug shows them)\n"


def traceback_of(error: BaseException, *, whole: bool = False) -> str:
    """The traceback of an error in the user's code as Python prints it, without frames inside
    polyrhythm. An error of polyrhythm itself keeps them. The last line, which says what the error is,
    is left out, because the error is named before its traceback. `whole`: leave no frame out."""
    found = traceback.TracebackException.from_exception(error)
    begin = max((at for at, each in enumerate(found.stack) if _key(each) in _CALLS), default=-1)
    shorter = False
    if begin >= 0 and not whole:
        shorter = _shorten(found, begin + 1)
        for each in _related(found):
            _shorten(each, 0)
    *frames, last = found.format()
    if list(found.format_exception_only()) != [last]:
        frames.append(last)
    return "".join(frames).rstrip("\n") + "\n" + (_LEFT_OUT if shorter else "")


def begins_in_ours(trace: TracebackType | None) -> bool:
    """Whether this traceback belongs to a thread of polyrhythm: its first frame, apart from those
    of `threading`, is in this package."""
    files = [each.filename for each in traceback.extract_tb(trace)]
    own = [file for file in files if Path(file).name != "threading.py"]
    return not own or _is_ours(own[0])


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback of an error that left the user's program, without the frames inside polyrhythm
    that follow the last frame of the program."""
    last, frame = None, trace
    while frame is not None:
        if not _is_ours(frame.tb_frame.f_code.co_filename):
            last = frame
        frame = frame.tb_next
    if last is not None:
        last.tb_next = None
    return trace


def _is_ours(file: str) -> bool:
    """Whether the code in this file is a part of polyrhythm, which imports the user's file, and not
    of a job."""
    return file.startswith((_PACKAGE, _IMPORTS)) and not file.startswith(_JOBS)


def _key(frame: traceback.FrameSummary) -> tuple[str, str]:
    return frame.filename, frame.name


def _related(error: traceback.TracebackException) -> list[traceback.TracebackException]:
    """The causes of an error, and the errors of a group."""
    direct = [error.__cause__, error.__context__, *(error.exceptions or ())]
    found = [each for each in direct if each is not None]
    return [*found, *(other for each in found for other in _related(each))]


def _shorten(error: traceback.TracebackException, begin: int) -> bool:
    """Drop the frames before `begin`, and those inside polyrhythm, unless no other frames are
    left."""
    kept = [each for each in error.stack[begin:] if not _is_ours(each.filename)]
    if kept:
        error.stack = traceback.StackSummary.from_list(kept)
    return bool(kept)

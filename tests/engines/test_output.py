"""The output of a child process: everything that it writes is in its log, and lines are not joined.

Each test runs its code in a process of its own, because the descriptors 1 and 2 are replaced."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import os, sys, subprocess, ctypes, logging
from pathlib import Path
from polyrhythm.engines import output
log = Path(sys.argv[1])
output.send_to(log)
"""


def written(code: str, tmp_path: Path) -> bytes:
    log = tmp_path / "logs" / "worker-0.log"
    end = "\noutput.flush()\nos._exit(0)\n"
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + end, str(log)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), log.read_text()
    return log.read_bytes()


def test_output_of_python_c_and_other_processes_is_in_the_log(tmp_path: Path) -> None:
    code = """
print("print")
logging.warning("logging")
os.write(1, b"descriptor 1\\n")
os.write(2, b"descriptor 2\\n")
ctypes.CDLL(None).printf(b"printf\\n")
subprocess.run(["echo", "echo"])
sys.stdout.buffer.write(b"bytes \\xff\\n"); sys.stdout.flush()
print("half", end="")
"""
    assert written(code, tmp_path) == (
        b"print\nWARNING:root:logging\ndescriptor 1\ndescriptor 2\nprintf\necho\nbytes \xff\nhalf"
    )


def test_unpaired_surrogates_are_no_error(tmp_path: Path) -> None:
    assert written(r'print("a\udcffb")', tmp_path) == b"a\\udcffb\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('sys.stderr.write("\\r10%"); sys.stderr.flush(); print("saved")', b"\r10%\nsaved\n"),
        (
            'sys.stderr.write("\\r10%"); sys.stderr.flush(); sys.stderr.write("warned\\n")',
            b"\r10%\nwarned\n",
        ),
        (
            'sys.stderr.write("\\r10%"); sys.stderr.flush(); sys.stderr.write("\\r20%\\n")',
            b"\r10%\r20%\n",
        ),
        ('print("10%", end="\\r"); print("20%", end="\\r"); print("saved")', b"10%\r20%\rsaved\n"),
        (
            'print("loss ", end="", flush=True); logging.warning("w"); print("0.5")',
            b"loss \nWARNING:root:w\n0.5\n",
        ),
        ('print("a", end="", flush=True); print("b", end="", flush=True); print()', b"ab\n"),
    ],
)
def test_a_line_is_not_joined_to_a_progress_bar_or_to_the_other_stream(
    code: str, expected: bytes, tmp_path: Path
) -> None:
    assert written(code, tmp_path) == expected


def test_lines_of_threads_are_not_torn(tmp_path: Path) -> None:
    code = """
import threading
def talk(n):
    for step in range(500):
        print("thread", n, "step", step, "x" * 50)
threads = [threading.Thread(target=talk, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
"""
    lines = written(code, tmp_path).decode().splitlines()
    expected = {f"thread {n} step {step} {'x' * 50}" for n in range(4) for step in range(500)}
    assert len(lines) == 2000 and set(lines) == expected


def test_the_log_is_appended_and_can_be_begun_anew(tmp_path: Path) -> None:
    assert written('print("first")', tmp_path) == b"first\n"
    assert written('print("second")', tmp_path) == b"first\nsecond\n"
    anew = 'print("third"); output.begin_again(log); print("fourth"); os.system("echo fifth")'
    assert written(anew, tmp_path) == b"fourth\nfifth\n"
    older = tmp_path / "logs" / "worker-0.log.1"
    assert older.read_bytes() == b"first\nsecond\nthird\n"


def test_a_breakpoint_in_a_worker_process_says_what_to_do(tmp_path: Path) -> None:
    code = """
try:
    breakpoint()
except Exception as error:
    print(error)
"""
    assert b"--workers 1 --engine inline" in written(code, tmp_path)


def test_a_log_on_a_full_disk_harms_nothing(tmp_path: Path) -> None:
    code = """
full = os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 1); os.dup2(full, 2)
print("lost")
logging.warning("lost")
output.begin_again(log)
print("kept")
"""
    expected = "… 5 bytes of output are lost\nkept\n"
    assert written(code, tmp_path).decode() == expected


def test_a_crash_leaves_the_stack_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "worker-0.log"
    code = BEGIN + "import faulthandler; faulthandler._sigsegv()"
    done = subprocess.run([sys.executable, "-c", code, str(log)], timeout=60)
    assert done.returncode < 0
    assert "Segmentation fault" in log.read_text() and "most recent call first" in log.read_text()


def test_no_line_is_missed_by_a_reader_while_a_new_log_is_begun(tmp_path: Path) -> None:
    """The reader reads all there is, and then the process writes more, just before each descriptor
    is replaced."""
    code = """
from polyrhythm.observe.output import Output
read, lines, dup2 = Output(log.parent.parent), [], os.dup2

def look():
    lines.extend(line for _, part in read.lines() for line in part)

def replace(source, target):
    look()
    print("before", target)
    print("before", target, "too", file=sys.stderr)
    dup2(source, target)

print("first")
os.dup2 = replace
output.begin_again(log)
look()
print("last")
look()
output.begin_again(log)
look()
print(lines)
"""
    ends = ["before 1", "before 1 too", "before 2", "before 2 too"]
    shown = written(code, tmp_path).decode().splitlines()[-1]
    assert sorted(ast.literal_eval(shown)) == sorted(["first", *ends, "last", *ends])

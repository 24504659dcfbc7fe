"""Ctrl-C before the processes of a job are started, and after its result is printed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

AFTER = """
import os, signal
from polyrhythm.cli.launch import launch
signal.signal(signal.SIGINT, signal.default_int_handler)

class Done:
    status, signal, worker_failures, unrecorded = "ended", 0, {failures}, ()
    def text(self, **how):
        return "the summary"

try:
    launch(Done, as_json=False)
finally:
    os.kill(os.getpid(), {number})
"""
BEFORE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

from polyrhythm.cli.entry import run
sys.meta_path.insert(0, Finder())
sys.argv = ["polyrhythm", "train", "digits"]
run()
"""


DROPPED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupted:
    def __del__(self):
        {what}

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "polyrhythm.cli.train":
            Interrupted()

from polyrhythm.cli.entry import run
sys.meta_path.insert(0, Finder())
sys.argv = ["polyrhythm", "train", "--threads", "0"]
run()
"""


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("failures", "status"), [({}, 0), ({"worker-0": "failed"}, 3)])
def test_a_signal_after_the_summary_does_not_change_the_status(
    tmp_path: Path, number: signal.Signals, failures: dict[str, str], status: int
) -> None:
    done = python(AFTER.format(failures=failures, number=int(number)), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (status, "the summary\n", "")


@pytest.mark.parametrize(
    "module", ["typer", "polyrhythm.core.values", "polyrhythm.cli.train", "polyrhythm.api.running"]
)
def test_ctrl_c_while_modules_are_imported_leaves_no_folder_and_no_traceback(
    tmp_path: Path, module: str
) -> None:
    done = python(BEFORE.format(module=module), tmp_path)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr and not done.stdout
    assert not list(tmp_path.iterdir())


def test_ctrl_c_has_its_effect_though_python_drops_the_exception(tmp_path: Path) -> None:
    """Python drops exceptions of finalizers, and of a callback that every import calls."""
    done = python(DROPPED.format(what="os.kill(os.getpid(), signal.SIGINT)"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_other_exceptions_that_python_drops_are_shown(tmp_path: Path) -> None:
    done = python(DROPPED.format(what="raise ValueError('a finalizer')"), tmp_path)
    assert done.returncode == 2
    assert "ValueError: a finalizer" in done.stderr and "--threads is 0" in done.stderr

"""Test processes that are forked from a process that has collected the tests (`tests/commands/`)."""

import os
import subprocess
import sys
from pathlib import Path

from tests.commands.forked_tests import CollectedProcess, ForkedPopen

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.commands.forking import pytest_unconfigure, pytest_xdist_setupnodes\n"
TESTS = """
import os, pathlib, sys
import pytest
here = pathlib.Path(__file__).parent
with (here / "imports").open("a") as file:
    file.write(f"{os.getpid()}\\n")
@pytest.mark.parametrize("number", range(4))
def test_one(number):
    (here / f"ran-{number}").write_text(f"{os.getpid()} {os.getppid()}")
    assert number != 2, f"{sys.argv} in {os.environ['PYTEST_XDIST_WORKER']}"
"""


def test_the_tests_are_imported_once_and_run_in_forked_processes(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ["-n", "2", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider"]
    # otherwise pytest looks at all that is in /tmp
    options += ["-p", "no:hypothesispytest", "--confcutdir", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, options), str(tmp_path)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if "XDIST" not in name},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "['-c'] in gw" in done.stdout
    (collected,) = (tmp_path / "imports").read_text().split()
    ran = [(tmp_path / f"ran-{number}").read_text().split() for number in range(4)]
    assert collected not in [process for process, _ in ran]
    assert {parent for _, parent in ran} == {collected}


def test_a_test_process_reads_its_program_and_can_be_killed(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("raise ValueError\n")
    options = ["-p", "no:hypothesispytest", "--confcutdir", tmp_path]
    collected = CollectedProcess(
        [*map(str, options), "-c", str(ROOT / "pyproject.toml"), str(tmp_path)]
    )
    one, other = ForkedPopen(collected), ForkedPopen(collected)
    for process in (one, other):
        program = "import os, sys\nprint(os.getpid(), __name__)\nsys.stdin.read()"
        process.stdin.write(repr(program).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().split() == [str(process.pid).encode(), b"__main__"]
    one.kill()
    one.wait()
    other.stdin.close()  # the program of the other process ends
    other.wait()
    for process in (one, other):
        process.stdin.close()
        process.stdout.close()
    collected.close()

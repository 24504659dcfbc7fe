"""Test processes that are forked from a process that has collected the tests (`tests/commands/`)."""

import os
import subprocess
import sys
from pathlib import Path

from tests.commands.forked_tests import CollectedProcess, ForkedPopen

ROOT = Path(__file__).parents[2]
CONFTEST = """
import os, pathlib
from tests.commands.forking import pytest_unconfigure, pytest_xdist_setupnodes
def pytest_collection_finish():
    with (pathlib.Path(__file__).parent / "collections").open("a") as file:
        file.write(f"{os.getpid()}\\n")
"""
TESTS = """
import os, pathlib, sys
import pytest
here = pathlib.Path(__file__).parent
with (here / "imports").open("a") as file:
    file.write(f"{os.getpid()}\\n")
@pytest.mark.parametrize("number", range(4))
def test_one(number, tmp_path):
    (here / f"ran-{number}").write_text(f"{os.getpid()} {os.getppid()} {tmp_path}")
    print(f"test {number} prints")
    os.system(f"echo a program of test {number} prints")
    assert number != 2, f"{sys.argv} in {os.environ['PYTEST_XDIST_WORKER']}"
"""
SKIPPED = """
import pytest
pytest.skip("these tests are skipped", allow_module_level=True)
"""


def run_pytest(folder: Path, **files: str) -> "subprocess.CompletedProcess[str]":
    """Run the tests of these files in two test processes."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    options = ["-n", "2", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider"]
    # without this option pytest looks for conftest files in all of /tmp
    options += ["-p", "no:hypothesispytest", "--confcutdir", folder]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, options), str(folder)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if "XDIST" not in name},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_tests_are_imported_once_and_run_in_forked_processes(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, conftest=CONFTEST, test_some=TESTS, test_skipped=SKIPPED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed, 1 skipped in" in done.stdout
    assert "['-c'] in gw" in done.stdout
    shown = [line for line in done.stdout.splitlines() if line.endswith(" prints")]
    assert shown == ["test 2 prints", "a program of test 2 prints"]
    (collected,) = (tmp_path / "imports").read_text().split()
    assert (tmp_path / "collections").read_text().split() == [collected]
    ran = [(tmp_path / f"ran-{number}").read_text().split() for number in range(4)]
    assert collected not in [process for process, _, _ in ran]
    assert {parent for _, parent, _ in ran} == {collected}
    assert len({temporary for _, _, temporary in ran}) == len(ran)
    # each test process has a folder of its own
    folders = {process: Path(temporary).parent for process, _, temporary in ran}
    assert len(set(folders.values())) == len(folders)
    assert all(folder.name.startswith("popen-gw") for folder in folders.values())


def test_test_processes_report_an_error_of_the_collection(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, conftest=CONFTEST, test_some=TESTS, test_bad="raise ValueError(7)")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ValueError: 7" in done.stdout
    assert "1 failed, 3 passed, 2 errors in" in done.stdout


def test_a_test_process_reads_its_program_and_can_be_killed(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("raise ValueError\n")
    options = ["-p", "no:hypothesispytest", "--confcutdir", tmp_path]
    collected = CollectedProcess(
        [*map(str, options), "-c", str(ROOT / "pyproject.toml"), str(tmp_path)], 2
    )
    one, other = ForkedPopen(collected), ForkedPopen(collected)
    for process in (one, other):
        program = "import os, sys\nprint(os.getpid(), __name__)\nsys.stdin.read()"
        process.stdin.write(repr(program).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().split() == [str(process.pid).encode(), b"__main__"]
    one.kill()
    one.wait()
    other.stdin.close()  # the program of this process ends when its stdin is closed
    other.wait()
    for process in (one, other):
        process.stdin.close()
        process.stdout.close()
    collected.close()

"""Every mutant fits the code, and the quick mutants are killed. `make mutants` runs all of them."""

import ast
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, Outdated, find, mutant, mutated_sources, patches

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "polyrhythm"
ALL = pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.name)


def test_names_are_unique() -> None:
    assert [name for name, times in Counter(m.name for m in MUTANTS).items() if times > 1] == []


@ALL
def test_a_mutant_fits_the_code_that_it_names(one: Mutant) -> None:
    sources = mutated_sources(one, PACKAGE)
    for change in one.changes:
        statement = find(change.code, PACKAGE)
        source = sources[statement.path]
        assert ast.parse(source)
        # the old text of the statement is gone, so the mutant has changed the statement
        assert f"\n{ast.unparse(statement.parse())}\n" not in f"\n{source}\n"


@ALL
def test_the_tests_that_a_mutant_names_exist(one: Mutant) -> None:
    assert one.tests
    for test in one.tests:
        file, _, name = test.partition("[")[0].partition("::")
        assert name in functions(ROOT / file), test


@functools.cache
def functions(path: Path) -> set[str]:
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("code", "old", "why"),
    [
        ("core:HeldSlices.judge", "row is nothing", "holds 'row is nothing' 0 times"),
        ("core:HeldSlices.judge", "row", "holds 'row' .* times, not once"),
        ("core:HeldSlices.condemn", "row", "core:HeldSlices.condemn is defined 0 times"),
        ("runtime:HeldSlices.judge", "row", "runtime:HeldSlices.judge is defined 0 times"),
    ],
)
def test_a_mutant_of_code_that_has_changed_is_an_error(code: str, old: str, why: str) -> None:
    with pytest.raises(Outdated, match=why):
        mutated_sources(mutant("old", "Nothing.", code, old, "None"), PACKAGE)


HUNT = """
import sys
from tests.mutants.mutant import mutant
from tools.mutants import main

here = sys.argv[1]
code, old = "core:parse_duration", "round(length_ns)"
sys.exit(main(sys.argv[2:], [
    mutant("found", "A duration is wrong in every process.", code, old, "7", f"{here}::test_child"),
    mutant("patched", "It shows in the test's own process.", code, old, "7", f"{here}::test_own"),
    mutant("missed", "The same.", code, old, "7", f"{here}::test_nothing"),
    mutant("hangs", "It is stopped by the test's own timeout.", code, old, "7", f"{here}::test_hang"),
    mutant("dies", "The test kills its process.", code, old, "7", f"{here}::test_die"),
    mutant("broken", "The test fails anyway.", code, old, "7", f"{here}::test_broken"),
    mutant("outdated", "Nothing.", code, "nothing.here", "7", f"{here}::test_nothing"),
], warm=["pytest"]))
"""
TESTS = """
import os, signal, subprocess, sys, time
from polyrhythm.core.values import parse_duration

WRONG = parse_duration("1s") != 10**9


def test_nothing():
    assert "s" in "1s"


def test_own():
    assert parse_duration("1s") == 10**9


def test_child():
    program = "from polyrhythm.core.values import parse_duration; print(parse_duration('1s'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"{10**9}\\n"


def test_hang():
    time.sleep(60 if WRONG else 0)


def test_die():
    if WRONG:
        os.kill(os.getpid(), signal.SIGKILL)


def test_broken():
    raise AssertionError
"""


def hunt(tmp_path: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run `tools.mutants` on the mutants of HUNT; return its exit code and the lines that it printed."""
    tests = tmp_path / "test_hunted.py"
    tests.write_text(TESTS)
    command = [sys.executable, "-c", HUNT, str(tests), "--timeout", "5", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
def test_a_mutant_is_killed_by_a_test_that_fails_and_by_nothing_else(tmp_path: Path) -> None:
    """The fault of the mutant "found" shows only in a child process of its test. A test that hangs
    fails by its own timeout."""
    code, said = hunt(tmp_path, "found", "patched", "missed", "hangs", "dies", "outdated")
    words = {line.split()[1]: line for line in said if line.startswith("[")}
    assert words["found"].endswith("test_hunted.py::test_child")
    assert words["patched"].endswith("test_hunted.py::test_own, without a copy")
    assert words["hangs"].endswith("test_hunted.py::test_hang")
    assert "SURVIVED" in words["missed"]
    assert "UNKNOWN: its process was stopped, or crashed" in words["dies"]
    assert "UNKNOWN: the mutant is outdated" in words["outdated"]
    assert said[-3:] == ["6 mutants, 3 killed", "1 SURVIVED: missed", "2 UNKNOWN: dies, outdated"]
    assert code == 1


def test_a_test_that_fails_without_a_mutant_kills_none(tmp_path: Path) -> None:
    code, said = hunt(tmp_path, "broken")
    assert said[0].startswith("without any mutant: these fail: ")
    assert code == 1


def test_a_test_that_fails_in_a_fork_without_a_mutant_decides_nothing_there(tmp_path: Path) -> None:
    """With the mutants, both tests fail in a fork. Without a mutant, only one of them passes there,
    so the other mutant is tested in a copy of the package."""
    _, said = hunt(tmp_path, "broken", "patched", "--unverified")
    words = {line.split()[1]: line for line in said if line.startswith("[")}
    assert "without a copy" in words["patched"]
    assert "without a copy" not in words["broken"]


@pytest.mark.parametrize(
    ("code", "old", "new", "fits"),
    [
        ("core:parse_duration", "round(length_ns)", "7", True),
        ("core:Ring.place", "Mapping[int, Sequence[int]] | None", "None", False),
        ("core:VIRTUAL_NODES", "64", "8", False),
    ],
    ids=["body", "parameter", "constant"],
)
def test_only_the_bodies_of_functions_are_patched(
    code: str, old: str, new: str, fits: bool
) -> None:
    found = patches(mutant("m", "Nothing.", code, old, new), PACKAGE)
    assert (found is not None) == fits


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quick_mutants_are_killed() -> None:
    """The mutants run in separate processes. `--unverified` does not check that the tests pass
    without a mutant, because the whole suite does."""
    command = [sys.executable, "-m", "tools.mutants", "--quick", "--unverified"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

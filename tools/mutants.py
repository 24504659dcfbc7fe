"""Puts one fault after the other into the package, and checks that a test finds it.

    python -m tools.mutants                  # as `make mutants`: all of them
    python -m tools.mutants NAME ...         # these only; part of a name is enough
    python -m tools.mutants --list           # what each of them breaks, and the tests that it names

The mutants are listed in tests/mutants. A mutant is a copy of the package with one small fault.
Each mutant names tests. These tests run in a process of their own, which imports the copy, and so
do all processes that the tests start. A mutant is killed if one of its tests fails, and has
survived if all of them pass. A test that hangs counts as failed, because pytest's own timeout ends
it. If the whole process must be stopped from outside, the result is unknown. Before all mutants,
the named tests run without a mutant, and must pass.

Quick mutants are first tried without a copy, which takes less time (tools/patched_mutants.py).

The exit code is 0 if every mutant was killed, else 1.
"""

import argparse
import gc
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, Outdated, write_mutated
from tools.mutant_runs import (
    PATIENCE_S,
    Outcome,
    Watch,
    await_outcome,
    begin_child,
    pytest_arguments,
)
from tools.patched_mutants import try_patched

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "polyrhythm"
TEST_TIMEOUT_S = 60.0
_WARM = (
    *("pytest", "_pytest.junitxml", "_pytest.unittest", "pdb", "tomllib", "pytest_timeout"),
    *("hypothesis", "_hypothesis_pytestplugin", "hypothesis.strategies", "hypothesis.stateful"),
    *("numpy", "torch", "torch.utils.data", "torch._dynamo", "msgspec", "typer", "rich"),
)
"""Modules that are imported once, before processes are forked. No mutant changes them."""


def run_tests(
    tests: Sequence[str], path: Path | None, timeout_s: float, *, to_the_end: bool = False
) -> Outcome:
    """Run these tests in a forked process that imports polyrhythm from the folder `path` (None:
    from the repository)."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as output:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _become_pytest(tests, path, timeout_s, to_the_end, output.fileno(), write)
        os.close(write)
        patience_s = PATIENCE_S * (len(tests) if to_the_end else 1)
        outcome = await_outcome(pid, read, patience_s)
        output.seek(0)
        outcome.output = output.read().decode(errors="replace")
    outcome.seconds = time.monotonic() - began_s
    return outcome


def _become_pytest(
    tests: Sequence[str],
    path: Path | None,
    timeout_s: float,
    to_the_end: bool,
    output: int,
    result: int,
) -> None:
    """Run the tests in the forked child, and exit. This function never returns."""
    try:
        begin_child(output)
        import pytest

        if path is not None:
            sys.path.insert(0, str(path))
            before = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = str(path) if before is None else f"{path}:{before}"
        assert "polyrhythm" not in sys.modules
        outcome = Outcome()
        outcome.exit_code = pytest.main(
            [
                *pytest_arguments(timeout_s, plain=not to_the_end),
                *(() if to_the_end else ("-x",)),
                *tests,
            ],
            plugins=[Watch(outcome)],
        )
        found = sys.modules.get("polyrhythm")
        if path is not None and found is not None:
            assert Path(found.__file__ or "").is_relative_to(path), "another package was tested"
        os.write(result, json.dumps(outcome.told()).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    killer: str | None
    """The test that failed; None if all passed or the result is unknown."""
    seconds: float
    fault: str | None = None
    """Why it is unknown whether the mutant was killed; None if it is known."""
    output: str = ""
    patched: bool = False
    """Whether the mutant was killed without a copy of the package (`tools/patched_mutants.py`)."""

    @property
    def words(self) -> str:
        if self.fault is not None:
            return f"UNKNOWN: {self.fault}"
        if self.killer is None:
            return "SURVIVED"
        return f"killed by {self.killer}{', without a copy' if self.patched else ''}"


def judge(mutant: Mutant, timeout_s: float) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        try:
            write_mutated(mutant, PACKAGE, Path(folder))
        except Outdated as error:
            return Verdict(mutant, None, 0.0, f"the mutant is outdated: {error}")
        outcome = run_tests(mutant.tests, Path(folder), timeout_s)
    killer = outcome.failed[0] if outcome.failed else None
    return Verdict(mutant, killer, outcome.seconds, outcome.fault, outcome.output)


def verify_tests(mutants: Iterable[Mutant], timeout_s: float) -> str | None:
    """Run the named tests without a mutant. Returns a report of those that fail; None if all
    pass."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    outcome = run_tests(tests, None, timeout_s, to_the_end=True)
    if outcome.fault is None and not outcome.failed:
        print(f"{len(outcome.passed)} tests pass without a mutant ({outcome.seconds:.0f} s)")
        return None
    failed = ", ".join(outcome.failed)
    return f"without any mutant: {outcome.fault or f'these fail: {failed}'}\n{outcome.output}"


def chosen(mutants: Sequence[Mutant], words: Sequence[str], *, slow: bool) -> list[Mutant]:
    """The mutants whose names contain one of the words. Without words: all mutants. Slow mutants
    are included only with `slow`."""
    found = [m for m in mutants if not words or any(word in m.name for word in words)]
    return [m for m in found if slow or not m.slow]


def show(mutants: Sequence[Mutant]) -> None:
    for mutant in mutants:
        print(f"{mutant.name}{' (slow)' if mutant.slow else ''}: {mutant.breaks}")
        for change in mutant.changes:
            print(f"    in {change.code}")
        for test in mutant.tests:
            print(f"    {test}")


def hunt(mutants: Sequence[Mutant], timeout_s: float, *, verbose: bool) -> Iterator[Verdict]:
    width = max(len(mutant.name) for mutant in mutants)
    quick = [mutant for mutant in mutants if not mutant.slow]
    patched = dict(try_patched(quick, PACKAGE, timeout_s))
    for number, mutant in enumerate(mutants, 1):
        outcome = patched.get(mutant.name)
        if outcome is not None:
            verdict = Verdict(mutant, outcome.failed[0], outcome.seconds, patched=True)
        else:
            verdict = judge(mutant, timeout_s)
        place = f"[{number:{len(str(len(mutants)))}}/{len(mutants)}]"
        print(f"{place} {mutant.name:{width}}  {verdict.seconds:5.1f} s  {verdict.words}")
        if verdict.killer is None or verdict.fault is not None or verbose:
            print(f"  {mutant.breaks}\n{verdict.output}")
        sys.stdout.flush()
        yield verdict


def main(
    arguments: Sequence[str] | None = None,
    known: Sequence[Mutant] = MUTANTS,
    warm: Sequence[str] = _WARM,
) -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument("--quick", action="store_true", help="skip the slow mutants")
    parser.add_argument(
        "--unverified",
        action="store_true",
        help="do not run the tests without a mutant: they have passed elsewhere",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show the output of pytest for each mutant"
    )
    parser.add_argument(
        "--timeout", type=float, default=TEST_TIMEOUT_S, help="seconds for one test (%(default)s)"
    )
    options = parser.parse_args(arguments)
    mutants = chosen(known, options.names, slow=not options.quick)
    if not mutants:
        parser.error(f"no mutant is called {' or '.join(options.names)}: see --list")
    if options.list:
        show(mutants)
        return 0
    nameless = [mutant.name for mutant in mutants if not mutant.tests]
    if nameless:
        parser.error(f"these mutants name no test: {', '.join(nameless)}")
    os.chdir(ROOT)
    for module in warm:
        importlib.import_module(module)
    gc.freeze()
    wrong = None if options.unverified else verify_tests(mutants, options.timeout)
    if wrong is not None:
        print(wrong)
        return 1
    verdicts = list(hunt(mutants, options.timeout, verbose=options.verbose))
    return _sum_up(verdicts)


def _sum_up(verdicts: Sequence[Verdict]) -> int:
    """Print a summary, and return the exit code."""
    unknown = [verdict.mutant.name for verdict in verdicts if verdict.fault is not None]
    survived = [v.mutant.name for v in verdicts if v.fault is None and v.killer is None]
    print(f"{len(verdicts)} mutants, {len(verdicts) - len(survived) - len(unknown)} killed")
    for word, names in (("SURVIVED", survived), ("UNKNOWN", unknown)):
        if names:
            print(f"{len(names)} {word}: {', '.join(names)}")
    return 1 if survived or unknown else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tries mutants by replacing functions in a running process. This takes a tenth of the time of a
new import.

One pytest session imports the package and all named tests once. For each mutant it forks a process,
gives the changed functions their new code there, and runs the mutant's tests. A test that fails for
a mutant must pass in a forked process without a mutant. Otherwise its failure does not count.

A fault is found only if it has an effect in the process of the test, after all imports. So a mutant
that is not killed here may still be killed on a copy of the package: `tools.mutants` tries that
next.
"""

import gc
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.commands.warm_server import use_huge_pages
from tests.mutants.mutant import Mutant, Outdated, Patch, apply_patch, patches
from tools.mutant_runs import (
    PATIENCE_S,
    Outcome,
    Watch,
    await_outcome,
    begin_child,
    pytest_arguments,
)


def try_patched(
    mutants: Sequence[Mutant], package: Path, timeout_s: float
) -> Iterator[tuple[str, Outcome]]:
    """Try these mutants. Returns the outcome of each one that was killed, by its name."""
    known = {}
    for mutant in mutants:
        try:
            found = patches(mutant, package)
        except Outdated:
            continue
        if found is not None:
            known[mutant.name] = (found, mutant.tests)
    if not known:
        return
    read, write = os.pipe()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as temporary:
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _become_session(known, timeout_s, temporary, output.fileno(), write)
        os.close(write)
        with open(read) as lines:
            for line in lines:
                name, told = json.loads(line)
                yield name, Outcome(**told)
        os.waitpid(pid, 0)


def _become_session(
    known: dict[str, tuple[list[Patch], Sequence[str]]],
    timeout_s: float,
    temporary: str,
    output: int,
    results: int,
) -> None:
    """Run the session in a forked child, and exit. This function never returns. `temporary`: the
    folder for temporary files."""
    try:
        begin_child(output)
        import pytest

        tests = sorted({test for _, named in known.values() for test in named})
        # Capture by pytest would hide the output of the forked processes. Longer tracebacks, and the
        # capture of log records, would each cost time for every mutant, and nobody reads them.
        arguments = [*pytest_arguments(timeout_s, plain=True), "--basetemp", temporary, "-s"]
        arguments += ["--tb", "line", "-p", "no:logging"]
        pytest.main([*arguments, *tests], plugins=[_Session(known, results)])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class _Session:
    """A pytest plugin that runs the tests of every mutant in a process of its own."""

    def __init__(self, known: dict[str, tuple[list[Patch], Sequence[str]]], results: int) -> None:
        self._known = known
        self._results = results

    def pytest_runtestloop(self, session: Any) -> bool:
        # prepare here what every forked process would otherwise have to do again
        session.config._tmp_path_factory.getbasetemp()
        importlib.import_module("polyrhythm.engines.local")
        gc.collect()
        gc.freeze()
        use_huge_pages()
        killed: dict[str, Outcome] = {}
        for name, (found, tests) in self._known.items():
            outcome = _run_forked(_items(session, tests), found)
            if outcome.fault is None and outcome.failed:
                killed[name] = outcome
        killers = {outcome.failed[0] for outcome in killed.values()}
        sound = _run_forked([item for item in session.items if item.nodeid in killers], ())
        for name, outcome in killed.items():
            if outcome.failed[0] in sound.passed:
                told = json.dumps([name, outcome.told()])
                os.write(self._results, f"{told}\n".encode())
        return True


def _items(session: Any, tests: Sequence[str]) -> list[Any]:
    """The collected tests with these names, in the order of `tests`."""
    found = []
    for test in tests:
        file, _, name = test.partition("::")
        path = Path(file).resolve()
        found += [
            item
            for item in session.items
            if item.path == path and (item.name == name or item.name.startswith(f"{name}["))
        ]
    return found


def _run_forked(items: Sequence[Any], found: Sequence[Patch]) -> Outcome:
    """Run the tests in a forked process. With a mutant (`found`), stop at the first failure;
    without one, run all tests."""
    began_s = time.monotonic()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _run(items, found, write)
    os.close(write)
    outcome = await_outcome(pid, read, PATIENCE_S)
    outcome.seconds = time.monotonic() - began_s
    return outcome


def _run(items: Sequence[Any], found: Sequence[Patch], result: int) -> None:
    """Run the tests in the forked child, and exit. This function never returns."""
    try:
        os.setsid()
        for patch in found:
            apply_patch(patch)
        outcome = Outcome(exit_code=0)
        if items:
            items[0].config.pluginmanager.register(Watch(outcome))
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if outcome.failed and found:
                break
        outcome.exit_code = 1 if outcome.failed else 0
        os.write(result, json.dumps(outcome.told()).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

"""Runs tests in a forked process, and reads their results from it."""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 600.0
"""The time limit for all tests of one mutant, and for each test that runs without a mutant."""
_IMPORTED_BEFORE = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


@dataclass
class Outcome:
    """The result of one pytest process."""

    seconds: float = 0.0
    exit_code: int | None = None
    """None: the process crashed, or was stopped because the time was over."""
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def fault(self) -> str | None:
        """Why this result says nothing about the tests (a crash, a time-out); None if they ran."""
        if self.exit_code is None:
            return "its process was stopped, or crashed"
        if self.exit_code not in (0, 1):
            return f"the tests could not be run: pytest's exit code is {self.exit_code}"
        if self.skipped:
            return f"skipped: {', '.join(self.skipped)}"
        return None if self.passed or self.failed else "no test ran"

    def told(self) -> dict[str, Any]:
        """The fields that the forked process sends. The process that waits for it adds the other
        fields."""
        return {k: getattr(self, k) for k in ("exit_code", "passed", "failed", "skipped")}


class Watch:
    """A pytest plugin that records the result of every test."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            getattr(self._outcome, report.outcome).append(report.nodeid)


def begin_child(output: int) -> None:
    """Make this forked process the leader of a session of its own, and write what it prints to the
    file descriptor `output`."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)


def pytest_arguments(timeout_s: float, *, plain: bool) -> Sequence[str]:
    """Options of pytest. `plain`: do not rewrite assertions. The longer messages of rewritten
    assertions are not needed for mutants."""
    return [
        *("-o", "addopts=", "-q", "--strict-markers", "--import-mode=importlib"),
        *("-p", "no:cacheprovider", "-p", "no:xdist"),
        *("--timeout", str(timeout_s), "--timeout-method", "signal", "--tb", "short"),
        *(("--assert", "plain") if plain else ()),
        *("-W", _IMPORTED_BEFORE),
    ]


def await_outcome(pid: int, result: int, patience_s: float) -> Outcome:
    """Read the result of the child until the child ends or the time is over. Then kill its process
    group."""
    told = b""
    until_s = time.monotonic() + patience_s
    while select.select([result], [], [], max(0.0, until_s - time.monotonic()))[0]:
        part = os.read(result, 1 << 16)
        if not part:
            break
        told += part
    os.close(result)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return Outcome(**json.loads(told)) if told else Outcome()

"""A pytest plugin that measures the processor time and the wall time of every test (`make test-times`).

The processor time of a test is the time of its test process, of the processes that it has started and
waited for, and of the commands that the warm server has forked for it. Processes that a test leaves
behind are not counted. A fixture that several tests share counts for the test that runs first. Every
test process appends its times to one file, so that the times of an interrupted run are kept.
"""

import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.commands import start
from tests.commands.collected_tests import COLLECTED

TIMES = Path(os.environ.get("POLYRHYTHM_TEST_TIMES", "runs/test-times.jsonl"))
COLLECTION = "collection"
_MOST_LINES = 40


class Times(NamedTuple):
    test: str
    processor_s: float
    wall_s: float


class TestTimes:
    __test__ = False

    def __init__(self) -> None:
        self._began = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # record the time of the collection in the process from which test processes are forked
        if getattr(session.config, "workerinput", {}).get("workerid") == COLLECTED:
            record(Times(COLLECTION, processor_s(), 0.0))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if not self._began:
            self._began = True
            record(Times(COLLECTION, processor_s(), 0.0))
        began_s, began_processor_s = time.monotonic(), processor_s()
        yield
        took_s = time.monotonic() - began_s
        record(Times(item.nodeid, processor_s() - began_processor_s, took_s))


class Summary:
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        times = recorded()
        terminalreporter.section("processor time and wall time of the tests")
        for group in (folder_of, file_of, lambda test: test):
            for line in table(times, group):
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if not hasattr(config, "workerinput"):
        TIMES.parent.mkdir(parents=True, exist_ok=True)
        TIMES.write_text("")
        config.pluginmanager.register(Summary())
    if runs_tests:
        config.pluginmanager.register(TestTimes())


def processor_s() -> float:
    """The processor time of this process, of the children that it has waited for, and of the
    commands that the warm server has forked for it."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + start.processor_s()


def record(times: Times) -> None:
    with TIMES.open("a") as file:
        file.write(json.dumps(times) + "\n")


def recorded(path: Path = TIMES) -> list[Times]:
    return [Times(*json.loads(line)) for line in path.read_text().splitlines()]


def folder_of(test: str) -> str:
    return "/".join(file_of(test).split("/")[:2])


def file_of(test: str) -> str:
    return test.partition("::")[0]


def table(times: Iterable[Times], group: Callable[[str], str]) -> list[str]:
    """Lines for the groups with the most processor time, and for all groups together."""
    sums: dict[str, list[float]] = {}
    for one in times:
        for name in (group(one.test), "all"):
            row = sums.setdefault(name, [0.0, 0.0, 0.0])
            row[0] += one.processor_s
            row[1] += one.wall_s
            row[2] += 1
    rows = sorted(sums.items(), key=lambda row: -row[1][0])[:_MOST_LINES]
    return ["", " processor       wall   tests"] + [
        f"{processor:8.1f} s {wall:8.1f} s {count:7.0f}  {name}"
        for name, (processor, wall, count) in rows
    ]

"""docs/guarantees.md promises only what tests assert: each row of its table agrees with the tests
that have the marker of this row.

A test is marked with `@pytest.mark.guarantee("row", policies=..., k=...)`. The policies of a test
are the values of its parameter `sync`, and the values of k are those of its parameter `replicas`.
For a test without these parameters, the marker names policies and k.
"""

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.commands.start import start_script

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
TESTS = ROOT / "tests"
MARKER = "pytest.mark.guarantee"
COLUMNS = ["id", "fault", "guarantee", "policies", "k", "shown by"]
COLLECT = """
import json, os, sys, pytest

sys.path.insert(0, os.getcwd())
from tests.cli.test_guarantees import markers

class Collector:
    def pytest_collection_finish(self, session):
        print("FOUND " + json.dumps(markers(session.items)))

args = [*sys.argv[1:], "--collect-only", "-qq", "-n", "0", "-p", "no:cacheprovider", "-m", "guarantee"]
sys.exit(pytest.main(args, [Collector()]))
"""


@dataclass
class Shown:
    """The policies and the values of k that a row states, or that its tests cover."""

    policies: set[str] = field(default_factory=set)
    tortured: set[str] = field(default_factory=set)
    """The policies that only `make torture` covers."""
    k: set[int] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)


def stated() -> dict[str, Shown]:
    rows: dict[str, Shown] = {}
    promises = PAGE.read_text().partition("## What is not guaranteed")[0]
    lines = [line for line in promises.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == COLUMNS
    for row in cells[1:]:
        name = row[0].strip("`")
        assert name not in rows, f"two rows are called {name}"
        tortured = set(re.findall(r"\(([\w-]+)\)", row[3]))
        policies = set(re.findall(r"[\w-]+", re.sub(r"\([\w-]+\)", "", row[3])))
        k = {int(number) for number in re.findall(r"\d+", row[4])}
        rows[name] = Shown(policies, tortured, k, set(re.findall(r"`(tests/[^`]+)`", row[5])))
    return rows


def markers(items: Sequence[pytest.Item]) -> list[dict[str, Any]]:
    """The row, the policies and the values of k that each marker of these tests names."""
    found = []
    for item in items:
        given = getattr(item, "callspec", None)
        params = dict(given.params) if given else {}
        torture = any(
            "POLYRHYTHM_TORTURE" in mark.kwargs.get("reason", "")
            for mark in item.iter_markers("skipif")
        )
        for mark in item.iter_markers("guarantee"):
            policies = [params["sync"]] if "sync" in params else mark.kwargs["policies"]
            k = [params["replicas"]] if "replicas" in params else mark.kwargs["k"]
            found.append(
                {
                    "row": mark.args[0],
                    "policies": [re.split("[: ]", policy)[0] for policy in policies],
                    "k": list(k),
                    "torture": torture,
                    "test": item.nodeid.partition("[")[0],
                }
            )
    return found


def collected(folder: Path) -> list[dict[str, Any]]:
    """Collect the marked tests in a process of its own."""
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if MARKER in path.read_text()]
    script, pipe = folder / "collect.py", subprocess.PIPE
    script.write_text(COLLECT)
    process = start_script(script, *map(str, files), cwd=ROOT, stdout=pipe, stderr=pipe)
    out, errors = process.communicate(timeout=250)
    assert process.returncode == 0, str(out)[-2000:] + str(errors)[-2000:]
    (line,) = (line for line in str(out).splitlines() if line.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


def marked(session: pytest.Session, folder: Path) -> dict[str, Shown]:
    """The policies and the values of k that the tests of each row cover. If this run of pytest runs
    all tests, it has collected them already."""
    rows: dict[str, Shown] = defaultdict(Shown)
    for found in markers(session.items) if all_tests(session.config) else collected(folder):
        row = rows[found["row"]]
        (row.tortured if found["torture"] else row.policies).update(found["policies"])
        row.k.update(found["k"])
        row.tests.add(found["test"])
    for row in rows.values():
        row.tortured -= row.policies
    return dict(rows)


def all_tests(config: pytest.Config) -> bool:
    """Whether this run of pytest runs all tests."""
    chosen = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf")
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return whole and not any(config.getoption(name, None) for name in chosen)


@pytest.mark.timeout(300)
def test_every_row_is_asserted_by_the_tests_that_carry_its_marker(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The tests of a row cover exactly the policies and the values of k that the row states. Every
    marker names an existing row."""
    rows, tests = stated(), marked(request.session, tmp_path)
    assert rows.keys() == tests.keys()
    for name, row in rows.items():
        assert row == tests[name], name


def test_the_page_names_what_is_not_guaranteed_and_shows_its_pictures() -> None:
    text = PAGE.read_text()
    assert "## What is not guaranteed" in text
    pictures = re.findall(r"\]\((pictures/[^)]+)\)", text)
    assert pictures and all((PAGE.parent / picture).exists() for picture in pictures)

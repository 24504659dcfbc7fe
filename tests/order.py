"""The order in which several test processes run the tests.

Tests of real processes mostly wait (mark `cluster`), and tests of functions only compute. So one test
process begins with tests that compute, which keeps the processors busy, and all others begin with tests
that wait. Tests that take tens of seconds (mark `slow`) come first, so that none of them runs alone at
the end. Tests of a file that share a fixture, such as a job, run in one test process, which makes the
fixture once.
"""

from collections.abc import Sequence

import pytest


def ordered(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Order the tests for `--dist worksteal`. It gives each test process an equal part of the list,
    and a process without work takes tests from the end of another part."""
    slow = [item for item in items if _has(item, "slow")]
    waiting = [item for item in items if _has(item, "cluster") and not _has(item, "slow")]
    computing = [item for item in items if not _has(item, "cluster") and not _has(item, "slow")]
    dealt = _dealt(waiting, processes - 1)
    found: list[pytest.Item] = []
    for number in range(processes):
        size = (len(items) - len(found)) // (processes - number)
        part = [*slow[number :: processes - 1], *dealt[number]] if number < processes - 1 else []
        fill = max(0, size - len(part))
        found += [*part, *computing[:fill]]
        computing = computing[fill:]
    return found


def _dealt(items: Sequence[pytest.Item], processes: int) -> list[list[pytest.Item]]:
    """Deal the tests one by one, because tests with the same parameters take a similar time. Tests
    that share a fixture stay together."""
    together: dict[object, list[pytest.Item]] = {}
    for item in items:
        together.setdefault(_sharing(item) or id(item), []).append(item)
    dealt: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for several in together.values():
        min(dealt, key=len).extend(several)
    return dealt


def _sharing(item: pytest.Item) -> str | None:
    """The file of a test, if the test uses a fixture that is made once for the whole file;
    otherwise None."""
    known = getattr(item, "_fixtureinfo", None)
    if known is None:
        return None
    used = [fixture for each in known.name2fixturedefs.values() for fixture in each]
    shared = any(fixture.scope == "module" for fixture in used)
    return item.nodeid.partition("::")[0] if shared else None


def _has(item: pytest.Item, mark: str) -> bool:
    return item.get_closest_marker(mark) is not None

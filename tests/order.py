"""The order in which several test processes run the tests.

Tests of real processes mostly wait (mark `cluster`), and tests of functions only compute. So one test
process begins with tests that compute, which keeps the processors busy, and all others begin with tests
that wait. Tests that take tens of seconds (mark `slow`) come first, so that none of them runs alone at
the end. Tests of a file that share a fixture, such as a job, run in one test process, which makes the
fixture once. Tests of a Ray cluster (mark `ray`) take turns, so one test process begins with all of
them. Dealt to all processes, they would make every process wait for its turn while the processors idle.
"""

from collections.abc import Sequence

import pytest


def ordered(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Order the tests for `--dist worksteal`. It gives each test process an equal part of the list,
    and a process without work takes tests from the end of another part."""
    kinds: dict[str, list[pytest.Item]] = {"ray": [], "slow": [], "cluster": [], "": []}
    for item in items:
        kinds[next(mark for mark in kinds if not mark or _has(item, mark))].append(item)
    turns, slow, waiting, computing = kinds.values()
    alone = bool(turns) and processes > 2
    lanes = processes - 1 - alone
    dealt = _dealt(waiting, lanes)
    parts = [[*slow[lane::lanes], *dealt[lane]] for lane in range(lanes)]
    parts = [turns, *parts, []] if alone else [[*turns, *parts[0]], *parts[1:], []]
    found: list[pytest.Item] = []
    for number, part in enumerate(parts):
        size = (len(items) - len(found)) // (processes - number)
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

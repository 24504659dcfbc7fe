"""The order in which several test processes run the tests.

Tests of real processes mostly wait (mark `cluster`), and tests of functions only compute. So one test
process begins with tests that compute, which keeps the processors busy, and all others begin with tests
that wait. Tests that take tens of seconds (mark `slow`) come first, so that none of them runs alone at
the end.
"""

from collections.abc import Sequence

import pytest


def ordered(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Order the tests for `--dist worksteal`. It gives each test process an equal part of the list,
    and a process without work takes tests from the end of another part."""
    slow = [item for item in items if _has(item, "slow")]
    waiting = [item for item in items if _has(item, "cluster") and not _has(item, "slow")]
    computing = [item for item in items if not _has(item, "cluster") and not _has(item, "slow")]
    found: list[pytest.Item] = []
    for number in range(processes):
        size = (len(items) - len(found)) // (processes - number)
        if number < processes - 1:
            # tests with the same parameters take a similar time, so deal them one by one
            part = [*slow[number :: processes - 1], *waiting[number :: processes - 1]]
        else:
            part = []
        fill = max(0, size - len(part))
        found += [*part, *computing[:fill]]
        computing = computing[fill:]
    return found


def _has(item: pytest.Item, mark: str) -> bool:
    return item.get_closest_marker(mark) is not None

"""The order of the tests for several test processes (`tests/order.py`)."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.order import ordered


@dataclass(frozen=True)
class Item:
    number: int
    mark: str = ""

    def get_closest_marker(self, name: str) -> str | None:
        return self.mark if self.mark == name else None


def items(slow: int, waiting: int, computing: int, turns: int = 0) -> list[Any]:
    marks = ["cluster"] * waiting + [""] * computing + ["slow"] * slow + ["ray"] * turns
    return [Item(number, mark) for number, mark in enumerate(marks)]


def parts(found: list[Any], processes: int) -> list[list[Any]]:
    """Cut the list as `--dist worksteal` does."""
    cut, left = [], list(found)
    for number in range(processes, 0, -1):
        size = len(left) // number
        cut.append(left[:size])
        left = left[size:]
    return cut


@pytest.mark.parametrize("processes", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "counts",
    [
        (0, 0, 0),
        (2, 30, 301),
        (1, 0, 5),
        (0, 40, 0),
        (0, 40, 3),
        (5, 0, 0),
        (2, 30, 301, 9),
        (0, 0, 0, 3),
    ],
)
def test_every_test_is_run_once(counts: tuple[int, ...], processes: int) -> None:
    before = items(*counts)
    found = ordered(before, processes)
    assert len(found) == len(before) and set(found) == set(before)


def test_all_processes_but_one_begin_with_tests_that_take_long_and_then_wait() -> None:
    *first, last = parts(ordered(items(slow=4, waiting=31, computing=300), 4), 4)
    for part in first:
        marks = [item.mark for item in part]
        long, waiting = marks.count("slow"), marks.count("cluster")
        assert long in (1, 2) and waiting in (10, 11)
        assert marks == ["slow"] * long + ["cluster"] * waiting + [""] * (
            len(marks) - long - waiting
        )
    assert {item.mark for item in last} == {""}


def test_one_process_begins_with_all_tests_that_take_turns() -> None:
    turning, *others, last = parts(ordered(items(slow=3, waiting=30, computing=300, turns=9), 5), 5)
    assert [item.mark for item in turning] == ["ray"] * 9 + [""] * (len(turning) - 9)
    for part in others:
        marks = [item.mark for item in part]
        assert "ray" not in marks and marks[:11] == ["slow"] + ["cluster"] * 10
    assert {item.mark for item in last} == {""}


def test_tests_that_share_a_fixture_run_in_one_process() -> None:
    shared = SimpleNamespace(scope="module")
    own = SimpleNamespace(scope="function")

    def item(number: int, *fixtures: SimpleNamespace) -> Any:
        info = SimpleNamespace(name2fixturedefs={"one": fixtures})
        node = f"tests/cluster/test_{number % 2}.py::test_{number}"
        marked = Item(number, "cluster")
        return SimpleNamespace(
            nodeid=node, _fixtureinfo=info, get_closest_marker=marked.get_closest_marker
        )

    sharing = [item(number, own, shared) for number in range(8)]
    alone = [item(number, own) for number in range(8, 20)]
    others = items(slow=0, waiting=0, computing=100)
    *first, last = parts(ordered([*sharing, *alone, *others], 4), 4)
    assert all(each in others for each in last)
    for file in (0, 1):
        assert sum(any(one in part for one in sharing[file::2]) for part in first) == 1
    assert [sum(one in part for one in alone) for part in first] == [3, 3, 6]

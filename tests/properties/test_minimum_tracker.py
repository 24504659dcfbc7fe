"""The minimum tracker agrees with a plain dict. Two faulty trackers do not."""

from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from polyrhythm.core.minimum_tracker import MinimumTracker

HUNT = settings(
    max_examples=500, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False
)
keys = st.integers(0, 4)


class Twins(RuleBasedStateMachine):
    slowest_class: ClassVar[type[MinimumTracker]] = MinimumTracker

    def __init__(self) -> None:
        super().__init__()
        self.slowest: MinimumTracker[int] = self.slowest_class()
        self.plain: dict[int, int] = {}

    @rule(key=keys, number=st.integers(0, 12))
    def put(self, key: int, number: int) -> None:
        self.slowest.put(key, number)
        self.plain[key] = number

    @rule(key=keys, steps=st.integers(1, 3))
    def grow(self, key: int, steps: int) -> None:
        if key in self.plain:
            self.put(key, self.plain[key] + steps)

    @rule(key=keys)
    def drop(self, key: int) -> None:
        self.slowest.drop(key)
        self.plain.pop(key, None)

    @invariant()
    def they_agree(self) -> None:
        assert self.slowest.least == min(self.plain.values(), default=0), "not the least"
        assert len(self.slowest) == len(self.plain)
        assert sorted(self.slowest.all_keys()) == sorted(self.plain)
        for key in range(5):
            assert (key in self.slowest) == (key in self.plain)
            assert key not in self.plain or self.slowest[key] == self.plain[key]


TestTwins = Twins.TestCase


class StandsStill(MinimumTracker[int]):
    """A tracker whose minimum never rises."""

    @property
    def least(self) -> int:
        return self._least if self._at else 0


class Remembers(MinimumTracker[int]):
    """A tracker in which dropped entries still count."""

    def drop(self, key: int) -> None:
        self._at.pop(key, None)


@pytest.mark.parametrize("mutant", [StandsStill, Remembers])
def test_wrong_trackers_differ_from_the_dict(mutant: type[MinimumTracker]) -> None:
    machine = type("Mutant", (Twins,), {"slowest_class": mutant})
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(machine, settings=HUNT)

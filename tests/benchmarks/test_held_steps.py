"""The comparison of ways to treat points that are missing from the sum of statistics."""

import pytest

from benchmarks import held_steps


def test_only_steps_that_are_not_held_make_the_objective_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_steps, "TURNS", 30)
    monkeypatch.setattr(held_steps, "DEATH", 18)
    found = held_steps.compare("mixture", ordered=True, deaths=True, moves=False, seeds=1)
    assert found["held"]["held"] > 0 == found["at once"]["held"]
    assert max(found["held"]["rise"], found["kept"]["rise"]) < 1e-9 < found["at once"]["rise"]


def test_turns_count_until_the_objective_stays_at_the_target() -> None:
    outcome = held_steps.Outcome([3.0, 1.0, 2.0, 1.0, 0.5])
    assert [outcome.turns_to(target) for target in (3.0, 1.5, 0.5, 0.0)] == [0, 3, 4, 5]

"""What the processes of a machine find in their environment."""

import pytest

from polyrhythm.engines.environment import environment

POLICY = "OMP_WAIT_POLICY"


@pytest.fixture(autouse=True)
def _unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POLICY, raising=False)


def test_where_workers_have_one_thread_none_spins() -> None:
    assert environment([1, 1])[POLICY] == "passive"
    assert environment([])[POLICY] == "passive"


def test_where_workers_have_several_they_wait_as_they_like() -> None:
    assert POLICY not in environment([4, 4])


def test_the_user_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY, "active")
    assert environment([1])[POLICY] == "active"

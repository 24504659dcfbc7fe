"""When a worker that died is started again, and when it is given up."""

import pytest

from polyrhythm.core.supervision import (
    Died,
    ProcessLoss,
    Respawn,
    RespawnDecision,
    Started,
    Trained,
    loss_of,
)
from polyrhythm.observe.reasons import in_words

SECOND = 10**9


class Life:
    """One worker. It is started again as soon as the rule permits, and dies when the test says
    so."""

    def __init__(self) -> None:
        self.respawn = Respawn()
        self.now_ns = 0
        assert self.respawn.on(Started("worker-1"), 0) is None

    def die(self, after_s: float) -> RespawnDecision:
        self.now_ns += round(after_s * SECOND)
        verdict = self.respawn.on(Died("worker-1", "killed by SIGKILL"), self.now_ns)
        assert verdict is not None
        if verdict.at_ns is not None:
            assert self.respawn.on(Started("worker-1"), verdict.at_ns) is None
        return verdict

    def contribute(self) -> None:
        assert self.respawn.on(Trained("worker-1"), self.now_ns) is None

    def wait_s(self, after_s: float) -> float:
        """Let the worker die `after_s` after its start; return how long it waits for its next
        start."""
        verdict = self.die(after_s)
        assert verdict.at_ns is not None
        wait_s = (verdict.at_ns - self.now_ns) / SECOND
        self.now_ns = verdict.at_ns
        return wait_s


def test_the_wait_doubles_up_to_30_s() -> None:
    life = Life()
    assert [life.wait_s(20) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_minute_without_a_death_resets_the_wait() -> None:
    life = Life()
    assert [life.wait_s(20), life.wait_s(20), life.wait_s(59.9)] == [0.5, 1, 2]
    assert [life.wait_s(60), life.wait_s(20)] == [0.5, 1]


def test_a_contribution_resets_the_wait() -> None:
    life = Life()
    assert [life.wait_s(20), life.wait_s(20), life.wait_s(20)] == [0.5, 1, 2]
    life.contribute()
    assert [life.wait_s(20), life.wait_s(20)] == [0.5, 1]


def test_a_worker_that_contributes_and_dies_soon_is_given_up_too() -> None:
    life = Life()
    for _ in range(4):
        life.contribute()
        assert life.wait_s(9) == 0.5
    life.contribute()
    assert life.die(9).at_ns is None


def test_a_worker_is_given_up_after_five_quick_deaths_in_a_row() -> None:
    life = Life()
    assert [life.wait_s(0.1) for _ in range(4)] == [0.5, 1, 2, 4]
    verdict = life.die(0.1)
    assert verdict.at_ns is None
    assert in_words(verdict.reason) == (
        "worker-1 failed: killed by SIGKILL; it is not started again, because it died 5 times in a"
        " row within 10 s of its start"
    )


def test_a_longer_life_resets_the_count_of_quick_deaths() -> None:
    life = Life()
    for _ in range(4):
        life.wait_s(0.1)
    life.wait_s(10)
    assert [life.wait_s(0.1) for _ in range(4)] == [16, 30, 30, 30]
    assert life.die(0.1).at_ns is None


def test_deaths_are_counted_per_worker() -> None:
    respawn = Respawn()
    for _ in range(4):
        respawn.on(Died("worker-0", "exit status 1"), 0)
    verdict = respawn.on(Died("worker-1", "exit status 1"), 0)
    assert verdict is not None and verdict.at_ns == SECOND // 2
    assert in_words(verdict.reason) == (
        "worker-1 failed: exit status 1; it is started again in 0.5 s"
    )


def test_a_server_that_dies_before_all_have_met_loses_nothing() -> None:
    for server, reported in ((0, False), (1, False), (1, True)):
        loss = loss_of(server, reported=reported, gathered=False)
        assert loss is ProcessLoss.NOTHING


@pytest.mark.parametrize("gathered", [False, True])
def test_the_lead_cannot_be_replaced_once_others_know_its_address(gathered: bool) -> None:
    assert loss_of(0, reported=True, gathered=gathered) is ProcessLoss.LEAD


def test_later_the_lead_decides_whether_slices_are_lost() -> None:
    for reported in (True, False):
        loss = loss_of(1, reported=reported, gathered=True)
        assert loss is ProcessLoss.PERHAPS_SLICES

"""A process's first step takes many times as long as its others; policies must ignore its time."""

import pytest

from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.barrier.measurement import WarmUp
from polyrhythm.core.sync.barrier.prediction import Prediction
from polyrhythm.core.sync.policy import SyncPolicy
from polyrhythm.core.sync.registry import choose_policy
from polyrhythm.wire.messages import ContributionReport, JobSpec

MS = 10**6
FIRST_STEP_MS = 1600


class Training:
    """A job with rounds of 200 ms, barriers of 5 ms, and an objective that falls."""

    def __init__(self, **spec: str) -> None:
        self.policy: SyncPolicy = choose_policy(JobSpec(job="j", **spec))
        self.now_ns = 0
        self.objective = 10.0
        self.change: list[sync.Reason] = []
        self._steps: dict[int, int] = {}
        self._late_ms = 0
        self._round = 0

    def join(self, worker: int) -> None:
        self._steps[worker] = 0
        self.policy.on(sync.Joined(worker), self.now_ns)

    def round(self, *, cold: bool, joiner: int | None = None) -> None:
        """Play one round. `cold`: the first step of each worker takes `FIRST_STEP_MS` longer.
        `joiner`: a worker that joins during this round and contributes from the next one on."""
        self._round += 1
        self.policy.on(sync.Opened(self._round - 1), self.now_ns)
        members = list(self._steps)
        if joiner is not None:
            self.join(joiner)
        late_ms = 0
        waited_ms, self._late_ms = 5 + self._late_ms, 0
        self.now_ns += 200 * MS
        for worker in members:
            steps = self._steps[worker]
            first_ms = FIRST_STEP_MS if cold and not steps else 0
            late_ms = max(late_ms, first_ms)
            report = ContributionReport(
                weight=100.0,
                steps=20,
                compute_ns=200 * MS + 20 * first_ms * MS,
                wait_ns=waited_ms * MS if steps else 0,
                probe=self.objective,
                probe_points=10,
            )
            arrived = sync.MemberContributed(worker, self._round, report)
            decision = self.policy.on(arrived, self.now_ns + late_ms * MS)
            self._steps[worker] += 1
        assert decision.fold
        if decision.change is not None:
            self.change.append(decision.change)
        self._late_ms = late_ms
        self.now_ns += (late_ms + 5) * MS
        self.objective *= 0.97


def intervals(joins: int, *, cold: bool) -> list[float]:
    training = Training(sync="fsp", interval="auto")
    for worker in (0, 1):
        training.join(worker)
    for round_ in range(1, 30):
        training.round(cold=cold, joiner=2 if round_ == joins else None)
    return [reason.fields["interval_ms"] for reason in training.change]


@pytest.mark.parametrize("joins", [1, 2, 3, 4, 5, 6, 12])
def test_slow_first_steps_do_not_change_the_interval(joins: int) -> None:
    assert intervals(joins, cold=True) == intervals(joins, cold=False) != []


def test_a_fixed_interval_is_not_raised_by_a_first_step() -> None:
    training = Training(sync="fsp", interval="150ms")
    for worker in (0, 1):
        training.join(worker)
    for _ in range(8):
        training.round(cold=True)
    assert training.change == []


def test_slow_first_steps_do_not_change_the_batch_size() -> None:
    told = []
    for cold in (False, True):
        training = Training(sync="bspv")
        for worker in (0, 1):
            training.join(worker)
        for _ in range(30):
            training.round(cold=cold)
        told.append([(reason.code, reason.fields["points"]) for reason in training.change])
    assert told[0] == told[1] != []


def test_predictions_ignore_the_first_step_after_the_second() -> None:
    prediction = Prediction()
    for worker, step_ms in ((0, 10), (1, 10)):
        prediction.on_measured(worker, (FIRST_STEP_MS if worker else 10) * MS)
        prediction.on_measured(worker, step_ms * MS)
    assert prediction.steps() == {0: 1, 1: 1}
    prediction.forget(1)
    prediction.on_measured(1, 40 * MS)
    prediction.on_measured(1, 20 * MS)
    assert prediction.steps() == {0: 2, 1: 1}


def test_a_worker_that_left_and_joins_again_is_cold() -> None:
    warm_up = WarmUp()
    assert warm_up.on_arrived(1) and warm_up.in_round and not warm_up.in_last_round
    warm_up.close()
    assert not warm_up.on_arrived(1) and not warm_up.in_round and warm_up.in_last_round
    warm_up.left(1)
    assert warm_up.on_arrived(1)

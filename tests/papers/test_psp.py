"""PSP: the synchronous parallel method with prediction. Each test quotes the sentence it checks."""

from collections import defaultdict
from typing import Any

import pytest

from polyrhythm.core.lead.rounds.contributions import Complete
from polyrhythm.core.lead.rounds.counting import Counting
from polyrhythm.core.sync.barrier.prediction import (
    Prediction,
    overall_usage,
    plan_steps,
    resource_usage,
)
from tests.papers.simulated import Simulated


def test_eq_1() -> None:
    """Eq. 1: "t_i represents the time spent on local computation in this round of synchronization". The
    usage of a round is the mean of all t_i, divided by the longest t_i."""
    assert resource_usage([2.0, 2.0]) == 1.0
    assert resource_usage([1.0, 4.0]) == 5 / 8


def test_eq_14() -> None:
    """ "defined as the time spent on computation as a percentage of the total execution time". The times
    of all workers are added up first."""
    assert overall_usage([3.0, 5.0], [10.0, 10.0]) == pytest.approx(0.4)


def test_fig_1() -> None:
    """ "setting the stale threshold to 1, in an ideal situation, worker node 1 has a computational
    resource utilization rate of only 33.3%, and worker node 2 has a utilization rate of only
    66.7%. The overall computational resource utilization rate of the computing cluster is 66.7%". Steps
    take 1, 2 and 3 units of time, and each worker waits for the slowest after each step."""
    times = [1.0, 2.0, 3.0]
    assert [time / max(times) for time in times] == pytest.approx([0.333, 0.667, 1], abs=1e-3)
    assert resource_usage(times) == pytest.approx(0.667, abs=1e-3)


def test_fig_2() -> None:
    """ "worker node 1 enters the synchronization barrier after completing 6 local model training,
    then in an ideal situation, the resource utilization rate of the computing cluster is 100%". With
    step times of 1, 2 and 3, the workers make 6, 3 and 2 steps per round, and none waits."""
    plan = plan_steps({1: 1.0, 2: 2.0, 3: 3.0})
    assert plan.steps == {1: 6, 2: 3, 3: 2}
    assert plan.utilisation == 1.0


def test_1_1_3() -> None:
    """ "setting the stale threshold to 1 results in a computational resource utilization rate of
    55.5% for the computing cluster, while if the global synchronization is performed after worker
    node 1 completes 3 local model iteration training, the ideal computational resource utilization
    rate of the cluster can reach 100%". The step times are 1, 1 and 3: with 3, 3 and 1 steps per round,
    no worker waits."""
    assert resource_usage([1.0, 1.0, 3.0]) == pytest.approx(0.555, abs=1e-3)
    plan = plan_steps({1: 1.0, 2: 1.0, 3: 3.0})
    assert plan.steps == {1: 3, 2: 3, 3: 1}
    assert plan.utilisation == 1.0


@pytest.mark.parametrize(
    ("times", "steps"),
    [((1, 2), (2, 1)), ((2, 3), (3, 2)), ((1, 2, 4), (4, 2, 1)), ((2, 2, 3), (3, 3, 2))],
)
def test_eq_2(times: tuple[int, ...], steps: tuple[int, ...]) -> None:
    """ "the optimal synchronization time can be represented as the least common multiple": for
    ratios of small integers, the plan here is the same."""
    assert tuple(plan_steps(dict(enumerate(times))).steps.values()) == steps


def test_fig_3() -> None:
    """ "other tasks on worker node 3 preempt computing resources, resulting in a performance
    decline": the plan adapts within a few measurements."""
    prediction = Prediction()
    for _ in range(4):
        for worker, step_ns in ((1, 10**6), (2, 10**6), (3, 2 * 10**6)):
            prediction.on_measured(worker, step_ns)
        assert prediction.steps() == {1: 2, 2: 2, 3: 1}
    for _ in range(5):
        for worker, step_ns in ((1, 10**6), (2, 10**6), (3, 4 * 10**6)):
            prediction.on_measured(worker, step_ns)
        steps = prediction.steps()
    assert steps == {1: 4, 2: 4, 3: 1}


def test_fig_4() -> None:
    """ "during the first global synchronization, the parameter server obtains the local model
    training time ratios of the three worker nodes, which are 1:2:3. Then, the parameter server
    calculates the optimal time for worker node 1 to perform global synchronization is after completing
    six iterations". Every worker makes one step in the first round, and the plan follows from the step
    times measured there."""
    prediction = Prediction()
    for worker in (1, 2, 3):
        prediction.expect(worker)
    assert prediction.steps() == {1: 1, 2: 1, 3: 1}
    for worker in (1, 2, 3):
        prediction.on_measured(worker, worker * 10**6)
    assert prediction.steps()[1] == 6


SCENARIO = """
[job]
sync = "{sync}"
kind = "{kind}"
rounds = {rounds}
model = "4B"
[link]
delay = "1us"
{workers}
"""


def scenario(sync: str, times_ms: tuple[int, ...], rounds: int) -> str:
    kind = "local" if sync == "psp" else "gradient"
    workers = "\n".join(f'[[workers]]\nstep = "{time}ms"' for time in times_ms)
    return SCENARIO.format(sync=sync, kind=kind, rounds=rounds, workers=workers)


@pytest.mark.parametrize(("times_ms", "share"), [((10, 20, 30), 0.667), ((10, 10, 30), 0.555)])
@pytest.mark.parametrize("sync", ["ssp-restart:1", "bsp"])
def test_a_simulated_job_with_a_threshold_of_one_has_the_papers_utilisation(
    sync: str, times_ms: tuple[int, ...], share: float
) -> None:
    """ "The overall computational resource utilization rate of the computing cluster is 66.7%",
    "results in a computational resource utilization rate of 55.5%". The simulated job has the same
    utilisation. A threshold of 1 makes SSP wait at every step, as BSP does."""
    run = Simulated(scenario(sync, times_ms, 60))
    assert run.result["resource_usage"]["overall"] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("times_ms", "steps"), [((10, 20, 30), (6, 3, 2)), ((10, 10, 30), (3, 3, 1))]
)
def test_workers_of_a_simulated_job_reach_the_predicted_barrier_together(
    times_ms: tuple[int, ...], steps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "if the global synchronization is performed after worker node 1 completes 3 local model
    iteration training, the ideal computational resource utilization rate of the cluster can reach
    100%": every worker has made its steps when it reaches the barrier, and no worker waits for
    another.

    The first round has no plan: after it, the arrivals of workers differ by the difference of their
    step times. With a plan this difference must not grow. Without a plan, the fastest worker would
    arrive a whole step of the slowest one too early in every round. The test does not compare
    utilisation, because under psp a worker also computes while a fold is under way."""
    arrivals: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    count = Counting.count

    def watched(counting: Counting, complete: Complete, *more: Any) -> None:
        trailer = complete.trailer
        arrivals[complete.round][trailer.worker] = (trailer.report.steps, more[-1])
        count(counting, complete, *more)

    monkeypatch.setattr(Counting, "count", watched)
    Simulated(scenario("psp", times_ms, 20))
    planned = [arrivals[round_] for round_ in range(5, 20)]
    assert len(planned) == 15
    for arrived in planned:
        assert tuple(arrived[worker][0] for worker in sorted(arrived)) == steps
        moments = [now_ns for _, now_ns in arrived.values()]
        arrival_spread_ms = (max(moments) - min(moments)) / 1e6
        assert arrival_spread_ms < max(times_ms) - min(times_ms) + 1.0
        assert arrival_spread_ms < 0.9 * max(times_ms)

"""FSP §3.1 and §3.2: what a round is, and why it converges. Each test quotes the sentence it checks.

Real machines, with the inline engine: workers of unequal speed fit a convex problem.
"""

import threading
from collections import defaultdict
from itertools import pairwise

import pytest
import torch
from simulated import Simulated
from torch.nn import functional

from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.abandoning import abandons
from polyrhythm.core.sync.choose import choose_policy
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.learn.worker import Worker
from polyrhythm.wire.messages import JobSpec

MS = 10**6
UNEQUAL = {"min-step": "2ms", "slow": "2=3x"}


class Regression:
    """Logistic regression: convex, with one minimum. Remembers every worker's parameters at every
    round, the objective over all points there, and who visited which points."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(300, 3, generator=rng)
        noise = 0.5 * torch.randn(300, generator=rng)
        self.labels = (self.inputs @ torch.tensor([2.0, -1.0, 0.5]) + noise > 0).float()
        self.seen: dict[int, list[torch.Tensor]] = defaultdict(list)
        self.visited: dict[str, list[int]] = defaultdict(list)
        self._lock = threading.Lock()

    def loss(self, weight: torch.Tensor) -> float:
        logits = self.inputs @ weight.flatten()
        return float(functional.binary_cross_entropy_with_logits(logits, self.labels))

    def main(self, worker: Worker) -> None:
        torch.manual_seed(3)
        model = torch.nn.Linear(3, 1, bias=False)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.5))
        numbers = torch.arange(len(self.inputs))
        for inputs, labels, indices in worker.batches((self.inputs, self.labels, numbers), 8):
            with self._lock:
                self.seen[worker.version].append(model.weight.detach().clone())
                self.visited[worker.name] += indices.tolist()
            logits = model(inputs).flatten()
            functional.binary_cross_entropy_with_logits(logits, labels).backward()
            optimizer.step()

    def curve(self) -> list[float]:
        return [self.loss(self.seen[version][0]) for version in sorted(self.seen)]


def train(regression: Regression, **job: object) -> InlineRun:
    fields = {"job": "j", "workers": 3, "sync": "fsp", "interval": "12ms", "staging": UNEQUAL}
    return run_inline(JobSpec(**{**fields, **job}), regression.main, timeout_s=60)


def test_the_coordinator_initiates_the_barrier() -> None:
    """ "Now the coordinator can actively initiate a barrier by broadcasting a signal." """
    policy = choose_policy(JobSpec(job="j", sync="fsp", interval="50ms", coordination="central"))
    policy.on(sync.Joined(0), 0)
    assert policy.on(sync.Opened(0), 0).wake_at == 50 * MS
    assert not policy.on(sync.Tick(), 49 * MS).pause
    assert policy.on(sync.Tick(), 50 * MS).pause


@pytest.mark.parametrize("coordination", ["central", "semi"])
def test_workers_share_the_same_parameters(coordination: str) -> None:
    """ "Like BSP, here workers also share the same parameters." """
    regression = Regression()
    train(regression, rounds=30, coordination=coordination)
    shared = [weights for weights in regression.seen.values() if len(weights) > 1]
    assert len(shared) > 20
    for weights in shared:
        assert all(torch.equal(weight, weights[0]) for weight in weights)


def test_whatever_was_processed_is_committed() -> None:
    """ "a worker immediately commits local training results right after computing the current data
    point, no matter how many have been processed since the last barrier" """
    done = train(Regression(), rounds=30)
    workers = [line for line in done.journal if line["what"] == "rounds"][-1]["workers"]
    points = sorted(totals["points"] for totals in workers.values())
    assert {totals["contributions"] for totals in workers.values()} == {30}
    assert points[0] < points[1], "one is three times slower"


def test_every_point_is_sampled_evenly() -> None:
    """ "each worker under FSP uses a round-robin policy to schedule local training operations among
    iterations, so that every data point can be evenly sampled": the cursor runs on across rounds."""
    regression = Regression()
    train(regression, epochs=3)
    everywhere = [point for points in regression.visited.values() for point in points]
    assert sorted(everywhere) == sorted(list(range(300)) * 3)


def test_the_objective_falls_for_a_convex_problem() -> None:
    """Theorem 1: "GD-based ML algorithms under FSP converge." """
    regression = Regression()
    train(regression, rounds=120)
    curve = regression.curve()
    weight = torch.zeros(3, requires_grad=True)
    best = torch.optim.LBFGS([weight], max_iter=200)

    def closure() -> torch.Tensor:
        best.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(
            regression.inputs @ weight, regression.labels
        )
        loss.backward()
        return loss

    best.step(closure)
    optimum = regression.loss(weight.detach())
    tenths = [sum(curve[at : at + 10]) / 10 for at in range(0, len(curve) - 9, 10)]
    assert tenths[-1] - optimum < 0.15 * (curve[0] - optimum)
    assert all(later < earlier + 0.02 for earlier, later in pairwise(tenths))


def test_who_has_traversed_its_points_asks_for_the_barrier() -> None:
    """ "any worker already completed a traversal pass, will immediately notify the coordinator for
    synchronization" """
    policy = choose_policy(JobSpec(job="j", sync="fsp", interval="10min"))
    for worker in (0, 1):
        policy.on(sync.Joined(worker), 0)
    policy.on(sync.Opened(0), 0)
    assert policy.on(sync.Asked(1), 700 * MS).pause


LONG_POINTS = """
[job]
sync = "fsp"
interval = "120ms"
coordination = "central"
abandon = "{abandon}"
rounds = 40
points = 20000
batch = 32
model = "1kB"
[[workers]]
count = 2
step = "10ms"
[[workers]]
step = "3s"
name = "long"
"""


def test_nobody_waits_for_a_long_operation() -> None:
    """ "Otherwise, other workers need to wait for a long while, which wastes compute resources." A
    point of one worker takes 94 ms; the others wait 5 ms for it, and not to its end.

    The sentence before, "Now the worker should immediately abandon the operation", is not built: a
    worker ends its micro-batch, leaves it out of its contribution, and visits its points again."""
    patient, impatient = (
        Simulated(LONG_POINTS.format(abandon=abandon)) for abandon in ("off", "5ms")
    )
    assert impatient.took_ms < 40 * (120 + 5 + 2)
    assert patient.took_ms > 40 * (120 + 30), (
        "some 60 ms are left of a point when the interval ends"
    )
    (ended,) = (line for line in impatient.lines if line["what"] == "ended")
    assert ended["rounds"] == 40


def test_a_long_operation_is_left_out() -> None:
    """What ends after the patience is not part of the contribution, unless it is all there is."""
    assert abandons(late_ns=11 * MS, patience_ns=10 * MS, gathered=5)
    assert not abandons(late_ns=10 * MS, patience_ns=10 * MS, gathered=5)
    assert not abandons(late_ns=11 * MS, patience_ns=10 * MS, gathered=0)


def test_usually_one_more_point_is_waited_for() -> None:
    """ "In most cases, computing one data point leads to negligible waiting costs. It is acceptable
    that the worker participates in synchronization after completing the local operation." """
    assert JobSpec(job="j").abandon == "off"
    assert not abandons(late_ns=1000 * MS, patience_ns=None, gathered=5)


def test_bspb_takes_every_point() -> None:
    """ "the basic full-batch BSP framework (BSPB)": a contribution is all points of its worker."""
    done = train(Regression(), sync="bspb", interval="auto", rounds=5)
    workers = [line for line in done.journal if line["what"] == "rounds"][-1]["workers"]
    made = [(totals["contributions"], totals["points"]) for totals in workers.values()]
    assert len(made) == 3 and sum(points for _, points in made) == 5 * 300
    assert {contributions for contributions, _ in made} == {5}

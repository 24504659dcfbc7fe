"""FSP: the flexible synchronous parallel framework. Each test quotes the sentence that it checks.

Rounds (§3.1, §3.2) run on real machines with the inline engine: workers of unequal speed fit a convex
problem. The interval (§3.3), coordination (§5.2) and baselines (§6.1) are pure functions.
"""

import threading
from collections import defaultdict
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.barrier.abandoning import abandons
from polyrhythm.core.sync.barrier.batched import BatchSize, MeasuredBatch
from polyrhythm.core.sync.barrier.fsp import Lateness
from polyrhythm.core.sync.interval.fixed import (
    AutoInterval,
    BinaryInterval,
    IntervalTerms,
    Measured,
)
from polyrhythm.core.sync.interval.gain import Line, best_interval
from polyrhythm.core.sync.registry import choose_policy
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.learn.worker import Worker
from polyrhythm.wire.messages import JobSpec
from tests.papers.simulated import Simulated

MS = 10**6
UNEQUAL = {"min-step": "2ms", "slow": "2=3x"}

# -- rounds ----------------------------------------------------------------------------------------


class Regression:
    """Logistic regression, which is convex with one minimum. It records every worker's parameters in
    every round, the objective over all points, and the points that each worker visited."""

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
    fields = {"job": "j", "workers": 3, "sync": "fsp", "interval": "12ms", "slowdowns": UNEQUAL}
    return run_inline(JobSpec(**{**fields, **job}), regression.main, timeout_s=60)


def test_the_coordinator_initiates_the_barrier() -> None:
    """ "Now the coordinator can actively initiate a barrier by broadcasting a signal." """
    policy = choose_policy(JobSpec(job="j", sync="fsp", interval="50ms", coordination="central"))
    policy.on(sync.Joined(0), 0)
    assert policy.on(sync.Opened(0), 0).wake_at == 50 * MS
    assert not policy.on(sync.TimePassed(), 49 * MS).pause
    assert policy.on(sync.TimePassed(), 50 * MS).pause


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
    point, no matter how many have been processed since the last barrier": all workers contribute in
    every round, a slow one with fewer points."""
    done = train(Regression(), rounds=30)
    workers = [line for line in done.journal if line["what"] == "rounds"][-1]["workers"]
    points = sorted(totals["points"] for totals in workers.values())
    assert {totals["contributions"] for totals in workers.values()} == {30}
    assert points[0] < points[1], "one is three times slower"


def test_every_point_is_sampled_evenly() -> None:
    """ "each worker under FSP uses a round-robin policy to schedule local training operations among
    iterations, so that every data point can be evenly sampled": a worker's cursor
    in the data continues from round to round."""
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


def test_a_worker_that_has_visited_all_points_asks_for_the_barrier() -> None:
    """ "any worker already completed a traversal pass, will immediately notify the coordinator for
    synchronization": the round ends when a worker has visited all of its points."""
    policy = choose_policy(JobSpec(job="j", sync="fsp", interval="10min"))
    for worker in (0, 1):
        policy.on(sync.Joined(worker), 0)
    policy.on(sync.Opened(0), 0)
    assert policy.on(sync.Asked(1), 700 * MS).pause


LONG_POINTS = """
[job]
sync = "fsp"
kind = "gradient"
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


def test_no_worker_waits_for_a_long_operation() -> None:
    """ "Otherwise, other workers need to wait for a long while, which wastes compute resources."
    One worker needs 94 ms for a point. The others wait 5 ms for this worker, and not until it has
    finished the point.

    The sentence before, "Now the worker should immediately abandon the operation", is not
    implemented: a worker finishes the micro-batch, leaves it out of its contribution, and visits
    its points again."""
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
    """A micro-batch that ends after the patience is left out, unless the worker has nothing else to
    contribute."""
    assert abandons(late_ns=11 * MS, patience_ns=10 * MS, gathered=5)
    assert not abandons(late_ns=10 * MS, patience_ns=10 * MS, gathered=5)
    assert not abandons(late_ns=11 * MS, patience_ns=10 * MS, gathered=0)


def test_without_a_patience_workers_wait_for_a_long_operation() -> None:
    """ "In most cases, computing one data point leads to negligible waiting costs. It is acceptable that
    the worker participates in synchronization after completing the local operation." By default no point
    is abandoned."""
    assert JobSpec(job="j").abandon == "off"
    assert not abandons(late_ns=1000 * MS, patience_ns=None, gathered=5)


def test_a_contribution_under_bspb_has_all_points_of_the_worker() -> None:
    """ "the basic full-batch BSP framework (BSPB)": a contribution has all points of its worker."""
    done = train(Regression(), sync="bspb", interval="auto", rounds=5)
    workers = [line for line in done.journal if line["what"] == "rounds"][-1]["workers"]
    made = [(totals["contributions"], totals["points"]) for totals in workers.values()]
    assert len(made) == 3 and sum(points for _, points in made) == 5 * 300
    assert {contributions for contributions, _ in made} == {5}


# -- the interval ----------------------------------------------------------------------------------

PASS_NS = 1600 * MS
BATCH_NS = 40 * MS
WARM_UP, MEASURING = 5, 4 * (4 + 2) + 4 + 1
"""The number of rounds of the search: first 5 rounds until the interval is 40 ms. Then follow, four
times, 4 rounds of 40 ms and 2 rounds of 80 ms. At the end come 4 rounds of 40 ms and one that measures
the objective."""


def search(
    interval: AutoInterval | BinaryInterval, rates: dict[int, float], rounds: int
) -> list[IntervalTerms]:
    """Search in a training whose objective falls by `rates[interval in ms]` per second of work.
    Barriers take 10 ms. Returns the terms of all rounds."""
    objective, told = 1000.0, []
    for _ in range(rounds):
        terms = interval.next()
        told.append(terms)
        read = objective if terms.probe else None
        objective -= rates.get(terms.interval_ns // MS, 1.0) * terms.interval_ns / 1e9
        batches = terms.interval_ns / BATCH_NS
        interval.on_closed(
            Measured(terms.interval_ns, 10 * MS, read, 1 * MS, PASS_NS, batches=batches)
        )
    return told


def test_eq_7() -> None:
    """ "maximize the optimization gain w.r.t. f in the valid training time": the valid time
    T - phi T / (eta + phi) equals T eta / (eta + phi), and T is the same for all intervals."""
    line, phi, total = Line(-0.7, 2.0), 0.05, 30.0
    for eta in (0.01, 0.3, 2.0):
        valid = total - phi * total / (eta + phi)
        assert total * line.gain(eta, phi) == pytest.approx(valid * (-0.7 * eta + 2.0))
    eta = best_interval(-0.7, 2.0, phi)
    assert eta is not None
    assert line.gain(eta, phi) > max(line.gain(eta * 0.9, phi), line.gain(eta * 1.1, phi))


@pytest.mark.parametrize("phi", [0.002, 0.02, 0.3])
@pytest.mark.parametrize(("a", "b"), [(-2.0, 1.0), (-0.3, 4.0), (-40.0, 5.0)])
def test_eta_star_against_brute_force(a: float, b: float, phi: float) -> None:
    """ "we can compute an optimal interval": none of 100,000 other intervals gains more."""
    eta = best_interval(a, b, phi)
    assert eta is not None
    zero = -b / a  # the gain is zero at this interval, and negative for longer ones
    tried = max(
        (zero * at / 100_000 for at in range(1, 100_000)), key=lambda x: Line(a, b).gain(x, phi)
    )
    assert eta == pytest.approx(tried, rel=0.01, abs=2 * zero / 100_000)
    assert Line(a, b).gain(eta, phi) >= Line(a, b).gain(tried, phi)


def test_quality_and_quantity() -> None:
    """ "hit a "sweet spot" between quality and quantity": the best interval is longer if barriers
    cost more, and shorter if training needs fresh parameters more."""
    by_barrier = [best_interval(-1, 1, phi) or 0 for phi in (0.001, 0.01, 0.1, 1)]
    by_need = [best_interval(-need, 1, 0.1) or 0 for need in (4, 2, 1, 0.5)]
    assert by_barrier == sorted(by_barrier)
    assert by_need == sorted(by_need)


def test_two_points_of_the_line() -> None:
    """ "which requires two points (...) with different interval attempts for estimation": the search
    measures with the interval eta and with the interval 2 eta ("eta_{i+1} = 2 eta_i"). The paper's
    rollback is not implemented."""
    told = search(AutoInterval(), {}, rounds=WARM_UP + MEASURING)
    assert {terms.interval_ns for terms in told[WARM_UP:]} == {40 * MS, 80 * MS}


def test_the_objective_is_gained_in_both_measurements_for_the_same_time() -> None:
    """ "the training quality during the valid elapsed time (...) = 2 eta": workers compute equally long
    in each part of the measurement, with the interval eta and with 2 eta."""
    told = search(AutoInterval(), {}, rounds=WARM_UP + MEASURING)[WARM_UP:]
    ends = [at for at, terms in enumerate(told) if terms.probe]
    work = {sum(terms.interval_ns for terms in told[start:end]) for start, end in pairwise(ends)}
    assert work == {4 * 40 * MS}


def test_stages() -> None:
    """ "once such a delay is detected, we should enter into the next stage and recompute another eta*":
    when the objective falls more slowly, the search measures two intervals again."""
    interval = AutoInterval()
    search(interval, {40: 3.0, 80: 2.0}, rounds=WARM_UP + MEASURING)
    first = interval.next().interval_ns
    delayed = search(interval, {}, rounds=1000)
    lengths = [terms.interval_ns / first for terms in delayed]
    over = lengths.index(2.0)
    assert set(lengths[:over]) == {1.0}
    assert lengths[over - 4 : over + 6] == [1, 1, 1, 1, 2, 2, 1, 1, 1, 1]


def test_recursive_binary_searching() -> None:
    """ "eta = eta / lambda takes effect if the change (...) w.r.t. eta after some iteration, is
    smaller than (that) w.r.t. eta / 2, which is accumulated across the strictly subsequent lambda
    iterations", "recursively continued until the result is reversed": the interval is halved as long as
    the objective falls faster with half the interval."""
    interval = BinaryInterval()
    told = search(interval, {1600: 1.0, 800: 2.0, 400: 3.0, 200: 2.0, 100: 9.0}, rounds=9)
    lengths_ms = [terms.interval_ns // MS for terms in told]
    assert lengths_ms == [200, 1600, 800, 800, 400, 400, 200, 200, 100]
    assert interval.next().interval_ns == 400 * MS


def test_binary_is_fixed_afterwards() -> None:
    """ "Hence, we also fix eta unless the environment changes." """
    interval = BinaryInterval()
    search(interval, {1600: 1.0, 800: 2.0, 400: 1.0}, rounds=7)
    later = search(interval, {}, rounds=50)
    assert set(later) == {IntervalTerms(800 * MS, probe=False)}


# -- coordination and baselines --------------------------------------------------------------------


def test_a_straggler_commits_in_advance() -> None:
    """ "A straggler can execute a short interval, so as to commit results in advance and then the
    coordinator can receive reports at roughly the same time instance." A worker whose contributions
    arrive late gets a shorter interval."""
    delays_ns = {1: 1 * MS, 2: 40 * MS}
    lateness, spreads = Lateness(), []
    for _ in range(10):
        arrivals = {}
        for worker, delay_ns in delays_ns.items():
            arrivals[worker] = lateness.own_interval(worker, 200 * MS) + delay_ns
            lateness.on_arrived(worker, 0, arrivals[worker])
        spreads.append(abs(arrivals[1] - arrivals[2]))
    assert spreads[-1] < 0.1 * spreads[0]
    assert lateness.own_interval(2, 200 * MS) < lateness.own_interval(1, 200 * MS)


def test_the_interval_is_uniform_and_each_worker_is_shortened_on_its_own() -> None:
    """ "that allows the i-th worker to personalize its real barrier interval": one worker's delay
    does not shorten the interval of another."""
    lateness = Lateness()
    for worker in (1, 2):
        lateness.own_interval(worker, 200 * MS)
    lateness.on_arrived(1, 0, 230 * MS)
    assert lateness.own_interval(1, 200 * MS) == 170 * MS
    assert lateness.own_interval(2, 200 * MS) == 200 * MS


def test_bspv_searches_only_at_the_beginning() -> None:
    """ "automatically seeks an optimal batch size based on cost-benefit analysis [10] at the very
    beginning of computations": the size does not change any more when the search has ended."""
    sizes, objective, told = BatchSize.begin(), 10.0, []
    for round_ in range(60):
        terms = sizes.next()
        told.append(terms)
        assert terms.points is not None
        objective -= (0.001 if round_ < 30 else 0.1) * terms.points**0.5
        read = objective if terms.probe else None
        sizes.on_closed(MeasuredBatch(terms.points * MS + 50 * MS, read, 1000))
    assert len(set(told[:30])) > 2
    assert len(set(told[30:])) == 1
    assert not told[-1].probe, "nothing is measured any more"

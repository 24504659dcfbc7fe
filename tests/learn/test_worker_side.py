"""A worker's part in an exchange: the steps that it counts, the gradients that it sends, and the
points that it reports."""

import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from polyrhythm import Worker
from polyrhythm.core.lead.progress.accounting import Accounting
from polyrhythm.core.sync.barrier.measurement import RoundMeasurement
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.learn.objective import Probe
from polyrhythm.learn.points import Points
from polyrhythm.wire.messages import ContributionReport, JobSpec, Trailer
from tests.core.lead.data.plans import plan_of
from tests.learn.exchanges import Exchanges, Sent, record_exchanges

COUNT = 120
INPUTS = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(1))
WANTED = INPUTS @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
DATA = (INPUTS, WANTED, torch.arange(COUNT))
"""The last column is the index of the point."""


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Exchanges:
    return record_exchanges(monkeypatch)


def loss_of(weight: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    return (INPUTS[points] @ weight.T - WANTED[points]).square().mean()


def run(main: Any, **job: Any) -> InlineRun:
    fields = {"workers": 2, "servers": 1, "heartbeat_s": 20.0}
    return run_inline(JobSpec(job="j", **{**fields, **job}), main, timeout_s=60)


def attach(worker: Worker, rate: float = 0.05) -> tuple[torch.nn.Linear, Any]:
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model, worker.attach(model, torch.optim.SGD(model.parameters(), lr=rate))


# -- psp ---------------------------------------------------------------------------------------


def test_under_psp_a_contribution_has_exactly_the_planned_steps(
    exchanges: Exchanges,
) -> None:
    """A worker contributes after the planned number of steps. If the version of its last
    contribution arrives later than that, it contributes after the step during which the version
    arrived. When the lead calls for a contribution, it contributes sooner. Each contribution counts
    the steps and the points since the previous one."""
    taken: dict[str, list[tuple[int, float]]] = {}
    sent: dict[str, list[Sent]] = {}
    plans: set[int] = set()

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        planned, due = {0}, worker._exchange.contributor.due
        called = False

        def note_plan() -> bool:
            """Record the planned number of steps before and after `due` is called. A new plan may
            arrive during the call, so `due` may have used either number."""
            nonlocal called
            before = worker._node.loop.terms.steps
            result = due()
            called = worker._node.loop.hurried or worker._node.stopping
            planned.clear()
            planned.update((before, worker._node.loop.terms.steps))
            return result

        worker._exchange.contributor.due = note_plan
        mine = taken[worker.name] = []
        steps = came = points = 0
        for inputs, wanted, _ in worker.batches(DATA, batch_size=7):
            (model(inputs) - wanted).square().mean().backward()
            in_flight = worker._exchange.contributor.in_flight
            optimizer.step()
            steps, points = steps + 1, points + len(inputs)
            if worker.stopped:  # when the job ends, pending points may or may not be contributed
                break
            if not optimizer.pending:  # the worker has contributed in this step
                least = steps if in_flight else came
                assert called or steps in {max(plan, least) for plan in planned}
                plans.update(planned)
                mine.append((steps, points))
                steps = came = points = 0
            elif in_flight and not worker._exchange.contributor.in_flight:
                came = steps
        sent[worker.name] = exchanges.of(worker)

    run(main, sync="psp", kind="local", rounds=40, slowdowns={"min-step": "2ms", "slow": "1=3x"})
    for name in ("worker-0", "worker-1"):
        told = [(one.trailer.report.steps, one.trailer.report.weight) for one in sent[name]]
        assert len(told) > 20
        assert told[:-1] == taken[name][: len(told) - 1], "all but the rest at the end of the job"
    assert max(plans) > 1, "the fast worker makes several steps"


# -- fsp ---------------------------------------------------------------------------------------


def test_gradients_gathered_over_micro_batches_equal_the_gradient_over_all_their_points(
    exchanges: Exchanges,
) -> None:
    compared: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        visited: list[torch.Tensor] = []
        sent = 0
        for inputs, wanted, points in worker.batches(DATA, batch_size=16):
            weight = model.weight.detach().clone().requires_grad_()
            visited.append(points)
            (model(inputs) - wanted).square().mean().backward()
            optimizer.step()
            if len(exchanges.of(worker)) > sent:
                sent += 1
                loss_of(weight, torch.cat(visited)).backward()
                found = exchanges.of(worker)[-1]
                assert found.trailer.report.weight == sum(map(len, visited))
                compared.append((found.slices[0][:4], weight.grad[0], len(visited)))
                visited = []

    run(main, sync="fsp", interval="25ms", rounds=12, slowdowns={"min-step": "4ms"})
    assert sum(batches > 1 for _, _, batches in compared) >= 4
    for sent, twin, _ in compared:
        torch.testing.assert_close(sent, twin, rtol=1e-4, atol=1e-5)


def test_abandoned_points_are_visited_again_once_and_their_gradient_is_not_folded(
    exchanges: Exchanges,
) -> None:
    """Every sixth micro-batch takes long and is abandoned. Its points come again in the next
    micro-batch."""
    epochs = 2
    counted: Counter[int] = Counter()
    abandoned: list[list[int]] = []
    compared: list[tuple[torch.Tensor, torch.Tensor, float, int]] = []
    lock = threading.Lock()

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker, rate=0.01)
        visited: list[list[int]] = []
        weight = model.weight.detach().clone()
        sent = 0

        def settle() -> None:
            """If a contribution was sent, compare it with the points that were visited since the
            previous one. Abandoned points do not count."""
            nonlocal sent, visited
            if len(exchanges.of(worker)) == sent:
                return
            sent += 1
            kept = [point for points in visited for point in points]
            found = exchanges.of(worker)[-1]
            twin = weight.clone().requires_grad_()
            loss_of(twin, torch.tensor(kept)).backward()
            with lock:
                counted.update(kept)
                numbers = found.slices[0][:4]
                compared.append((numbers, twin.grad[0], found.trailer.report.weight, len(kept)))
            visited = []

        for number, (inputs, wanted, points) in enumerate(worker.batches(DATA, batch_size=6), 1):
            settle()
            if not visited:
                weight = model.weight.detach().clone()
            before = worker._exchange.window.points
            if number % 6 == 0:
                time.sleep(0.15)  # this micro-batch takes so long that it is abandoned
            (model(inputs) - wanted).square().mean().backward()
            visited.append(points.tolist())
            was = len(exchanges.of(worker))
            optimizer.step()
            left_out = len(exchanges.of(worker)) == was and worker._exchange.window.points < before
            if len(exchanges.of(worker)) > was:
                left_out = exchanges.of(worker)[-1].trailer.report.weight < sum(map(len, visited))
            if left_out:
                with lock:
                    abandoned.append(visited.pop())
        settle()

    done = run(main, sync="fsp", interval="40ms", abandon="5ms", epochs=epochs, timer="off")
    assert abandoned, "something was left out"
    assert counted == Counter(dict.fromkeys(range(COUNT), epochs)), "each counts once in a pass"
    for sent, twin, told, kept in compared:
        assert told == kept
        torch.testing.assert_close(sent, twin, rtol=1e-4, atol=1e-5)
    lines = [line for line in done.journal if line["what"] == "rounds"]
    assert sum(line["points"] for line in lines) == epochs * COUNT


# -- the probe sample --------------------------------------------------------------------------


def probe_of(points: int, sample: int, found: list[int]) -> Probe:
    """Return a probe that records its requests. The loss of a batch is the mean of its numbers."""

    def fetch(indices: Any) -> torch.Tensor:
        found.extend(int(index) for index in indices)
        return torch.as_tensor(np.asarray(indices), dtype=torch.float64)

    return Probe(points, sample, 5, fetch, lambda batch: batch.mean())


@pytest.mark.parametrize(("points", "sample"), [(1000, 700), (90, 2048), (7, 7)])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_the_shares_of_the_probe_sample_are_disjoint_and_complete(
    points: int, sample: int, parts: int
) -> None:
    whole: list[int] = []
    probe_of(points, sample, whole).evaluate(0, 1)
    assert len(whole) == len(set(whole)) == min(points, sample)
    shares: list[list[int]] = [[] for _ in range(parts)]
    for part in range(parts):
        probe_of(points, sample, shares[part]).evaluate(part, parts)
    together = [point for share in shares for point in share]
    assert sorted(together) == sorted(whole), "each point once, and all of them"
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_workers_of_a_job_together_evaluate_the_sample_or_evenly_chosen_points_of_it(
    exchanges: Exchanges,
) -> None:
    """The points of a measurement do not depend on the number of members. The first measurement of
    a job uses every eighth point."""
    asked: dict[int, dict[str, list[int]]] = {}
    lock = threading.Lock()

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)

        def probe_loss(batch: Any) -> torch.Tensor:
            with lock:
                mine = asked.setdefault(worker.version, {}).setdefault(worker.name, [])
                mine.extend(batch[2].tolist())
            return (model(batch[0]) - batch[1]).square().mean()

        worker.probe(DATA, probe_loss)
        for inputs, wanted, _ in worker.batches(DATA, batch_size=8):
            (model(inputs) - wanted).square().mean().backward()
            optimizer.step()

    run(main, workers=3, sync="fsp", interval="auto", probe_points=50, max_seconds=3.0)
    sample = np.random.default_rng((0, 3)).choice(COUNT, 50, replace=False).tolist()
    complete = [shares for shares in asked.values() if len(shares) == 3]
    assert complete
    for shares in complete:
        together = sorted(sample.index(point) for share in shares.values() for point in share)
        assert together in [list(range(0, 50, apart)) for apart in (1, 2, 4, 8)]


def test_the_probe_weighs_its_batches_by_their_points() -> None:
    """A sample of 300 points is evaluated in two batches. A sample of 257 points must not end with
    a batch of one point."""
    for sample in (257, 300):
        found: list[int] = []
        probe = probe_of(1000, sample, found)
        probe.evaluate(0, 1)
        loss, points, _ = probe.result()
        assert points == sample
        assert loss == pytest.approx(sum(found) / sample)


# -- the objective -----------------------------------------------------------------------------


def test_the_objective_of_a_contribution_is_weighted_by_points(exchanges: Exchanges) -> None:
    """The local steps have batches of unequal size. The objective is the mean over points, not over
    steps."""
    told: list[Sent] = []

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        losses: list[tuple[float, int]] = []
        exchanges.note(
            worker, lambda: sum(loss * n for loss, n in losses) / sum(n for _, n in losses)
        )
        for inputs, wanted, _ in worker.batches(DATA, batch_size=16):
            if len(exchanges.of(worker)) > len(told):
                # the worker has contributed the remainder of the previous pass since the last step
                losses.clear()
            (model(inputs) - wanted).square().mean().backward()
            loss = float(inputs[:, 0].abs().sum())
            losses.append((loss, len(inputs)))
            optimizer.step(objective=loss)
            told[:] = exchanges.of(worker)
            if not optimizer.pending:
                losses.clear()
        told[:] = exchanges.of(worker)

    run(main, workers=1, kind="local", local_steps=4, epochs=3, timer="off")
    assert len(told) >= 5
    for one in told:
        assert one.trailer.report.objective == pytest.approx(one.noted)


def test_the_objective_and_the_probe_of_a_round_are_weighted_by_points() -> None:
    few = Trailer(
        worker=0, report=ContributionReport(weight=1.0, objective=8.0, probe=4.0, probe_points=10)
    )
    many = Trailer(
        worker=1, report=ContributionReport(weight=3.0, objective=4.0, probe=1.0, probe_points=30)
    )
    reading = RoundMeasurement()
    reading.count(few.report)
    reading.count(many.report)
    assert reading.objective == pytest.approx((4.0 * 10 + 1.0 * 30) / 40)
    bare = RoundMeasurement()
    for trailer in (few, many):
        report = trailer.report
        bare.count(ContributionReport(weight=report.weight, objective=report.objective))
    assert bare.objective == pytest.approx((8.0 * 1 + 4.0 * 3) / 4)
    tally = Accounting()
    for trailer in (few, many):
        tally.count(trailer, int(trailer.report.weight), 1)
    assert tally.line(1, "all-arrived", 0, 2)["objective"] == pytest.approx(5.0)


# -- the order of points -----------------------------------------------------------------------


def test_chunks_and_their_points_have_a_new_order_in_every_pass() -> None:
    plan = plan_of(800, 1, 3, None, 2)
    plan.share([(0, 1)])
    lease = plan.lease((0, 1))
    points = Points(lease, 2)
    chunk_of = {}
    for chunk in lease.chunks:
        for place in range(chunk.first, chunk.last):
            chunk_of[int(points._permutation[place])] = chunk.chunk
    chunk_orders, point_orders = [], []
    for _ in range(4):
        seen: list[int] = []
        while len(seen) < 800:
            seen += points.next(32)[0].tolist()
        assert sorted(seen) == list(range(800))
        chunk_orders.append(tuple(dict.fromkeys(chunk_of[point] for point in seen)))
        point_orders.append({c: tuple(p for p in seen if chunk_of[p] == c) for c in range(16)})
    assert len(set(chunk_orders)) == 4
    for number in range(16):
        assert len({orders[number] for orders in point_orders}) == 4


def test_a_job_visits_its_points_in_a_new_order_in_every_pass() -> None:
    visited: list[int] = []

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        for inputs, wanted, points in worker.batches(DATA, batch_size=10):
            visited.extend(points.tolist())
            (model(inputs) - wanted).square().mean().backward()
            optimizer.step()

    run(main, workers=1, epochs=3, timer="off")
    passes = [tuple(visited[at : at + COUNT]) for at in range(0, 3 * COUNT, COUNT)]
    assert all(sorted(one) == list(range(COUNT)) for one in passes)
    assert len(set(passes)) == 3

"""Learning-rate schedulers of torch end at the same rate under every policy."""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as ls

from polyrhythm.core.worker.job_steps import JobSteps
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import ModelChanged
from polyrhythm.learn.schedules import Schedules
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire.messages import JobSpec

POINTS, BATCH, PASSES, WORKERS = 384, 4, 2, 3
STEPS = POINTS * PASSES // (BATCH * WORKERS)
POLICIES = (
    ("bsp", "gradient"),
    ("bsp", "local"),
    ("ssp:2", "gradient"),
    ("ssp-restart:2", "gradient"),
    ("asp", "gradient"),
    ("asp", "local"),
    ("psp", "local"),
    ("fsp", "gradient"),
    ("fsp", "local"),
)
Make = Callable[[torch.optim.Optimizer], Any]
SCHEDULERS: dict[str, Make] = {
    "cosine": lambda o: ls.CosineAnnealingLR(o, STEPS),
    "one-cycle": lambda o: ls.OneCycleLR(o, 0.3, total_steps=STEPS, cycle_momentum=False),
    "warm-up": lambda o: ls.LambdaLR(o, lambda step: min(1.0, (step + 1) / STEPS)),
    "steps": lambda o: ls.StepLR(o, STEPS // 4, 0.1),
    "sequence": lambda o: ls.SequentialLR(
        o, [ls.LinearLR(o, 0.1, 1.0, 8), ls.CosineAnnealingLR(o, STEPS - 8)], milestones=[8]
    ),
    "chain": lambda o: ls.ChainedScheduler([ls.ConstantLR(o, 0.5, 4), ls.ExponentialLR(o, 0.95)]),
    "restarts": lambda o: ls.CosineAnnealingWarmRestarts(o, STEPS // 2),
}


def attach(worker: Worker) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(1, 1)
    return model, worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def plainly(make: Make, steps: int) -> list[float]:
    """The rates in plain torch: before the first step, and after each."""
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler, rates = make(optimizer), [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def run(main: Callable[[Worker], None], **job: Any) -> None:
    spec = JobSpec(**{"job": "j", "workers": WORKERS, "epochs": PASSES, **job})
    done = run_inline(spec, main, options=NodeOptions(check=True), timeout_s=60)
    assert done.outcome is not None and not done.outcome.failed


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_a_schedule_ends_at_the_rate_of_plain_torch(sync: str, kind: str) -> None:
    """One worker is three times slower than the others, so the loops make different numbers of
    steps. A few steps may be missing, because parts of batches add up to a little less than a whole,
    or too many, because a worker estimates the steps between two messages of the lead."""
    ends: dict[str, float] = {}

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        scheduler = ls.CosineAnnealingLR(optimizer, STEPS)
        pause, stop = threading.Event(), 0.003 if worker.name == "worker-2" else 0.001
        for inputs in worker.batches(torch.ones(POINTS, 1), batch_size=BATCH):
            model(inputs).sum().backward()
            pause.wait(stop * len(inputs) / BATCH)
            optimizer.step()
            scheduler.step()
        ends[worker.name] = optimizer.param_groups[0]["lr"] / 0.1

    run(main, sync=sync, kind=kind, interval="20ms" if sync == "fsp" else "")
    assert len(ends) == WORKERS
    assert max(ends.values()) <= 0.5 * (1 + math.cos(math.pi * (STEPS - 6) / STEPS)) + 1e-9


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("sync", ["bsp", "fsp"])
def test_every_scheduler_has_the_rate_of_its_number_of_steps(name: str, sync: str) -> None:
    """After each step the rate is one of plain torch's, and its number never falls. Under bsp it is
    the number of steps that the loop has made. Under fsp a worker estimates the number between two
    messages of the lead."""
    most = STEPS - 1 if name == "one-cycle" else STEPS + 5
    wanted = plainly(SCHEDULERS[name], most)
    found: dict[str, list[float]] = {}

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        scheduler = SCHEDULERS[name](optimizer)
        rates = found.setdefault(worker.name, [optimizer.param_groups[0]["lr"]])
        for inputs in worker.batches(torch.ones(POINTS, 1), batch_size=BATCH):
            model(inputs).sum().backward()
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        rates.append(optimizer.param_groups[0]["lr"])

    run(main, sync=sync, interval="20ms" if sync == "fsp" else "")
    for rates in found.values():
        if sync == "bsp":
            assert rates[:STEPS] == wanted[:STEPS]
        position = 0
        for rate in rates:
            position = wanted.index(rate, position)
        assert rates[-1] in wanted[STEPS - 3 :]


@pytest.mark.parametrize("name", ["sequence", "chain"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # ConstantLR in a chain
def test_schedulers_inside_of_another_one_follow_it_and_not_the_job(name: str) -> None:
    """The job makes three steps in the time in which this worker makes one."""

    class Fast:
        catches_up = 0
        steps = JobSteps(0.0, estimates=False)

        def count_steps(self) -> JobSteps:
            return self.steps

    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    schedules, job = Schedules(optimizer), Fast()
    schedules.begin(job, print)
    scheduler, rates = SCHEDULERS[name](optimizer), []
    for step in range(1, 7):
        job.steps.on_step(1.0)
        job.steps.tell(3.0 * step)
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == plainly(SCHEDULERS[name], 18)[3::3]


def test_a_scheduler_of_the_users_own_optimizer_follows_the_job_too() -> None:
    """Nor does torch warn that the scheduler came before the optimizer's step: warnings are errors."""
    ends: list[int] = []

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(1, 1)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = ls.CosineAnnealingLR(inner, STEPS)
        optimizer = worker.attach(model, inner)
        for inputs in worker.batches(torch.ones(POINTS, 1), batch_size=BATCH):
            model(inputs).sum().backward()
            optimizer.step()
            scheduler.step()
        ends.append(scheduler.last_epoch)

    run(main, sync="fsp", interval="20ms")
    assert len(ends) == WORKERS and all(abs(end - STEPS) <= 2 for end in ends)


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
def test_a_scheduler_that_is_stepped_once_per_pass_makes_one_step_per_pass(sync: str) -> None:
    ends: list[int] = []

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        scheduler = ls.StepLR(optimizer, 1, 0.1)
        for inputs in worker.batches(torch.ones(POINTS, 1), batch_size=BATCH):
            model(inputs).sum().backward()
            optimizer.step()
            if int(worker.passes) > scheduler.last_epoch:
                scheduler.step()
        ends.append(scheduler.last_epoch)

    run(main, sync=sync, epochs=3, interval="20ms" if sync == "fsp" else "")
    # whether a worker makes a step after the last pass was counted depends on its last batch
    assert all(2 <= end <= 3 for end in ends) and len(ends) == WORKERS


def test_the_steps_before_an_eviction_are_not_steps_of_the_job() -> None:
    """The worker has made steps since the lead told its count, and has joined again: these steps will
    never count."""
    found: list[float] = []

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        exchange = worker._exchange
        before = exchange.count_steps().now
        exchange.job_steps.on_step(3.0)
        found.append(exchange.count_steps().now - before)
        exchange._incarnation -= 1  # as if the worker had another one now
        found.append(exchange.count_steps().now - before)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step(points=1)

    run(main, sync="asp", kind="local", workers=1, epochs=None, rounds=1)
    assert found == [3.0, 0.0]


def test_a_cycle_that_is_too_short_keeps_its_last_rate(capsys: pytest.CaptureFixture[str]) -> None:
    rates: list[float] = []

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        scheduler = ls.OneCycleLR(optimizer, 0.3, total_steps=20, cycle_momentum=False)
        for inputs in worker.batches(torch.ones(POINTS, 1), batch_size=BATCH):
            model(inputs).sum().backward()
            optimizer.step()
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])

    run(main, sync="bsp")
    lowest = plainly(lambda o: ls.OneCycleLR(o, 0.3, total_steps=20, cycle_momentum=False), 19)[-1]
    assert rates == [lowest] * WORKERS
    assert "OneCycleLR has made all of its total_steps=20 steps" in capsys.readouterr().err


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_cycle_of_the_momentum_is_refused_at_its_first_step_with_both_remedies(sync: str) -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(1, 1)
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = worker.attach(model, inner)
        scheduler = ls.OneCycleLR(optimizer, 0.3, total_steps=STEPS)
        for inputs in worker.batches(torch.ones(POINTS, 1), batch_size=BATCH):
            model(inputs).sum().backward()
            optimizer.step()
            scheduler.step()

    remedies = "step 1: .*'momentum' .* cycle_momentum=False, or the job --kind local"
    with pytest.raises(ModelChanged, match=remedies):
        run(main, sync=sync, workers=1)
    run(main, sync=sync, workers=1, kind="local")


def test_schedulers_of_other_optimizers_are_not_affected() -> None:
    ends: list[tuple[int, int]] = []

    def main(worker: Worker) -> None:
        model, optimizer = attach(worker)
        other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
        scheduler, steps = ls.ExponentialLR(other, 0.9), 0
        for inputs in worker.batches(torch.ones(POINTS, 1), batch_size=BATCH):
            model(inputs).sum().backward()
            optimizer.step()
            other.step()
            scheduler.step()
            steps += 1
        ends.append((scheduler.last_epoch, steps))

    run(main, sync="fsp", interval="20ms")
    assert all(calls == steps for calls, steps in ends)

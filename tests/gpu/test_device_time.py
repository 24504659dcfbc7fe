"""The host waits for a device once per step, and the time sheet has the times of the device."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.learn.steps import WrittenParameters
from polyrhythm.runtime.worker.timesheet import Timesheet
from polyrhythm.tensors.copies import DeferredCopies
from polyrhythm.wire.messages import JobSpec
from tests.learn import twin_job as tj
from tests.learn.exchanges import record_exchanges

SLOW_NS = 40_000_000
WAITS = ("synchronise", "await computing", "await uploads")


def train(
    worker: Worker, device: str, before_step: Callable[[], object], step: Callable[[Any], object]
) -> None:
    model = tj.build().to(device)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batches = [tj.batch(0, step) for step in range(20)]
    on_device = [(points.to(device), labels.to(device)) for points, labels in batches]
    for points, labels in on_device:
        if worker.stopped:
            break
        loss = tj.loss_of(model, points, labels)
        loss.backward()
        before_step()
        step(lambda: optimizer.step(points=len(labels), objective=loss))  # noqa: B023


@pytest.mark.parametrize(
    "options",
    [{}, {"kind": "local"}, {"kind": "local", "local_steps": 4}, {"sync": "asp"}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_the_host_waits_once_per_step(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(
        "polyrhythm.tensors.device_model.copies_for", lambda device: DeferredCopies()
    )

    def main(worker: Worker) -> None:
        def counted(step: Callable[[], object]) -> None:
            copies = worker._node._model.copies
            assert isinstance(copies, DeferredCopies)
            copies.log.clear()
            step()
            waits.append(sum(each in WAITS for each in copies.log))

        train(worker, "cpu", lambda: None, counted)

    run_inline(
        JobSpec(**{"job": "waits", "rounds": 5, "heartbeat_s": 20.0, **options}), main, timeout_s=60
    )
    assert len(waits) >= 5 * options.get("local_steps", 1)
    assert set(waits) == {1}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize(("kind", "compared"), [("gradient", 12), ("local", 0)])
def test_a_step_makes_no_hidden_synchronisation(
    kind: str, compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch raises an error at an operation that makes the host wait, such as `item()`. One
    operation may wait: with kind gradient, the comparison of the parameters on the host. It is made
    in the first steps, and then less and less often."""
    comparisons: list[int] = []
    digests = WrittenParameters._digests

    def comparing(written: WrittenParameters) -> dict[str, int]:
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            comparisons.append(mode)
            return digests(written)
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    monkeypatch.setattr(WrittenParameters, "_digests", comparing)

    def main(worker: Worker) -> None:
        def checked(step: Callable[[], object]) -> None:
            torch.cuda.set_sync_debug_mode("error" if worker.version else "default")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode("default")

        train(worker, "cuda:0", lambda: None, checked)

    run_inline(JobSpec(job="quiet", rounds=15, kind=kind, heartbeat_s=20.0), main, timeout_s=60)
    assert len(comparisons) == compared


@pytest.mark.gpu
def test_the_time_of_kernels_counts_as_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host starts kernels that take some time, and calls `step()` long before they have
    ended."""
    exchanges = record_exchanges(monkeypatch)
    called_ns: list[int] = []

    def main(worker: Worker) -> None:
        began_ns = time.monotonic_ns()
        torch.cuda._sleep(10**8)
        torch.cuda.synchronize()
        cycles = round(10**8 * SLOW_NS / (time.monotonic_ns() - began_ns))

        def slow() -> None:
            began_ns = time.monotonic_ns()
            torch.cuda._sleep(cycles)
            called_ns.append(time.monotonic_ns() - began_ns)

        train(worker, "cuda:0", slow, lambda step: step())
        sent = exchanges.of(worker)[4:]
        assert sent
        for each in sent:
            assert each.trailer.report.compute_ns > 0.8 * SLOW_NS
            assert each.trailer.report.transfer_ns < 0.8 * SLOW_NS

    run_inline(JobSpec(job="slow", rounds=10, heartbeat_s=20.0), main, timeout_s=60)
    assert max(called_ns[4:]) < SLOW_NS / 2


def test_a_device_that_computes_after_the_call_of_step_counts_as_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchanges = record_exchanges(monkeypatch)
    monkeypatch.setattr(DeferredCopies, "computed_ns", lambda self, called_ns: called_ns + SLOW_NS)
    monkeypatch.setattr(DeferredCopies, "take_late_ns", lambda self: 1_000)
    monkeypatch.setattr(
        "polyrhythm.tensors.device_model.copies_for", lambda device: DeferredCopies()
    )

    def main(worker: Worker) -> None:
        train(worker, "cpu", lambda: None, lambda step: step())
        assert all(
            sent.trailer.report.compute_ns >= SLOW_NS - 1_000 for sent in exchanges.of(worker)
        )

    run_inline(JobSpec(job="slow", rounds=3, heartbeat_s=20.0), main, timeout_s=60)


def test_the_time_until_a_device_has_the_parameters_counts_as_transferring() -> None:
    timesheet = Timesheet()
    timesheet.resume()
    resumed_ns = timesheet.resumed_ns
    timesheet.resumed_late(5_000)
    assert timesheet.transferred_ns == 5_000
    assert timesheet.computed_ns(resumed_ns + 8_000) == 3_000

"""The simulator saves the model by the rules of the runtime. The simulated time for saving follows from
the sizes of slices."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.engines.inline import run_inline
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.sim.server.saving import DISK_NS_PER_BYTE
from polyrhythm.wire import messages as m
from tests.sim.staged_run import Run

SYNCS = ["bsp", "asp", "ssp:2", "psp", "fsp"]
JOB = """
[job]
max_time = "300ms"
points = 2000
batch = 10
servers = 3
replicas = {replicas}
model = "40MB"
timer = "off"
heartbeat = "50ms"
sync = "{sync}"
save_model = true
[link]
delay = "1ms"
bandwidth = "10Gbit"
[[workers]]
count = 2
step = "10ms"
"""
CRASH = '[[events]]\nat = "{at}ms"\nwhat = "crash"\nserver = {server}\n'


def run(sync: str, replicas: int = 0, crash_ms: float | None = None, server: int = 1) -> Run:
    text = JOB.format(sync=sync, replicas=replicas)
    return Run(text if crash_ms is None else text + CRASH.format(at=crash_ms, server=server))


@pytest.mark.parametrize("sync", SYNCS)
def test_a_job_ends_when_its_model_is_on_the_disk(sync: str) -> None:
    done = run(sync)
    (saving,), (saved,), (ended,) = done.lines("saving"), done.lines("saved"), done.lines("ended")
    assert not done.end.failed and ended["at_s"] >= saved["at_s"]
    nbytes = saved["nbytes"]
    assert nbytes >= 40e6
    least_s = nbytes * DISK_NS_PER_BYTE / 1e9
    assert least_s <= saved["at_s"] - saving["at_s"] < 1.5 * least_s


@pytest.mark.guarantee("killed-while-saving", k=(1,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize("after_ms", [1, 20, 40, 60, 79])
def test_a_server_that_dies_meanwhile_is_replaced_by_its_replica(sync: str, after_ms: int) -> None:
    undisturbed = run(sync, replicas=1)
    at_ms = 1000 * undisturbed.lines("saving")[0]["at_s"] + after_ms
    done = run(sync, replicas=1, crash_ms=at_ms)
    assert not done.end.failed, done.end
    assert len(done.lines("saved")) == 1 and len(done.lines("server-lost")) == 1
    assert done.lines("saved")[0]["nbytes"] == undisturbed.lines("saved")[0]["nbytes"]


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_the_loss_of_slices_meanwhile_ends_the_job(sync: str) -> None:
    at_ms = 1000 * run(sync).lines("saving")[0]["at_s"] + 20
    done = run(sync, crash_ms=at_ms)
    assert done.end.failed and done.end.reason.code == "server-died"
    assert not done.lines("saved") and len(done.lines("not-saved")) == 1


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Any]]]:
    """The lead's orders for saving a model. The key of a server leads to the slices that it must
    send, in order. The key "disk" leads to the names of the effects that make the file or end the
    job."""
    orders: dict[str, list[Any]] = defaultdict(list)
    handle = LeadMachine.handle

    def recording(machine: LeadMachine, event: Any, now_ns: int) -> Any:
        effects = handle(machine, event, now_ns)
        for effect in effects:
            if isinstance(effect, fx.Send) and isinstance(effect.message, m.Collect):
                orders[effect.to].extend(effect.message.slices)
            elif isinstance(effect, fx.CreateModel | fx.CommitModel | fx.End):
                orders["disk"].append(type(effect).__name__)
        return effects

    with monkeypatch.context() as patched:
        patched.setattr(LeadMachine, "handle", recording)
        yield orders


def main(worker: Worker) -> None:
    model = torch.nn.Linear(1000, 1000, bias=False)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
    while not worker.stopped:
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step(points=1)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_the_lead_orders_the_same_in_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    text = JOB.format(sync=sync, replicas=0).replace("40MB", "4MB")
    text = text.replace('max_time = "300ms"', "rounds = 3\nslice = '100kB'")
    with recorded(monkeypatch) as simulated:
        staged = Run(text)
    with recorded(monkeypatch) as real:
        options = NodeOptions(check=True, model_dir=tmp_path)
        done = run_inline(staged.simulation.job, main, options=options)
    assert simulated == real
    assert simulated["disk"] == ["CreateModel", "CommitModel", "End"]
    assert sum(len(slices) for to, slices in simulated.items() if to != "disk") >= 40
    (saved,) = [line for line in done.journal if line["what"] == "saved"]
    assert Path(saved["path"]) == tmp_path / "model.safetensors"

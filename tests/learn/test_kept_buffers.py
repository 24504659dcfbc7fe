"""Buffers that are not averaged: a queue keeps its rows of length 1 under every policy, and
`attach(..., buffers=...)` chooses."""

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import UsageError
from polyrhythm.io.memory import MemoryLink
from polyrhythm.learn.models import describe
from polyrhythm.wire.messages import Contribution, JobSpec

ROWS, WIDTH = 12, 4
POLICIES = [
    ("bsp", "gradient"),
    ("bsp", "local"),
    ("ssp:2", "gradient"),
    ("asp", "gradient"),
    ("asp", "local"),
    ("psp", "local"),
    ("fsp", "gradient"),
    ("fsp", "local"),
]
_seeding = threading.Lock()


class Model(nn.Module):
    """A layer with a queue of rows of length 1, and a normalisation layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(ROWS, WIDTH)))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("unsaved", self.queue.clone(), persistent=False)
        self.register_buffer("least", torch.full((2,), math.inf))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        out = self.norm(self.layer(points))
        keys = nn.functional.normalize(out.detach())
        with torch.no_grad():
            for queue in (self.queue, self.unsaved):
                queue[int(self.at) : int(self.at) + len(keys)] = keys
            self.at[0] = (self.at[0] + len(keys)) % ROWS
            self.least[0] = min(float(self.least[0]), float(points.min()))
        return out


def job(sync: str, kind: str, **fields: Any) -> JobSpec:
    given = {"workers": 3, "servers": 2, "heartbeat_s": 20.0, "rounds": 10, "interval": "20ms"}
    timer = {} if sync == "psp" else {"timer": "off"}
    return JobSpec(job="queue", sync=sync, kind=kind, **{**given, **timer, **fields})


Found = dict[str, dict[str, torch.Tensor]]


def training(
    found: Found,
    buffers: Mapping[str, str] | None = None,
    meanwhile: Callable[[Worker, Model], None] = lambda worker, model: None,
) -> Callable[[Worker], None]:
    """A training loop in which every worker has other points, so that the queues differ."""

    def main(worker: Worker) -> None:
        with _seeding:
            torch.manual_seed(0)
            model = Model()
            points = torch.Generator().manual_seed(crc32(worker.name.encode()))
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = worker.attach(model, inner, buffers=buffers)
        while not worker.stopped:
            model(torch.randn(4, WIDTH, generator=points)).square().mean().backward()
            meanwhile(worker, model)
            optimizer.step(points=4)
        found[worker.name] = {name: b.clone() for name, b in model.named_buffers()}

    return main


def lengths(queue: torch.Tensor) -> torch.Tensor:
    return queue.norm(dim=1)


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_a_queue_keeps_its_rows_under_every_policy(
    sync: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also a queue that is not saved. The statistics of the normalisation layer are the same on all
    workers."""
    found: Found = {}
    run_inline(job(sync, kind), training(found), timeout_s=60)
    queues = [each["queue"] for each in found.values()]
    for each in found.values():
        assert torch.allclose(lengths(each["queue"]), torch.ones(ROWS))
        assert torch.equal(each["queue"], each["unsaved"])
        assert 0 <= each["at"][0] < ROWS
        assert torch.equal(each["norm.running_mean"], found["worker-0"]["norm.running_mean"])
        assert each["least"][0] < 0 and each["least"][1] == math.inf
    assert not torch.equal(queues[0], queues[1]) and not torch.equal(queues[1], queues[2])
    said = [line for line in capfd.readouterr().err.splitlines() if "every worker keeps" in line]
    assert len(said) == 1 and "'queue', 'unsaved', 'least' and 'at'" in said[0]
    assert "norm" not in said[0].split("only")[0]


def test_buffers_can_be_averaged_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    found: Found = {}

    def change(worker: Worker, model: Model) -> None:
        model.unsaved += 4.0 if worker.name == "worker-0" else 1.0

    main = training(found, {"unsaved": "mean"}, change)
    run_inline(job("bsp", "gradient"), main, timeout_s=60)
    assert torch.equal(found["worker-0"]["unsaved"], found["worker-1"]["unsaved"])
    assert torch.allclose(lengths(found["worker-1"]["queue"]), torch.ones(ROWS))
    said = capfd.readouterr().err
    assert "averaged over the workers, as attach() says: 'unsaved'" in said


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_every_worker_gets_the_first_ones_values_on_request(sync: str, kind: str) -> None:
    found: Found = {}
    main = training(found, {"queue": "first", "at": "first"})
    run_inline(job(sync, kind), main, timeout_s=60)
    for name in ("queue", "at"):
        here = [found[f"worker-{number}"][name] for number in range(3)]
        assert torch.equal(here[1], here[2])
        # under other policies worker-0 may have made steps that it has not contributed
        assert sync != "bsp" or torch.equal(here[0], here[1])
        assert torch.allclose(lengths(found["worker-2"]["queue"]), torch.ones(ROWS))


def test_only_the_worker_that_evaluates_sends_local_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed: dict[int, int] = {}
    send = MemoryLink.send

    def record(self: MemoryLink, message: Any, *args: Any, **options: Any) -> None:
        if isinstance(message, Contribution) and message.parts is not None:
            changed[message.worker] = changed.get(message.worker, 0) + len(message.parts)
        send(self, message, *args, **options)

    monkeypatch.setattr(MemoryLink, "send", record)
    buffers = {"norm.*": "local", "least": "local"}
    run_inline(job("bsp", "gradient"), training({}, buffers), timeout_s=60)
    assert sorted(changed.values())[:2] == [0, 0] and sum(changed.values()) > 0


def test_a_step_that_is_left_out_leaves_no_trace_in_a_queue() -> None:
    found: Found = {}
    spoilt: list[str] = []

    def spoil(worker: Worker, model: Model) -> None:
        if worker.name not in spoilt:
            spoilt.append(worker.name)
            model.queue[3] = math.nan
            assert model.layer.weight.grad is not None
            model.layer.weight.grad[0, 0] = math.nan

    run_inline(job("bsp", "gradient", on_nan="skip"), training(found, None, spoil), timeout_s=60)
    assert len(spoilt) == 3
    for each in found.values():
        assert torch.allclose(lengths(each["queue"]), torch.ones(ROWS))


# -- what is averaged ------------------------------------------------------------------------------


class OwnNorm(nn.BatchNorm1d):
    """A normalisation layer of a user, with one more statistic."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("running_max", torch.zeros(width))


class Plain(nn.Module):
    """A normalisation layer that does not inherit from those of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_var", torch.ones(3))
        self.register_buffer("other", torch.ones(3))


def shared(model: nn.Module, buffers: Mapping[str, str] | None = None) -> dict[str, str]:
    inner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    spec, _ = describe(model, inner, "gradient", buffers=buffers)
    return {tensor.name: tensor.sharing for tensor in spec.tensors if tensor.group < 0}


def made() -> nn.Sequential:
    lazy = nn.LazyBatchNorm1d()
    lazy(torch.ones(2, 3))
    frozen = nn.Linear(3, 3, bias=False).requires_grad_(False)
    norms = (nn.SyncBatchNorm(3), nn.InstanceNorm1d(3, track_running_stats=True), OwnNorm(3), lazy)
    return nn.Sequential(nn.Linear(3, 3), *norms, Plain(), Model(), frozen)


def test_running_statistics_and_frozen_parameters_are_averaged_and_all_else_is_local() -> None:
    found = shared(made())
    assert {name for name, sharing in found.items() if sharing == "local"} == {
        "5.other", "6.queue", "6.at", "6.unsaved", "6.least",
    }  # fmt: skip
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert {f"{n}.{each}" for n in (1, 2, 3, 4) for each in statistics} <= found.keys()
    assert found["3.running_max"] == found["7.weight"] == "mean"


def test_names_and_patterns_choose_and_the_last_that_matches_counts() -> None:
    found = shared(made(), {"*": "first", "queue": "local", "1.*": "local", "7.weight": "local"})
    local = {name for name, sharing in found.items() if sharing == "local"}
    assert local == {
        "1.running_mean", "1.running_var", "1.num_batches_tracked", "6.queue", "7.weight",
    }  # fmt: skip
    assert set(found.values()) == {"first", "local"}


@pytest.mark.parametrize(
    ("buffers", "words"),
    [
        ({"queu": "local"}, "no such buffer: did you mean 'queue'?"),
        ({"queue": "men"}, "did you mean 'mean'? give 'mean', 'local' or 'first'"),
        ({"queue": None}, "give 'mean', 'local' or 'first'"),
        ({"layer.weight": "mean"}, "a parameter that the optimizer trains, and not a buffer"),
        ({"norm": "local"}, "did you mean 'norm.*'?"),
        ({"xyz": "mean"}, "its buffers are 'queue', 'at', 'unsaved', 'least', 'norm.running_mean'"),
    ],
)
def test_a_wrong_name_or_value_is_refused(buffers: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as error:
        shared(Model(), buffers)
    assert words in str(error.value)

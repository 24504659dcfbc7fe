"""The kind decides what a worker sends and how servers fold it. No other code compares the name of
a kind."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from polyrhythm.core.effects import Build
from polyrhythm.core.placement.slices import Layout
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.server.slice_store import choose_slice_store
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.kinds import KINDS
from polyrhythm.tensors.updater import Stateless, Updater
from polyrhythm.wire.messages import (
    Contribution,
    JobSpec,
    MemberSpec,
    ModelSpec,
    OptimizerSpec,
    Route,
    Seed,
    SliceStep,
    TensorSpec,
)

LENGTH = 16
SPEC = ModelSpec(
    (TensorSpec("weight", (LENGTH,), "float32", 0, (1,)),), OptimizerSpec("SGD", ({"lr": 0.5},))
)


class Largest(Stateless):
    """A kind in which each element of the parameters becomes the largest value that a worker sent
    for it."""

    def add(
        self,
        held: Held,
        incoming: torch.Tensor,
        weight: float,
        parts: tuple[int, ...] | None = None,
    ) -> None:
        held.aggregate.copy_(torch.maximum(held.aggregate, incoming) if held.weight else incoming)

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        for held, place in zip(slices, target, strict=True):
            place.copy_(held.aggregate)


class LargestKind:
    steps_on_servers: ClassVar[bool] = False

    def updater(
        self, layout: Layout, job: JobSpec, spec: ModelSpec, held: Sequence[Held]
    ) -> Updater:
        return Largest()

    def remember(self, model: FlatModel) -> None: ...

    def gather(self, model: FlatModel, points: float) -> None: ...

    def fill(self, model: FlatModel, push: Sequence[torch.Tensor], gathered: float | None) -> None:
        push[0].fill_(7.0)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_new_kind_needs_one_class_and_one_entry(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "largest", LargestKind())
    job = JobSpec(job="j", kind="largest", sync=sync)
    store = choose_slice_store(job)(
        0, Build(SPEC, (Route(0),), 1), job, lambda n: Segment(n, shared=False)
    )
    store.enlist([MemberSpec(0, 1, "anna"), MemberSpec(1, 1, "bert")])
    store.seed(Seed(slice=0, routing=1), as_bytes(torch.zeros(LENGTH)))
    for worker, value in ((0, 3.0), (1, 5.0)):
        part = Contribution(
            worker=worker, incarnation=1, sequence=1, slice=0, slices=1, weight=1.0, rate=0.5
        )
        store.add(part, as_bytes(torch.full((LENGTH,), value)))
    if sync == "bsp":
        store.fold(1, 0, 0)
    assert store.primary.held[0].parameters.tolist() == [5.0] * LENGTH

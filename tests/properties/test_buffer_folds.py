"""Folds of a model's buffers on a server, compared with a simple implementation. Each buffer
changes by the mean of the changes sent for it, and keeps its exact bits if no change was sent."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from polyrhythm.core.effects import Build
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.server.primary import Primary
from polyrhythm.runtime.server.slice_store import choose_slice_store
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    JobSpec,
    MemberSpec,
    Message,
    ModelSpec,
    OptimizerSpec,
    Route,
    Seed,
    TensorSpec,
)

LENGTHS = (3, 20, 1, 7)
SPEC = ModelSpec(
    (
        TensorSpec("weight", (4,), "float32", 0, (1,)),
        *(
            TensorSpec(f"b{number}", (length,), "float32", -1, (1,))
            for number, length in enumerate(LENGTHS)
        ),
    ),
    OptimizerSpec("SGD", ({"lr": 0.5},)),
)
SLICE = 1
"""All buffers are in one slice, after the slice of the parameter."""
WORKERS = 3
changes = st.lists(
    st.dictionaries(st.integers(0, len(LENGTHS) - 1), st.integers(-8, 8).filter(bool)),
    min_size=WORKERS,
    max_size=WORKERS,
)
weights = st.lists(st.integers(1, 5), min_size=WORKERS, max_size=WORKERS)


def begins() -> list[torch.Tensor]:
    """The initial buffers. Some elements are -inf, NaN or -0.0."""
    tensors = [torch.full((length,), 2.0) for length in LENGTHS]
    tensors[1][3] = -math.inf
    tensors[1][4] = math.nan
    tensors[2][0] = -0.0
    return tensors


def as_bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data


class Server:
    """The slice stores of two servers: the primary of all slices (`made`), and its replica
    (`copy`)."""

    def __init__(self, sync: str, spec: ModelSpec = SPEC) -> None:
        routes = (Route(0, (1,)),) * 2
        job = JobSpec(job="j", sync=sync, replicas=1, servers=1)

        def allocate(nbytes: int) -> Segment:
            return Segment(nbytes, shared=False)

        self.copy = choose_slice_store(job)(1, Build(spec, routes, 1), job, allocate)
        self.made = choose_slice_store(job)(
            0, Build(spec, routes, 1), job, allocate, tell=self._tell
        )
        members = [MemberSpec(worker, 1, f"w{worker}") for worker in range(WORKERS)]
        for store in (self.made, self.copy):
            store.enlist(members)
            for slice_ in self.made.primary.slices:
                whole = torch.zeros(slice_.length)
                if slice_.id == SLICE:
                    for (first, end), tensor in zip(slice_.parts, begins(), strict=True):
                        whole[first:end] = tensor
                store.seed(Seed(slice=slice_.id, routing=1), as_bytes(whole))

    def _tell(self, server: int, message: Message, payload: Sequence[object]) -> None:
        assert isinstance(message, Copy)
        data = [memoryview(getattr(part, "memory", part)) for part in payload]
        self.copy.follower.step(message, memoryview(bytes(data[0])) if data else None)

    def give(self, worker: int, sequence: int, changed: dict[int, int], weight: float) -> None:
        for slice_ in self.made.primary.slices:
            parts = tuple(sorted(changed)) if slice_.id == SLICE else None
            data = torch.zeros(slice_.length)
            if parts is not None:
                pieces = [torch.full((LENGTHS[part],), float(changed[part])) for part in parts]
                data = torch.cat([*pieces, torch.empty(0)])
            message = Contribution(
                worker=worker, incarnation=1, sequence=sequence, slice=slice_.id, weight=weight,
                slices=2, rate=0.1, parts=parts,
            )  # fmt: skip
            self.made.add(message, as_bytes(data) if len(data) else memoryview(b""))

    def buffers(self, *, copy: bool = False) -> list[torch.Tensor]:
        primary: Primary = self.made.primary
        whole = primary.held[SLICE].parameters
        if copy:
            whole = self.copy.follower.replicas.export(SLICE)["parameters"]
        return [whole[first:end] for first, end in primary.slices[SLICE].parts]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))


@given(rounds=st.lists(changes, min_size=1, max_size=3), weighs=weights)
@settings(max_examples=60, deadline=None)
def test_with_rounds_a_buffer_moves_by_the_mean_over_the_workers_that_changed_it(
    rounds: list[list[dict[int, int]]], weighs: list[int]
) -> None:
    server, twin = Server("bsp"), begins()
    for number, given_ in enumerate(rounds, 1):
        for worker, changed in enumerate(given_):
            server.give(worker, number, changed, weighs[worker])
        server.made.fold(number, number % 2, 0)
        for part, tensor in enumerate(twin):
            moved = [(c[part], weighs[w]) for w, c in enumerate(given_) if part in c]
            if moved:
                tensor += sum(c * w for c, w in moved) / sum(w for _, w in moved)
    for part, (ours, copied, theirs) in enumerate(
        zip(server.buffers(), server.buffers(copy=True), twin, strict=True)
    ):
        assert torch.allclose(ours, theirs, equal_nan=True, atol=1e-4)
        assert same(ours, copied), "the replica has the same bits"
        if not any(part in changed for given_ in rounds for changed in given_):
            assert same(ours, begins()[part])


@given(steps=st.lists(st.tuples(st.integers(0, WORKERS - 1), changes), max_size=12))
@settings(max_examples=60, deadline=None)
def test_without_rounds_a_change_is_shared_with_the_workers_that_change_the_buffer_too(
    steps: list[tuple[int, list[dict[int, int]]]],
) -> None:
    server, twin = Server("asp"), begins()
    idle: set[tuple[int, int]] = set()
    for sequence, (worker, given_) in enumerate(steps, 1):
        changed = given_[worker]
        server.give(worker, sequence, changed, 2.0)
        for part, tensor in enumerate(twin):
            if part in changed:
                idle.discard((worker, part))
                sharers = sum((other, part) not in idle for other in range(WORKERS))
                tensor += changed[part] / sharers
            else:
                idle.add((worker, part))
    for ours, copied, theirs in zip(server.buffers(), server.buffers(copy=True), twin, strict=True):
        assert torch.allclose(ours, theirs, equal_nan=True, atol=1e-4)
        assert same(ours, copied)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_buffer_that_is_not_averaged_gets_the_value_that_was_sent(sync: str) -> None:
    """Also if it was infinite or NaN before, and together with a buffer that is averaged. The replica
    makes the same steps. A local buffer is not sent to workers that have read it before."""
    weight, *buffers = SPEC.tensors
    kept = [
        structs.replace(tensor, sharing=sharing)
        for tensor, sharing in zip(buffers, ("mean", "local", "first", "mean"), strict=True)
    ]
    server = Server(sync, ModelSpec((weight, *kept), SPEC.optimizer))
    for number, changed in enumerate(({1: 5, 3: 2}, {0: 4, 1: 7}, {2: 1}), 1):
        server.give(0, number, changed, 3.0)
        if sync == "bsp":
            server.made.fold(number, number % 2, 0)
    assert server.made.news_for(0, 1) == {SLICE: (0, 2, 3)}
    mean, local, first, other = server.buffers()
    assert local.tolist() == [7.0] * LENGTHS[1] and first.tolist() == [1.0]
    share = 1.0 if sync == "bsp" else 1 / WORKERS
    assert torch.allclose(mean, torch.full((3,), 2.0 + 4.0 * share))
    assert torch.allclose(other, torch.full((7,), 2.0 + 2.0 * share))
    for ours, copied in zip(server.buffers(), server.buffers(copy=True), strict=True):
        assert same(ours, copied)

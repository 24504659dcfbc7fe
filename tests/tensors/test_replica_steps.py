"""A replica makes exactly the step that its primary made, even if the view or the sender's memory
changes during the step."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from polyrhythm.core.effects import Build
from polyrhythm.core.placement.slices import Slice, lay_out
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.server.primary import Primary
from polyrhythm.runtime.server.slice_store import choose_slice_store
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.kinds import updaters_for
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
    SliceStep,
    TensorSpec,
)

LENGTH = 48
EPOCH = 2
ANNA, BERT, CARL = MemberSpec(0, 1, "anna"), MemberSpec(1, 1, "bert"), MemberSpec(2, 1, "carl")
OPTIMIZERS = {
    "momentum": OptimizerSpec("SGD", ({"lr": 0.1, "momentum": 0.9},)),
    "adam": OptimizerSpec("Adam", ({"lr": 0.1},)),
}
on_arrival = pytest.mark.parametrize("sync", ["asp", "ssp:3"])
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS)


class Pair:
    """One slice with its primary on s0 and its replica on s1. `between` is called after a step was
    forwarded to the replica and before the primary makes it."""

    def __init__(self, optimizer: str, **job: Any) -> None:
        self.between = lambda: None
        spec = ModelSpec(
            (TensorSpec("weight", (LENGTH,), "float32", 0, (1,)),), OPTIMIZERS[optimizer]
        )
        made = JobSpec(job="j", servers=1, replicas=1, **job)
        self.primary, self.replica = (
            choose_slice_store(made)(
                server,
                Build(spec, (Route(0, (1,)),), EPOCH),
                made,
                lambda nbytes: Segment(nbytes, shared=False),
                tell=self._tell,
            )
            for server in (0, 1)
        )
        seed = torch.randn(LENGTH, generator=torch.Generator().manual_seed(1))
        for store in (self.primary, self.replica):
            store.enlist([ANNA, BERT])
            store.seed(Seed(slice=0, routing=EPOCH), as_bytes(seed))

    def _tell(self, server: int, message: Message, payload: Sequence[Any]) -> None:
        assert server == 1 and isinstance(message, Copy)
        (data,) = payload
        self.replica.follower.step(message, data.memory if isinstance(data, Piece) else data)
        self.between()

    def give(self, sequence: int, data: torch.Tensor | None = None) -> None:
        if data is None:
            data = torch.randn(LENGTH, generator=torch.Generator().manual_seed(10 + sequence))
        message = Contribution(
            worker=0,
            incarnation=1,
            sequence=sequence,
            slice=0,
            slices=1,
            weight=3.0,
            rate=0.1 / sequence,
        )
        self.primary.add(message, as_bytes(data))

    def assert_equal(self) -> None:
        theirs = self.primary.primary.export(0)
        mine = self.replica.follower.replicas.export(0)
        assert mine.keys() == theirs.keys() and len(theirs) > 1
        for name, tensor in theirs.items():
            assert torch.equal(mine[name], tensor), name


def as_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())


@pytest.mark.guarantee("replica-equals-primary", k=(1,))
@on_arrival
@optimizers
def test_primary_and_replica_stay_equal_if_the_view_changes_during_a_step(
    sync: str, optimizer: str
) -> None:
    pair = Pair(optimizer, sync=sync)
    views = iter([[ANNA, BERT, CARL], [ANNA], [ANNA, BERT]])
    pair.between = lambda: pair.primary.enlist(next(views))
    for sequence in (1, 2, 3):
        pair.give(sequence)
        pair.assert_equal()


@on_arrival
@optimizers
def test_the_scale_of_a_step_is_that_of_the_view_in_which_it_began(
    sync: str, optimizer: str
) -> None:
    """If the view changes during a step, the new scale applies from the next step on."""
    changed, same = Pair(optimizer, sync=sync), Pair(optimizer, sync=sync)
    changed.between = lambda: changed.primary.enlist([ANNA])
    for pair in (changed, same):
        pair.give(1)
    one, other = (pair.primary.primary.export(0) for pair in (changed, same))
    assert all(torch.equal(one[name], other[name]) for name in other)


@on_arrival
@optimizers
def test_primary_and_replica_stay_equal_if_the_sender_overwrites_its_memory(
    monkeypatch: pytest.MonkeyPatch, sync: str, optimizer: str
) -> None:
    """A worker's segment is shared memory. A worker that was evicted and has rejoined fills its
    buffers again, while a server may still read them."""
    data = torch.ones(LENGTH)
    add = Primary.add

    def add_then_overwrite(*args: Any) -> None:
        add(*args)
        data.fill_(1000.0)

    monkeypatch.setattr(Primary, "add", add_then_overwrite)
    pair = Pair(optimizer, sync=sync)
    pair.give(1, data)
    pair.assert_equal()


def test_a_replica_of_one_slice_of_a_model_with_several_dtypes_makes_the_same_steps() -> None:
    """torch has no fused step for bfloat16, and fused Adam differs from unfused Adam in the last
    bits. A replica may hold one slice of a model, so whether steps are fused is decided for the
    whole model."""
    optimizer = OPTIMIZERS["adam"]
    spec = ModelSpec(
        (
            TensorSpec("weight", (LENGTH,), "float32", 0, (1,)),
            TensorSpec("half", (LENGTH,), "bfloat16", 0, (1,)),
        ),
        optimizer,
    )
    job = JobSpec(job="j")
    layout = lay_out(spec, 1, job.slice_nbytes)
    both, alone = ([held(slice_) for slice_ in layout.slices] for _ in range(2))
    ((whole, _),) = updaters_for(layout, job, spec, both).values()
    apart = [updaters_for(layout, job, spec, [each])[False][0] for each in alone]
    for number in range(5):
        for each in (*both, *alone):
            drawn = torch.Generator().manual_seed(number)
            each.aggregate.copy_(torch.randn(each.slice.length, generator=drawn))
        step = SliceStep(1.0, 0.1)
        whole.fold(both, [each.parameters for each in both], [step, step])
        for updater, each in zip(apart, alone, strict=True):
            updater.fold([each], [each.parameters], [step])
    for one, other in zip(both, alone, strict=True):
        assert torch.equal(one.parameters, other.parameters)


def held(slice_: Slice) -> Held:
    dtype = torch.bfloat16 if slice_.id else torch.float32
    length = slice_.length
    return Held(slice_, torch.ones(length, dtype=dtype), torch.zeros(length, dtype=dtype))


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
@optimizers
def test_a_replica_makes_the_same_share_of_a_step(sync: str, optimizer: str) -> None:
    pair = Pair(optimizer, sync=sync)
    for round_, share in enumerate((1.0, 2 / 3, 1 / 3), 1):
        pair.give(round_)
        pair.primary.fold(round_, 0, 0, share)
        pair.assert_equal()

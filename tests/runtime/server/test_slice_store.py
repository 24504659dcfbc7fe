"""The slice store checks contributions before it adds them, folds slices, and keeps versions
apart."""

from itertools import permutations

import pytest
import torch

from polyrhythm.core.effects import Build
from polyrhythm.core.events import Contributed, Repeated, SliceSeeded
from polyrhythm.errors import LinkError, NotFinite
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.server.slice_store import (
    RoundsSliceStore,
    SliceStore,
    SummedSliceStore,
    choose_slice_store,
)
from polyrhythm.tensors.dtypes import DTYPES
from polyrhythm.wire.messages import (
    Contribution,
    JobSpec,
    MemberSpec,
    ModelSpec,
    OptimizerSpec,
    Parameters,
    Route,
    Seed,
    TensorSpec,
)

SPEC = ModelSpec(
    (
        TensorSpec("weight", (32,), "float32", 0, (1,)),
        TensorSpec("mean", (4,), "float32", -1, (1,)),
        TensorSpec("count", (), "int64", -1, ()),
    ),
    OptimizerSpec("SGD", ({"lr": 0.5},)),
)
ROUTES = (Route(0),) * 4
EPOCH = 2


def make_store(**job: object) -> SliceStore:
    spec = JobSpec(**{"job": "j", "slice_nbytes": 64, **job})
    made = choose_slice_store(spec)(
        0, Build(SPEC, ROUTES, EPOCH), spec, lambda nbytes: Segment(nbytes, shared=False)
    )
    made.enlist([MemberSpec(0, 1, "anna"), MemberSpec(1, 2, "bert")])
    for slice_, held in zip(made.primary.slices, made.primary.held, strict=True):
        data = torch.ones(slice_.length, dtype=held.parameters.dtype)
        seed = Seed(slice=slice_.id, routing=EPOCH)
        assert made.seed(seed, as_bytes(data)) == SliceSeeded(slice_.id, EPOCH)
    return made


def as_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())


def give(
    made: SliceStore,
    slice_: int,
    value: float,
    *,
    worker: int = 0,
    sequence: int = 1,
    **fields: object,
) -> object:
    held = made.primary.held[slice_]
    data = torch.full((held.slice.length,), value).to(held.parameters.dtype)
    message = Contribution(
        **{
            "worker": worker,
            "incarnation": worker + 1,
            "sequence": sequence,
            "round": 1,
            "slice": slice_,
            "weight": 2.0,
            "slices": len(made.primary.slices),
            "rate": 0.5,
            **fields,
        }
    )
    return made.add(message, as_bytes(data))


def give_all(made: SliceStore, value: float, **fields: object) -> object:
    return [give(made, slice_.id, value, **fields) for slice_ in made.primary.slices][-1]


def values(made: SliceStore, slot: int) -> list[float]:
    """Return the first element of every slice of a version."""
    return [tensor[0].item() for tensor in made.primary.slots.at(slot).tensors]


def test_a_dead_seeders_parameters_change_nothing() -> None:
    made = make_store()
    before = values(made, 0)
    data = torch.full((made.primary.slices[0].length,), 100.0)
    assert made.seed(Seed(slice=0, routing=EPOCH - 1), as_bytes(data)) is None
    assert values(made, 0) == before


def test_the_last_slice_completes_a_contribution() -> None:
    made = make_store()
    events = [give(made, slice_.id, 1.0) for slice_ in made.primary.slices]
    assert events[:-1] == [None] * (len(events) - 1)
    assert events[-1] == Contributed(0, 1, 1, 1)


def test_repeated_slices_are_not_added() -> None:
    made = make_store()
    give_all(made, 1.0)
    assert give(made, 0, 100.0) == Repeated(0, 1, 1)
    made.fold(1, 0, 0)
    assert values(made, 0)[0] == 0.5


def test_a_fold_uses_the_updater_of_each_slice() -> None:
    """The updater is an optimizer step for parameters, the mean for floating-point buffers, and the
    maximum for integer buffers."""
    made = make_store()
    give_all(made, 1.0, worker=0, weight=1.0)
    give_all(made, 5.0, worker=1, weight=3.0)
    assert made.fold(1, 0, 0) == 4.0
    assert values(made, 0) == [1 - 0.5 * 4.0, 1 - 0.5 * 4.0, 1 + 4.0, 5]


def test_kind_local_averages_changes() -> None:
    made = make_store(kind="local")
    give_all(made, 1.0, worker=0, weight=1.0)
    give_all(made, 5.0, worker=1, weight=3.0)
    made.fold(1, 0, 0)
    assert values(made, 0) == [5.0, 5.0, 5.0, 5]


@pytest.mark.parametrize(("kind", "found"), [("gradient", 1 - 0.5 * 4.0 / 4), ("local", 1 + 1.0)])
def test_a_share_of_a_step_moves_parameters_by_that_share(kind: str, found: float) -> None:
    made = make_store(kind=kind)
    give_all(made, 4.0, worker=0, weight=1.0)
    made.fold(1, 0, 0, 0.25)
    assert values(made, 0)[:2] == [found, found]


def test_plain_addition_adds() -> None:
    made = make_store(updater="addition")
    give_all(made, 1.0, worker=0)
    give_all(made, 5.0, worker=1)
    made.fold(1, 1, 0)
    assert values(made, 1)[:2] == [7.0, 7.0]


def test_a_fold_into_a_spare_leaves_the_old_version() -> None:
    made = make_store()
    give_all(made, 1.0)
    before = values(made, 0)
    made.fold(1, 1, 1)
    assert values(made, 0) == before
    assert values(made, 1)[0] == 0.5


def test_a_contribution_completed_after_the_fold_is_in_the_next_round() -> None:
    made = make_store()
    give(made, 0, 1.0)
    made.fold(1, 0, 0)
    last = None
    for slice_ in made.primary.slices[1:]:
        last = give(made, slice_.id, 1.0)
    assert last == Contributed(0, 1, 1, 2)


@pytest.mark.parametrize("order", [(7, 3), (3, 7)])
def test_the_rate_of_the_highest_clock_counts(order: tuple[int, int]) -> None:
    made = make_store()
    for sequence in order:
        worker, rate = (0, 0.25) if sequence == 7 else (1, 0.5)
        give(made, 0, 1.0, worker=worker, sequence=sequence, rate=rate)
    made.fold(1, 0, 0)
    assert values(made, 0)[0] == 0.75


def test_slices_are_sent_in_bf16_and_kept_in_float32() -> None:
    made = RoundsSliceStore(
        0,
        Build(SPEC, ROUTES, EPOCH),
        JobSpec(job="j", slice_nbytes=64, wire_dtype="bf16"),
        lambda nbytes: Segment(nbytes, shared=False),
    )
    made.enlist([MemberSpec(0, 1, "anna")])
    data = torch.full((made.primary.slices[0].length,), 1.0, dtype=torch.bfloat16)
    made.seed(Seed(slice=0, routing=EPOCH), as_bytes(data))
    step = torch.full_like(data, 2.0**-9)
    part = Contribution(
        worker=0, incarnation=1, sequence=1, slice=0, weight=1.0, slices=9, rate=1.0
    )
    made.add(part, as_bytes(step))
    made.fold(1, 0, 0)
    assert made.primary.held[0].parameters[0].item() == 1.0 - 2.0**-9
    assert made.primary.slots.at(0).tensors[0].dtype == torch.bfloat16


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused_and_not_added(bad: float) -> None:
    made = make_store()
    with pytest.raises(NotFinite, match="a contribution holds NaN or infinity in slice 0"):
        give(made, 0, bad)
    give(made, 0, 1.0, worker=1)
    made.fold(1, 0, 0)
    assert values(made, 0)[0] == 0.5


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_not_a_positive_number_is_refused(weight: float) -> None:
    with pytest.raises(LinkError, match="must be a positive number"):
        give(make_store(), 0, 1.0, weight=weight)


def test_contributions_of_non_members_are_not_added() -> None:
    """The sender may have been evicted and not know it yet, so the server ignores the contribution
    and keeps the link."""
    made = make_store()
    for slice_ in range(len(made.primary.slices)):
        assert give(made, slice_, 1.0, incarnation=9) is None
    made.fold(1, 0, 0)
    assert values(made, 0)[0] == 1.0, "as it was seeded"


def test_a_slice_of_another_server_or_size_is_refused() -> None:
    made = make_store()
    with pytest.raises(LinkError, match="slice 99, which is not held here"):
        made.add(Contribution(slice=99, slices=1, weight=1.0, routing=EPOCH), memoryview(b"x"))
    with pytest.raises(LinkError, match="1 bytes for slice 0, which has 64"):
        made.add(Contribution(slice=0, slices=1, weight=1.0, routing=EPOCH), memoryview(b"x"))
    unseeded = RoundsSliceStore(
        0,
        Build(SPEC, ROUTES, EPOCH),
        JobSpec(job="j", slice_nbytes=64),
        lambda nbytes: Segment(nbytes, shared=False),
    )
    with pytest.raises(LinkError, match="1 bytes for slice 0"):
        unseeded.seed(Seed(slice=0, routing=EPOCH), memoryview(b"x"))


def test_a_seed_after_seeding_is_refused() -> None:
    made = make_store()
    before = values(made, 0)
    data = torch.full((made.primary.slices[0].length,), 100.0)
    for routing in (EPOCH, EPOCH + 1):
        with pytest.raises(LinkError, match="initial parameters after training had begun"):
            made.seed(Seed(slice=0, routing=routing), as_bytes(data))
    assert values(made, 0) == before


def test_the_first_seed_of_a_slice_counts() -> None:
    """Before training begins, a second seed of the same slice changes nothing, and the server keeps
    the link."""
    made = RoundsSliceStore(
        0,
        Build(SPEC, ROUTES, EPOCH),
        JobSpec(job="j", slice_nbytes=64),
        lambda nbytes: Segment(nbytes, shared=False),
    )
    length = made.primary.slices[0].length
    message = Seed(slice=0, routing=EPOCH)
    assert made.seed(message, as_bytes(torch.ones(length))) == SliceSeeded(0, EPOCH)
    assert made.seed(message, as_bytes(torch.full((length,), 9.0))) is None
    assert values(made, 0)[0] == 1.0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_weight_that_the_dtype_cannot_hold_is_refused(dtype: str) -> None:
    """If the weight were accepted, torch would raise an exception while adding the slice, which
    would end the server."""
    tensor = TensorSpec("weight", (32,), dtype, 0, (1,))
    spec = ModelSpec((tensor,), OptimizerSpec("SGD", ({"lr": 0.5},)))
    made = RoundsSliceStore(
        0,
        Build(spec, (Route(0),), EPOCH),
        JobSpec(job="j"),
        lambda nbytes: Segment(nbytes, shared=False),
    )
    made.enlist([MemberSpec(0, 1, "anna")])
    data = torch.ones(made.primary.slices[0].length, dtype=DTYPES[dtype])
    large = Contribution(slice=0, slices=1, weight=1e39, routing=EPOCH, worker=0, incarnation=1)
    with pytest.raises(LinkError, match="cannot represent"):
        made.add(large, as_bytes(data))


def test_repetitions_are_recognised_by_the_number_of_the_slice() -> None:
    """The server of this test holds slices 1 and 3 of four, at the indices 0 and 1 of its lists."""
    routes = tuple(Route(server) for server in (1, 0, 1, 0))
    job = JobSpec(job="j", slice_nbytes=64)
    made = RoundsSliceStore(
        0, Build(SPEC, routes, EPOCH), job, lambda nbytes: Segment(nbytes, shared=False)
    )
    made.enlist([MemberSpec(0, 1, "anna")])
    parts = [
        Contribution(worker=0, incarnation=1, sequence=1, slice=id_, weight=1.0, slices=2)
        for id_ in made.primary.ids
    ]
    data = [as_bytes(torch.zeros_like(held.parameters)) for held in made.primary.held]
    assert made.primary.ids == (1, 3)
    for part, payload in zip(reversed(parts), reversed(data), strict=True):
        assert not isinstance(made.add(part, payload), Repeated), "it comes for the first time"
    for part, payload in zip(parts, data, strict=True):
        assert made.add(part, payload) == Repeated(0, 1, 1)


@pytest.mark.parametrize("sync", ["asp", "ssp:2"])
def test_each_of_fewer_members_makes_a_larger_step(sync: str) -> None:
    made = make_store(sync=sync)
    give(made, 0, 1.0, sequence=1)
    assert values(made, 0)[0] == 1 - 0.5 / 2
    made.enlist([MemberSpec(0, 1, "anna")])
    give(made, 0, 1.0, sequence=2)
    assert values(made, 0)[0] == 1 - 0.5 / 2 - 0.5


class SentEarly:
    """A link that notes the messages that are sent over it."""

    def __init__(self) -> None:
        self.messages: list[Parameters] = []

    def send(self, message: Parameters, payload: object) -> None:
        self.messages.append(message)


def test_an_early_sum_has_the_round_that_its_own_slice_is_in() -> None:
    """After a failover during a fold, other slices of this server have folded round 1 already."""
    made, link = make_store(optimizer_on="workers", timer="off"), SentEarly()
    assert isinstance(made, SummedSliceStore)
    made.link_over_bytes = lambda worker, incarnation: link  # type: ignore[assignment, return-value]
    made.rules.round = 2
    for worker in (0, 1):
        give(made, 0, 1.0, worker=worker)
    assert [(message.slice, message.round) for message in link.messages] == [(0, 1)] * 2


def test_nothing_is_folded_after_the_freeze() -> None:
    made = make_store(sync="asp")
    give(made, 0, 1.0, sequence=1)
    before = values(made, 0)
    made.freeze()
    assert give(made, 0, 1.0, sequence=2) is None
    assert values(made, 0) == before


def test_slots_of_slow_readers_are_freed() -> None:
    made = make_store(sync="asp")
    readers = range(40)
    for reader in readers:
        made.lease(reader, 1)
        give(made, 0, 1.0, sequence=reader + 1)
    given_back = [segment for reader in readers for segment in made.unlease(reader, 1)]
    assert len(given_back) > len(readers) / 2


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_job_adds_in_the_order_of_the_workers_names(deterministic: bool) -> None:
    """The worker that was admitted last has the first name in alphabetical order. In float32, the
    sum of 1e8, 1 and -1e8 depends on the order of addition."""
    gifts = {0: 1e8, 1: 1.0, 2: -1e8}
    found = set()
    for order in permutations(gifts):
        made = make_store(deterministic=deterministic, timer="off")
        names = {0: "worker-2", 1: "worker-10", 2: "worker-1"}
        made.enlist([MemberSpec(worker, worker + 1, names[worker]) for worker in order])
        for worker in order:
            give_all(made, gifts[worker], worker=worker, weight=1.0)
        assert made.fold(1, 1, 2) == 3.0
        found.add(made.primary.slots.at(1).tensors[0][0].item())
    assert (len(found) == 1) == deterministic, found
    in_order = (torch.tensor(-1e8) + torch.tensor(1e8) + torch.tensor(1.0)).item()
    assert any(value == pytest.approx(1.0 - 0.5 * in_order / 3) for value in found)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_copy_of_a_cut_restored_elsewhere_folds_on_as_the_original_does(
    monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """The copy holds the parameters and the optimizer state of every slice, as of the last fold."""
    adam = OptimizerSpec("Adam", ({"lr": 0.5, "betas": [0.9, 0.99]},))
    monkeypatch.setitem(globals(), "SPEC", ModelSpec(SPEC.tensors, adam))
    original, other = make_store(sync=sync), make_store(sync=sync)

    def step(made: SliceStore, value: float, number: int) -> None:
        give_all(made, value, sequence=number)
        if sync == "bsp":
            made.fold(number, 0, 0)

    step(original, 3.0, 1)
    step(original, -2.0, 2)
    copies, torn = original.copied()
    assert torn == 0 and sorted(copies) == [slice_.id for slice_ in original.kept]
    for slice_, state in copies.items():
        other.restore(slice_, state)
    step(original, 1.0, 3)
    step(other, 1.0, 3)
    for mine, theirs in zip(original.primary.held, other.primary.held, strict=True):
        assert torch.equal(mine.parameters, theirs.parameters)


def test_a_copy_is_not_changed_by_later_folds_and_counts_torn_contributions() -> None:
    made = make_store()
    give_all(made, 3.0)
    give(made, 0, 5.0, worker=1)  # only one slice of this contribution arrives before the fold
    made.fold(1, 0, 0)
    copies, torn = made.copied()
    before = {id_: state["parameters"].clone() for id_, state in copies.items()}
    give_all(made, 1.0, sequence=2)
    made.fold(2, 0, 0)
    assert torn == 1
    assert all(torch.equal(copies[id_]["parameters"], value) for id_, value in before.items())

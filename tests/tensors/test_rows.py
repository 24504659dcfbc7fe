"""Rows of a tensor: how slices are cut, which payloads a server takes, and how rows are folded."""

from typing import Any

import pytest
import torch

from polyrhythm.core.effects import Build
from polyrhythm.core.placement.slices import Slice, lay_out
from polyrhythm.errors import LinkError, UsageError
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.server.slice_store import choose_slice_store
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.kinds import KINDS
from polyrhythm.tensors.optimizers import check_rows
from polyrhythm.tensors.rows import (
    ABSENT,
    Rows,
    add_rows,
    read_rows,
    rows_nbytes,
    sent_rows,
    write_rows,
)
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    JobSpec,
    MemberSpec,
    ModelSpec,
    OptimizerSpec,
    Route,
    Seed,
    TensorSpec,
)

WIDTH, COUNT = 4, 11
SLICE = Slice(0, 0, 0, 0, 48, ((0, COUNT * WIDTH),), WIDTH)
OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.1},
    "SparseAdam": {"lr": 0.1},
}
optimizers = pytest.mark.parametrize("name", OPTIONS)


def spec_of(name: str, *tensors: TensorSpec) -> ModelSpec:
    kind = "SGD" if name == "momentum" else name
    return ModelSpec(tensors or (table(),), OptimizerSpec(kind, (OPTIONS[name],)))


def table(name: str = "table", rows: int = COUNT, width: int = WIDTH) -> TensorSpec:
    return TensorSpec(name, (rows, width), "float32", 0, (width, 1), True)


# -- slices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 16, 50])
def test_a_table_has_slices_of_its_own_which_are_cut_between_rows(width: int) -> None:
    dense = TensorSpec("dense", (40,), "float32", 0, (1,))
    tensors = (dense, table("table", 1_000, width), TensorSpec("last", (7,), "float32", 0, (1,)))
    layout = lay_out(spec_of("SGD", *tensors), 2, 8_192)
    place = layout.places[1]
    cut = [slice_ for slice_ in layout.slices if slice_.width]
    assert len(cut) > 1 or width == 1
    assert sum(slice_.rows for slice_ in cut) == 1_000
    for slice_ in cut:
        assert slice_.width == width and len(slice_.parts) == 1 and slice_.parts[0][0] == 0
        assert (slice_.offset - place.offset) % width == 0 and slice_.offset % 16 == 0
        assert slice_.length * 4 <= 8_192
    offsets = [slice_.offset for slice_ in layout.slices]
    ends = [slice_.offset + slice_.length for slice_ in layout.slices]
    assert offsets == [0, *ends[:-1]], "the slices cover the space without gaps"
    whole = lay_out(
        ModelSpec(tuple(msg_without_rows(t) for t in tensors), spec_of("SGD").optimizer), 2, 8_192
    )
    assert [p.offset for p in whole.places] == [p.offset for p in layout.places]


def msg_without_rows(tensor: TensorSpec) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.shape, tensor.dtype, tensor.group, tensor.strides)


@pytest.mark.parametrize("shape", [(), (0, 4), (5, 0), (3, 1_000_003)])
def test_a_tensor_that_cannot_be_cut_between_rows_is_an_ordinary_one(shape: tuple) -> None:
    odd = TensorSpec("odd", shape, "float32", 0, (1,) * len(shape), True)
    layout = lay_out(spec_of("SparseAdam", odd, table()), 1, 4_096)
    assert [
        slice_.width
        for slice_ in layout.slices
        if slice_.parts and slice_.parts[0][1] == COUNT * WIDTH
    ] == [WIDTH]
    if shape and 0 not in shape:
        with pytest.raises(UsageError, match="SparseAdam needs gradients of rows"):
            check_rows(spec_of("SparseAdam", odd), layout)


@pytest.mark.parametrize("gathered", [False, True])
def test_a_row_whose_gradient_is_minus_zero_counts_as_sent(gathered: bool) -> None:
    """A row that no worker has sent is -0.0 in the aggregate. As in torch, the optimizer makes a
    step with every row that the gradient contains."""
    tensor = torch.zeros(COUNT, WIDTH, requires_grad=True)
    layout = lay_out(spec_of("SparseAdam"), 1, 4096)
    (slice_,) = layout.slices
    flat = FlatModel(layout, [tensor], "same")
    memory, push = flat.push_buffers(lambda nbytes: memoryview(bytearray(nbytes)))
    values = torch.stack([torch.full((WIDTH,), -0.0), torch.ones(WIDTH)])
    tensor.grad = torch.sparse_coo_tensor(torch.tensor([[2, 5]]), values, tensor.shape)
    if gathered:
        KINDS["gradient"].gather(flat, 3.0)
        flat.fill_gathered(push, 3.0)
    else:
        flat.fill_gradients(push)
    assert flat.indices == {slice_.id: 2}
    data = memory[slice_.space][: rows_nbytes(slice_, 2, torch.float32.itemsize)]
    held = Held(slice_, torch.zeros(slice_.length), torch.zeros(slice_.length))
    add_rows(held, read_rows(slice_, data, 2, torch.float32), 3.0)
    assert sent_rows(slice_, held.aggregate).tolist() == [2, 5]


class Gathering:
    """Gathers gradients of one table, and says what a contribution would contain."""

    def __init__(self) -> None:
        self._tensor = torch.zeros(COUNT, WIDTH, requires_grad=True)
        layout = lay_out(spec_of("SGD"), 1, 4096)
        (self._slice,) = layout.slices
        self._flat = FlatModel(layout, [self._tensor], "same")
        self._memory, self._push = self._flat.push_buffers(lambda n: memoryview(bytearray(n)))

    def gather(self, points: float, rows: dict[int, float] | float) -> None:
        """Gather a gradient: a number for each of some rows, or one for all rows."""
        if isinstance(rows, dict):
            values = torch.tensor([[value] * WIDTH for value in rows.values()])
            shape = self._tensor.shape
            self._tensor.grad = torch.sparse_coo_tensor(torch.tensor([list(rows)]), values, shape)
        else:
            self._tensor.grad = torch.full_like(self._tensor, rows)
        KINDS["gradient"].gather(self._flat, points)
        self._tensor.grad = None

    def fill(self, points: float) -> dict[int, float]:
        """End a contribution of so many points. Returns the value of each row that it contains."""
        self._flat.fill_gathered(self._push, points)
        held = Held(self._slice, torch.zeros(COUNT * WIDTH), torch.zeros(self._slice.length))
        if (count := self._flat.indices.get(self._slice.id)) is not None:
            nbytes = rows_nbytes(self._slice, count, torch.float32.itemsize)
            data = self._memory[self._slice.space][:nbytes]
            add_rows(held, read_rows(self._slice, data, count, torch.float32), 1.0)
            found = held.aggregate
        else:
            found = self._push[self._slice.space][: self._slice.length]
        table = found[: COUNT * WIDTH].view(COUNT, WIDTH)
        return {row: float(table[row, 0]) for row in sent_rows(self._slice, found).tolist()}


def test_the_rows_of_one_contribution_are_not_in_the_next_one() -> None:
    gathering = Gathering()
    gathering.gather(2.0, {1: 1.0, 4: 3.0})
    gathering.gather(2.0, {4: 5.0})
    assert gathering.fill(4.0) == {1: 0.5, 4: 4.0}
    gathering.gather(1.0, {4: 7.0, 6: 9.0})
    assert gathering.fill(1.0) == {4: 7.0, 6: 9.0}


def test_a_gradient_of_all_rows_counts_beside_gradients_of_some() -> None:
    """One batch used the table as a whole, for example in a penalty."""
    gathering = Gathering()
    gathering.gather(1.0, {1: 4.0})
    gathering.gather(3.0, 2.0)
    assert gathering.fill(4.0) == {row: 2.5 if row == 1 else 1.5 for row in range(COUNT)}
    gathering.gather(1.0, {3: 8.0})
    assert gathering.fill(1.0) == {3: 8.0}


def test_rows_without_a_gradient_are_not_sent_with_a_slice_that_is_shorter_as_a_whole() -> None:
    tensor = torch.zeros(COUNT, WIDTH, requires_grad=True)
    layout = lay_out(spec_of("SparseAdam"), 1, 4096)
    (slice_,) = layout.slices
    flat = FlatModel(layout, [tensor], "same")
    _, push = flat.push_buffers(lambda nbytes: memoryview(bytearray(nbytes)))
    rows = [row for row in range(COUNT) if row != 3]
    values = torch.ones(len(rows), WIDTH)
    tensor.grad = torch.sparse_coo_tensor(torch.tensor([rows]), values, tensor.shape)
    flat.fill_gradients(push)
    assert flat.indices == {}, "the numbers of the rows would need more bytes than one row"
    assert sent_rows(slice_, push[slice_.space][: slice_.length]).tolist() == rows


# -- payloads ----------------------------------------------------------------------------------


def payload(indices: list[int], values: torch.Tensor | None = None) -> memoryview:
    if values is None:
        values = torch.ones(len(indices), WIDTH)
    memory = torch.zeros(len(indices) * 8 + values.numel() * 4, dtype=torch.uint8)
    write_rows(memory, torch.tensor(indices, dtype=torch.int64), values)
    return memory.numpy().data


def test_rows_are_read_as_they_were_written() -> None:
    values = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
    rows = read_rows(SLICE, payload([0, 4, 10], values), 3, torch.float32)
    assert rows.indices.tolist() == [0, 4, 10] and torch.equal(rows.values, values)
    assert not read_rows(SLICE, memoryview(b""), ABSENT, torch.float32).present
    assert read_rows(SLICE, memoryview(b""), 0, torch.float32).present


@pytest.mark.parametrize(
    ("indices", "count"),
    [
        ([-1, 3], 2),
        ([3, COUNT], 2),
        ([0, 2**62], 2),
        ([4, 4], 2),
        ([5, 4], 2),
        ([1, 2], 1),
        ([1, 2], 3),
        ([1, 2], ABSENT),
        ([1, 2], 0),
        ([1, 2], 2**53),
    ],
)
def test_a_payload_that_is_not_rows_of_the_slice_is_refused(indices: list[int], count: int) -> None:
    with pytest.raises(LinkError, match=r"the peer sent .*rows of slice 0"):
        read_rows(SLICE, payload(indices), count, torch.float32)


def test_rows_of_a_slice_without_rows_are_refused() -> None:
    plain = Slice(7, 0, 0, 0, 80, ((0, 80),))
    with pytest.raises(LinkError, match="slice 7, which does not consist of rows"):
        read_rows(plain, payload([1]), 1, torch.float32)


# -- folds -------------------------------------------------------------------------------------


class Stores:
    """A table with its primary on s0 and its replica on s1."""

    def __init__(self, name: str, **job: Any) -> None:
        made = JobSpec(job="j", servers=1, **{"replicas": 1, **job})
        route = Route(0, (1,) if made.replicas else ())
        self.primary, self.replica = (
            choose_slice_store(made)(
                server,
                Build(spec_of(name), (route,), 1),
                made,
                lambda nbytes: Segment(nbytes, shared=False),
                tell=self._tell,
            )
            for server in (0, 1)
        )
        self.start = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(1))
        length = self.primary.primary.held[0].slice.length
        seed = torch.zeros(length)
        seed[: COUNT * WIDTH] = self.start.view(-1)
        for store in (self.primary, self.replica) if made.replicas else (self.primary,):
            store.enlist([MemberSpec(0, 1, "w0"), MemberSpec(1, 1, "w1")])
            store.seed(Seed(slice=0, routing=1), seed.view(torch.uint8).numpy().data)
        self.rounds = 0

    def _tell(self, server: int, message: Any, given: Any) -> None:
        assert isinstance(message, Copy)
        data = [each.memory if isinstance(each, Piece) else each for each in given]
        self.replica.follower.step(message, data[0] if data else None)

    def give(
        self, worker: int, sequence: int, rows: Rows | torch.Tensor | None, weight: float
    ) -> None:
        """`rows`: the rows of a contribution, or the whole table; None if there is no gradient."""
        count: int | None = None
        data = memoryview(b"")
        if rows is None:
            count = ABSENT
        elif isinstance(rows, Rows):
            count = len(rows.indices)
            data = payload(rows.indices.tolist(), rows.values) if count else data
        else:
            whole = torch.zeros(self.primary.primary.held[0].slice.length)
            whole[: COUNT * WIDTH] = rows.view(-1)
            data = whole.view(torch.uint8).numpy().data
        message = Contribution(
            worker=worker,
            incarnation=1,
            sequence=sequence,
            slice=0,
            slices=1,
            weight=weight,
            rate=0.1,
            indices=count,
        )
        self.primary.add(message, data)

    def fold(self) -> None:
        self.rounds += 1
        self.primary.fold(self.rounds, self.rounds % 2, 0)

    @property
    def table(self) -> torch.Tensor:
        return self.primary.primary.held[0].parameters[: COUNT * WIDTH].view(COUNT, WIDTH)

    def assert_equal(self) -> None:
        theirs = self.primary.primary.export(0)
        mine = self.replica.follower.replicas.export(0)
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert torch.equal(mine[name], tensor), name


def torch_optimizer(name: str, parameter: torch.nn.Parameter, scale: float = 1.0) -> Any:
    kind = getattr(torch.optim, "SGD" if name == "momentum" else name)
    return kind([parameter], **{**OPTIONS[name], "lr": OPTIONS[name]["lr"] * scale})


def rows_for(step: int, worker: int) -> Rows | None:
    """The rows of a contribution; in some steps there are none, or there is no gradient."""
    generator = torch.Generator().manual_seed(100 * step + worker)
    if step == 3:
        return None
    count = 0 if step == 2 else 4
    indices = torch.randperm(COUNT, generator=generator)[:count].sort().values
    return Rows(indices, torch.randn(count, WIDTH, generator=generator))


def sparse(rows: Rows, factor: float) -> torch.Tensor:
    size = (COUNT, WIDTH)
    return torch.sparse_coo_tensor(
        rows.indices.view(1, -1), rows.values * factor, size, check_invariants=False
    )


@optimizers
@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_round_folds_the_weighted_mean_of_rows_as_torch_does(
    name: str, replicas: int, deterministic: bool
) -> None:
    stores = Stores(name, replicas=replicas, deterministic=deterministic)
    parameter = torch.nn.Parameter(stores.start.clone())
    optimizer = torch_optimizer(name, parameter)
    for step in range(1, 7):
        given = [(rows_for(step, worker), weight) for worker, weight in ((0, 3.0), (1, 1.0))]
        for worker, (rows, weight) in enumerate(given):
            stores.give(worker, step, rows, weight)
        stores.fold()
        parts = [sparse(rows, weight / 4) for rows, weight in given if rows is not None]
        parameter.grad = sum(parts[1:], parts[0]) if parts else None
        optimizer.step()
        torch.testing.assert_close(stores.table, parameter.detach())
        if replicas:
            stores.assert_equal()


@optimizers
def test_without_rounds_every_contribution_is_a_step_as_torch_makes_it(name: str) -> None:
    stores = Stores(name, sync="asp", async_momentum="contribution", async_scale="members")
    parameter = torch.nn.Parameter(stores.start.clone())
    optimizer = torch_optimizer(name, parameter, scale=0.5)  # two members
    for step in range(1, 7):
        rows = rows_for(step, 0)
        stores.give(0, step, rows, 3.0)
        parameter.grad = None if rows is None else sparse(rows, 1.0)
        optimizer.step()
        torch.testing.assert_close(stores.table, parameter.detach())
        stores.assert_equal()


@optimizers
def test_rows_and_whole_gradients_may_be_mixed(name: str) -> None:
    stores = Stores(name)
    parameter = torch.nn.Parameter(stores.start.clone())
    optimizer = torch_optimizer(name, parameter)
    for step in (1, 4, 5):
        rows = rows_for(step, 0)
        assert rows is not None
        whole = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(step))
        for worker, given in enumerate((rows, whole) if step != 4 else (whole, rows)):
            stores.give(worker, step, given, 1.0)
        stores.fold()
        mean = (sparse(rows, 1.0).to_dense() + whole) / 2
        parameter.grad = mean.to_sparse(1) if name == "SparseAdam" else mean
        optimizer.step()
        torch.testing.assert_close(stores.table, parameter.detach())
        stores.assert_equal()


@optimizers
def test_rows_that_no_worker_sends_keep_their_bits_and_their_state(name: str) -> None:
    stores = Stores(name)
    for step in range(1, 4):
        rows = Rows(torch.tensor([2, 5]), torch.ones(2, WIDTH))
        stores.give(0, step, rows, 1.0)
        stores.fold()
    others = [row for row in range(COUNT) if row not in (2, 5)]
    assert torch.equal(stores.table[others], stores.start[others])
    assert not torch.equal(stores.table[[2, 5]], stores.start[[2, 5]])
    for key, tensor in stores.primary.primary.export(0).items():
        if tensor.dim() and key != "parameters":
            assert not bool(tensor[: COUNT * WIDTH].view(COUNT, WIDTH)[others].any()), key


@optimizers
def test_a_refused_contribution_changes_nothing(name: str) -> None:
    stores = Stores(name, replicas=0)
    stores.give(0, 1, Rows(torch.tensor([1]), torch.ones(1, WIDTH)), 1.0)
    head = {"worker": 1, "incarnation": 1, "sequence": 1, "slice": 0, "slices": 1, "weight": 1.0}
    bad = [
        (Contribution(**head, indices=2), payload([3, 3])),
        (Contribution(**head, indices=2), payload([9, 11])),
        (Contribution(**head, indices=1), payload([2, 3])),
        (Contribution(**head, indices=1, parts=(0,)), payload([2])),
    ]
    for message, data in bad:
        with pytest.raises(LinkError):
            stores.primary.add(message, data)
    stores.fold()
    expected = Stores(name, replicas=0)
    expected.give(0, 1, Rows(torch.tensor([1]), torch.ones(1, WIDTH)), 1.0)
    expected.fold()
    assert torch.equal(stores.table, expected.table)


@optimizers
def test_the_state_of_a_table_continues_in_another_server(name: str) -> None:
    one, other = Stores(name, replicas=0), Stores(name, replicas=0)
    for step in (1, 2, 4):
        one.give(0, step, rows_for(step, 0), 2.0)
        one.fold()
    copied, _ = one.primary.copied()
    other.primary.restore(0, copied[0])
    other.rounds = one.rounds
    for step in (5, 6):
        for stores in (one, other):
            stores.give(0, step, rows_for(step, 1), 2.0)
            stores.fold()
    assert torch.equal(one.table, other.table)


# -- changes (kind local) ----------------------------------------------------------------------


def changes_of(*rows: int) -> torch.Tensor:
    change = torch.zeros(COUNT, WIDTH)
    change[list(rows), 1:] = torch.randn(
        len(rows), WIDTH - 1, generator=torch.Generator().manual_seed(len(rows))
    )
    return change


@pytest.mark.parametrize("outer", ["off", "sgd:lr=0.5", "sgd:lr=1,momentum=0.5"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_row_changes_by_the_mean_over_the_workers_that_changed_it(
    outer: str, deterministic: bool, replicas: int
) -> None:
    job = {"kind": "local", "outer": outer, "deterministic": deterministic, "replicas": replicas}
    stores = Stores("SparseAdam", **job)
    one, other = changes_of(0, 2, 5), changes_of(2, 9)
    velocity, expected = torch.zeros(COUNT, WIDTH), stores.start.clone()
    for step in (1, 2):
        stores.give(0, step, one, 3.0)
        stores.give(1, step, other, 1.0)
        stores.fold()
        mean = one + other
        mean[2] = (3 * one[2] + other[2]) / 4
        velocity = velocity * (0.5 if "momentum" in outer else 0) + mean
        expected += velocity * (0.5 if "0.5" in outer and "momentum" not in outer else 1)
        torch.testing.assert_close(stores.table, expected)
        if replicas:
            stores.assert_equal()
    untouched = [1, 3, 4, 6, 7, 8, 10]
    assert torch.equal(stores.table[untouched], stores.start[untouched])


def test_without_rounds_every_change_has_its_share_of_the_members() -> None:
    stores = Stores("SparseAdam", kind="local", sync="asp")
    stores.give(0, 1, changes_of(2, 5), 3.0)
    torch.testing.assert_close(stores.table, stores.start + changes_of(2, 5) / 2)
    stores.assert_equal()


@pytest.mark.parametrize("outer", ["off", "nesterov:lr=0.7,momentum=0.9"])
def test_servers_take_no_single_rows_of_changes(outer: str) -> None:
    stores = Stores("SparseAdam", kind="local", outer=outer)
    with pytest.raises(LinkError, match="accepts no rows"):
        stores.give(0, 1, Rows(torch.tensor([1]), torch.ones(1, WIDTH)), 1.0)

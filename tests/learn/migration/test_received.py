"""Received points are in batches together with the worker's own points, and are dropped when a
lease no longer has them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from polyrhythm.errors import LinkError
from polyrhythm.learn.loading import rows_of
from polyrhythm.learn.migration.layout import Column, Packed, pack, pack_columns
from polyrhythm.learn.migration.received import Fetcher, ReceivedPoints
from polyrhythm.learn.points import Indices
from polyrhythm.wire.messages import ChunkPart


def part(packed: Packed, number: int, points: int, offset: int, count: int) -> ChunkPart:
    return ChunkPart(
        chunk=7,
        number=number,
        points=points,
        offset=offset,
        count=count,
        structure=packed.structure,
        columns=packed.specs,
    )


def receive(received: ReceivedPoints, parts: list[list[Any]], number: int = 1) -> int | None:
    """Receive chunk 7 in parts. Each part is a list of points, or has columns."""
    total, offset, found = sum(map(len, parts)), 0, None
    for points in parts:
        packed = pack(points)
        message = part(packed, number, total, offset, len(points))
        found = received.add(message, memoryview(b"".join(packed.buffers())))
        offset += len(points)
    return found


def test_a_chunk_is_there_when_all_its_parts_have_arrived() -> None:
    received = ReceivedPoints()
    first = pack([torch.zeros(2)])
    data = memoryview(b"".join(first.buffers()))
    assert received.add(part(first, 1, 2, 0, 1), data) is None
    assert 7 not in received
    assert received.add(part(first, 1, 2, 1, 1), data) == 16
    assert 7 in received


def test_parts_out_of_order_are_refused() -> None:
    received = ReceivedPoints()
    packed = pack([torch.zeros(2)])
    data = memoryview(b"".join(packed.buffers()))
    with pytest.raises(LinkError, match="out of order"):
        received.add(part(packed, 1, 3, 1, 1), data)
    received.add(part(packed, 1, 3, 0, 1), data)
    with pytest.raises(LinkError, match="out of order"):
        received.add(part(packed, 1, 3, 2, 1), data)


def test_further_parts_of_a_delivery_that_was_dropped_are_ignored() -> None:
    """A move was given up, and this worker has its new lease earlier than the worker that sends the
    points. The link between the two is still needed for other chunks."""
    received = ReceivedPoints()
    packed = pack([torch.zeros(2)])
    data = memoryview(b"".join(packed.buffers()))
    received.add(part(packed, 1, 3, 0, 1), data)
    received.keep(set(), delivery=1)
    for offset in (1, 2):
        assert received.add(part(packed, 1, 3, offset, 1), data) is None
    assert 7 not in received
    assert receive(received, [[1, 2]], number=2) == 16


def test_a_delivery_that_begins_again_replaces_what_had_come() -> None:
    received = ReceivedPoints()
    packed = pack([5])
    data = memoryview(b"".join(packed.buffers()))
    received.add(part(packed, 1, 2, 0, 1), data)
    assert receive(received, [[1, 2]], number=1) == 16
    rows = received.rows(7, 0, 2)
    assert rows.columns[0].tolist() == [1, 2]


def test_chunks_that_no_lease_needs_are_dropped_unless_they_came_later() -> None:
    received = ReceivedPoints()
    receive(received, [[1, 2]], number=3)
    received.keep({7}, delivery=9)
    received.keep(set(), delivery=2)
    assert 7 in received
    received.keep(set(), delivery=3)
    assert 7 not in received


def fetcher(
    received: ReceivedPoints, *, columns: bool, arrays: Sequence[Column] | None = None
) -> Fetcher:
    """A data set with the worker's own points 0 to 9. The value of a point is its number. Other points
    cannot be read."""

    def native(indices: Indices) -> Any:
        assert all(index < 10 for index in indices)
        values = torch.from_numpy(indices).to(torch.float32)
        return (values, values.to(torch.int64)) if columns else values.tolist()

    def sample(index: int) -> float:
        assert index < 10
        return float(index)

    return Fetcher(received, native, sample, list, 10, columns=columns, arrays=arrays)


def test_received_points_are_served_beside_own_points() -> None:
    received = ReceivedPoints()
    receive(received, [[100.0, 101.0], [102.0]])
    fetch = fetcher(received, columns=False)
    assert fetch(np.array([3, 4])) == [3.0, 4.0]
    assert fetch.take([(6, np.arange(10)), (7, np.array([50, 51, 52]))])
    assert fetch(np.array([3, 52, 50, 4])) == [3.0, 102.0, 100.0, 4.0]
    assert not fetch.take([(7, np.array([50, 51, 52]))]), "nothing has changed"
    assert fetch.take([(6, np.arange(10))])
    assert fetch(np.array([3])) == [3.0]


OWN = (np.arange(10, dtype=np.float32), np.arange(10))
"""The worker's own points as arrays."""


@pytest.mark.parametrize("arrays", [None, OWN], ids=["read", "in-memory"])
def test_received_columns_are_served_beside_own_columns(arrays: Sequence[Column] | None) -> None:
    received = ReceivedPoints()
    packed = pack_columns((torch.tensor([50.5, 51.5]), torch.tensor([50, 51])))
    received.add(part(packed, 1, 2, 0, 2), memoryview(b"".join(packed.buffers())))
    fetch = fetcher(received, columns=True, arrays=arrays)
    fetch.take([(7, np.array([50, 51]))])
    alternating = [1, 51, 2, 50, 3, 51, 4, 50, 5, 51, 6, 50]
    for indices, x, among in [
        ([51, 2, 50], [51.5, 2.0, 50.5], {6, 7}),
        ([51, 50], [51.5, 50.5], {7}),
        ([1, 2], [1.0, 2.0], {6}),
        ([1, 2], [1.0, 2.0], {6, 7}),
        (alternating, [index + 0.5 * (index > 10) for index in alternating], {6, 7}),
    ]:
        check(fetch(np.array(indices)), indices, x)
        check(fetch(np.array(indices), among), indices, x)


def test_rows_of_several_columns_are_put_together_from_arrays() -> None:
    """A batch shares no memory with the data set or with the received points."""
    received = ReceivedPoints()
    own = torch.arange(20.0).reshape(10, 2)
    packed = pack_columns((torch.tensor([[50.0, 50.5], [51.0, 51.5]]),))
    received.add(part(packed, 1, 2, 0, 2), memoryview(b"".join(packed.buffers())))
    fetch = Fetcher(
        received, rows_of((own,)), own.__getitem__, list, 10, columns=True, arrays=[own.numpy()]
    )
    fetch.take([(7, np.array([3, 4]))])
    for _ in range(2):
        (found,) = fetch(np.array([4, 3, 9]), [7, 8])
        assert found.tolist() == [[51.0, 51.5], [50.0, 50.5], [18.0, 19.0]]
        found[:] = 0.0
        (alone,) = fetch(np.array([4]), [7])
        assert alone.tolist() == [[51.0, 51.5]]
        alone[:] = 0.0
    assert own.tolist() == torch.arange(20.0).reshape(10, 2).tolist()


def test_parts_of_a_batch_are_taken_without_looking_at_every_point() -> None:
    """Chunks 5 and 6 are the worker's own; chunks 7 and 8 were received."""
    received, own = ReceivedPoints(), torch.arange(20.0).reshape(10, 2)
    for chunk in (7, 8):
        packed = pack_columns((torch.full((2, 2), 10.0 * chunk) + torch.arange(2)[:, None],))
        message = msgspec.structs.replace(part(packed, 1, 2, 0, 2), chunk=chunk)
        received.add(message, memoryview(b"".join(packed.buffers())))
    fetch = Fetcher(
        received, rows_of((own,)), own.__getitem__, list, 10, columns=True, arrays=[own.numpy()]
    )
    fetch.take([(7, np.array([3, 4])), (8, np.array([50, 51]))])
    for indices, parts, expected in [
        ([4, 3], [(7, 2)], [71, 70]),
        ([9, 4, 3, 51], [(5, 1), (7, 2), (8, 1)], [18, 71, 70, 81]),
        ([50, 1, 9], [(8, 1), (5, 1), (6, 1)], [80, 2, 18]),
        ([9, 8], [(5, 1), (6, 1)], [18, 16]),
    ]:
        among = [chunk for chunk, _ in parts]
        for told in (parts, None):
            (found,) = fetch(np.array(indices), among, told)
            assert found[:, 0].tolist() == expected
    with pytest.raises(IndexError):
        fetch(np.array([3, 40]), [7, 6], [(7, 1), (6, 1)])


def test_every_lease_serves_the_points_of_its_own_received_chunks() -> None:
    """From one lease to the next chunks arrive, leave and come back, and the points of a chunk may
    get other numbers."""
    rng = np.random.default_rng(5)
    received, own = ReceivedPoints(), np.arange(30.0)
    native = rows_of((torch.from_numpy(own),))
    fetch = Fetcher(received, native, own.item, list, 30, columns=True, arrays=[own])
    for chunk in range(6):
        packed = pack_columns((torch.arange(5.0) + 100 * (chunk + 1),))
        message = msgspec.structs.replace(part(packed, 1, 5, 0, 5), chunk=chunk)
        received.add(message, memoryview(b"".join(packed.buffers())))
    for _ in range(50):
        leased = rng.choice(6, size=rng.integers(0, 5), replace=False).tolist()
        # received points may have the same numbers as the worker's own points, or higher numbers
        later = 15 * int(rng.integers(0, 2))
        numbers = {chunk: np.arange(5) + 5 * chunk + later for chunk in leased}
        expected = {int(each): own[each] for each in range(30)}
        for chunk, points in numbers.items():
            expected.update(zip(points.tolist(), np.arange(5.0) + 100 * (chunk + 1), strict=True))
        fetch.take(numbers.items())
        indices = rng.permutation(sorted(expected))
        (found,) = fetch(indices)
        assert found.tolist() == [expected[index] for index in indices.tolist()]


def test_received_columns_of_another_type_are_served_too() -> None:
    """The data sets of two workers may have different dtypes. numpy then chooses the dtype of the
    batch."""
    received = ReceivedPoints()
    packed = pack_columns((torch.tensor([50.5, 51.5], dtype=torch.float64), torch.tensor([50, 51])))
    received.add(part(packed, 1, 2, 0, 2), memoryview(b"".join(packed.buffers())))
    fetch = fetcher(received, columns=True, arrays=OWN)
    fetch.take([(7, np.array([50, 51]))])
    assert fetch(np.array([51, 2]), [6, 7])[0].tolist() == [51.5, 2.0]


@pytest.mark.parametrize("indices", [[51, 50], [51, 2, 50], [1, 51, 2, 50] * 5])
def test_received_points_come_to_the_device_of_the_own_ones(indices: list[int]) -> None:
    """The worker's own points are on torch's `meta` device, which has no memory and exists on every
    machine."""
    received, own = ReceivedPoints(), (torch.zeros(10, device="meta"), torch.zeros(10, 3))
    packed = pack_columns((torch.tensor([50.5, 51.5]), torch.ones(2, 3)))
    received.add(part(packed, 1, 2, 0, 2), memoryview(b"".join(packed.buffers())))
    fetch = Fetcher(received, rows_of(own), lambda index: None, list, 10, columns=True)
    fetch.take([(7, np.array([50, 51]))])
    there, here = fetch(np.array(indices))
    assert (there.device.type, there.shape) == ("meta", (len(indices),))
    assert here.device.type == "cpu"
    assert here[:, 0].tolist() == [float(index >= 50) for index in indices]


def test_received_bfloat16_is_not_read_as_the_integers_that_carry_it() -> None:
    received, own = ReceivedPoints(), torch.arange(10, dtype=torch.int16)
    packed = pack_columns((torch.tensor([1.0, 2.5], dtype=torch.bfloat16),))
    received.add(part(packed, 1, 2, 0, 2), memoryview(b"".join(packed.buffers())))
    fetch = Fetcher(
        received, rows_of((own,)), own.__getitem__, list, 10, columns=True, arrays=[own.numpy()]
    )
    fetch.take([(7, np.array([3, 4]))])
    (found,) = fetch(np.array([4, 3]), [7])
    assert found.dtype == torch.bfloat16 and found.tolist() == [2.5, 1.0]


def test_a_point_that_is_neither_own_nor_received_is_not_replaced_by_another() -> None:
    received = ReceivedPoints()
    packed = pack_columns((torch.tensor([50.5, 51.5]), torch.tensor([50, 51])))
    received.add(part(packed, 1, 2, 0, 2), memoryview(b"".join(packed.buffers())))
    fetch = fetcher(received, columns=True, arrays=OWN)
    fetch.take([(7, np.array([50, 51]))])
    with pytest.raises(IndexError):
        fetch(np.array([51, 40]), [6, 7])


def check(batch: Any, indices: list[int], x: list[float]) -> None:
    floats, whole = batch
    assert floats.tolist() == x and floats.dtype == torch.float32
    assert whole.tolist() == indices and whole.dtype == torch.int64


def test_points_that_were_sent_to_an_earlier_incarnation_are_dropped() -> None:
    received = ReceivedPoints()
    receive(received, [[torch.zeros(2)]], number=4)
    received.drop(3)
    assert 7 in received
    received.drop(4)
    assert 7 not in received

"""Options of `worker.batches`: loaders, collate functions, samplers and streams, inline."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import UsageError
from polyrhythm.learn.loading import rows_of
from polyrhythm.wire.messages import JobSpec

POINTS = 100
NUMBERS = torch.arange(float(POINTS))


class Numbers(Dataset[float]):
    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, index: int) -> float:
        return float(index)


class Stream(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        return iter(NUMBERS.tolist())


def train(
    batches: Callable[[Worker], Iterator[Any]], **fields: Any
) -> tuple[dict[str, list[Any]], int]:
    """Train with these batches. Returns the batches of each worker, and the number of points that
    the job has counted."""
    seen: dict[str, list[Any]] = {}

    def main(worker: Worker) -> None:
        parameter = nn.Parameter(torch.zeros(1))
        model = nn.ParameterList([parameter])
        optimizer = worker.attach(model, torch.optim.SGD([parameter], lr=0.1))
        for batch in batches(worker):
            seen.setdefault(worker.name, []).append(batch)
            parameter.grad = torch.ones(1)
            optimizer.step()

    job = {"workers": 2, "servers": 1, "heartbeat_s": 20.0, "timer": "off", **fields}
    run = run_inline(JobSpec(job="loading", **job), main, timeout_s=60)
    lines = [line for line in run.journal if line["what"] == "rounds"]
    return seen, sum(line["points"] for line in lines)


def all_of(seen: dict[str, list[Any]]) -> list[Any]:
    return [batch for batches in seen.values() for batch in batches]


def numbers_in(seen: dict[str, list[Any]]) -> list[float]:
    return sorted(number for batch in all_of(seen) for number in batch.tolist())


def test_a_collate_function_makes_the_batches() -> None:
    def collate(points: list[float]) -> dict[str, torch.Tensor]:
        return {"numbers": torch.tensor(points)}

    seen, counted = train(lambda worker: worker.batches(Numbers(), 8, collate_fn=collate), epochs=2)
    numbers = {name: [batch["numbers"] for batch in batches] for name, batches in seen.items()}
    assert numbers_in(numbers) == sorted([*NUMBERS.tolist()] * 2)
    assert counted == 2 * POINTS


def test_with_drop_last_all_batches_have_the_same_size() -> None:
    """Each worker has 50 points in a pass, of which two are skipped."""
    seen, counted = train(lambda worker: worker.batches(Numbers(), 8, drop_last=True), epochs=3)
    assert {len(batch) for batch in all_of(seen)} == {8}
    assert len(all_of(seen)) == 3 * 2 * 6
    for batches in seen.values():
        for first in range(0, len(batches), 6):
            this_pass = torch.cat(batches[first : first + 6]).tolist()
            assert len(set(this_pass)) == 48, "no point twice in a pass"
    assert counted == 3 * POINTS, "the passes are complete"


def test_a_share_that_is_smaller_than_a_batch_is_not_dropped() -> None:
    seen, _ = train(lambda worker: worker.batches(Numbers(), 64, drop_last=True), epochs=2)
    assert {len(batch) for batch in all_of(seen)} == {50}


def test_drop_last_under_a_policy_that_chooses_the_batch_size_has_no_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen, _ = train(
        lambda worker: worker.batches(Numbers(), 8, drop_last=True),
        **{"epochs": 1, "sync": "fsp", "interval": "20ms"},
    )
    assert numbers_in(seen) == NUMBERS.tolist()
    assert capsys.readouterr().err.count("drop_last has no effect") == 1


def test_pinned_memory_is_accepted_without_an_accelerator() -> None:
    seen, _ = train(lambda worker: worker.batches((NUMBERS,), 8, pin_memory=True), epochs=2)
    found = sorted(number for (batch,) in all_of(seen) for number in batch.tolist())
    assert found == sorted([*NUMBERS.tolist()] * 2)


# -- order -------------------------------------------------------------------------------------


class Descending:
    """A sampler: the highest number comes first."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(POINTS - 1, -1, -1))


@pytest.mark.parametrize("sync", ["bsp", "asp", "fsp"])
def test_a_sampler_orders_the_points_of_a_lease(sync: str) -> None:
    seen, counted = train(
        lambda worker: worker.batches(Numbers(), 8, sampler=Descending()),
        **{"epochs": 2, "sync": sync, "interval": "20ms"},
    )
    for batches in seen.values():
        order = torch.cat(batches).tolist()
        half = len(order) // 2
        assert order[:half] == sorted(order[:half], reverse=True) == order[half:]
    assert numbers_in(seen) == sorted([*NUMBERS.tolist()] * 2)
    assert counted == 2 * POINTS


def test_a_random_sampler_gives_another_order_in_every_pass() -> None:
    seen, _ = train(
        lambda worker: worker.batches(Numbers(), 8, sampler=RandomSampler(Numbers())), epochs=2
    )
    for batches in seen.values():
        order = torch.cat(batches).tolist()
        half = len(order) // 2
        assert order[:half] != order[half:] and sorted(order[:half]) == sorted(order[half:])


def test_a_sampler_that_repeats_points_is_refused() -> None:
    sampler = WeightedRandomSampler([1.0] * POINTS, 50)
    with pytest.raises(UsageError, match="gave 50 points, but .* each of the 100 points"):
        train(lambda worker: worker.batches(Numbers(), 8, sampler=sampler), epochs=1)


# -- loaders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_with_a_default_sampler_is_leased(
    shuffle: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = DataLoader(TensorDataset(NUMBERS), 8, shuffle=shuffle, collate_fn=len)
    seen, counted = train(lambda worker: worker.batches(loader), epochs=2)
    assert sum(all_of(seen)) == counted == 2 * POINTS
    assert capsys.readouterr().err == ""


def test_a_loader_without_shuffle_keeps_its_order() -> None:
    seen, _ = train(lambda worker: worker.batches(DataLoader(Numbers(), 8)), epochs=1)
    for batches in seen.values():
        order = torch.cat(batches).tolist()
        assert order == sorted(order)


def test_options_besides_a_loader_are_refused() -> None:
    with pytest.raises(UsageError, match="give these options to the DataLoader"):
        train(lambda worker: worker.batches(DataLoader(Numbers(), 8), num_workers=1), epochs=1)


def test_a_loader_with_a_sampler_of_its_own_is_not_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Workers take the batches of the loader in turn. The last batch is smaller, and its points
    count too."""
    loader = DataLoader(Numbers(), batch_size=8, sampler=Descending())  # type: ignore[arg-type]
    seen, counted = train(lambda worker: worker.batches(loader), rounds=7)
    assert {name: [int(batch[0]) for batch in batches] for name, batches in seen.items()} == {
        "worker-0": [99, 83, 67, 51, 35, 19, 3],
        "worker-1": [91, 75, 59, 43, 27, 11, 91],
    }
    assert counted == 100 + 8
    said = capsys.readouterr().err
    assert said.count("passes are not counted, because the DataLoader has its own sampler") == 1


def test_a_stream_is_divided_among_the_workers(capsys: pytest.CaptureFixture[str]) -> None:
    seen, counted = train(lambda worker: worker.batches(Stream(), batch_size=10), rounds=5)
    assert sorted(numbers_in({"worker-0": seen["worker-0"]})) == NUMBERS[::2].tolist()
    assert numbers_in(seen) == NUMBERS.tolist()
    assert counted == POINTS
    said = capsys.readouterr().err
    assert said.count("passes are not counted, because the data set is an IterableDataset") == 1


@pytest.mark.parametrize(("migrate", "lines"), [("full", 1), ("lease", 1), ("auto", 0), ("off", 0)])
def test_points_of_a_stream_cannot_move_which_is_said_if_it_was_asked_for(
    migrate: str, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"rounds": 2, "sync": "fsp", "interval": "20ms", "migrate": migrate}
    train(lambda worker: worker.batches(Stream(), batch_size=10), **fields)
    said = capsys.readouterr().err
    assert said.count(f"its share of the points, and --migrate {migrate} has no effect") == lines


@pytest.mark.parametrize("sync", ["ssp:1", "asp", "psp", "bspb", "bspv", "fsp"])
def test_a_stream_is_counted_in_points_under_every_policy(sync: str) -> None:
    kind = "local" if sync == "psp" else "gradient"
    fields = {"rounds": 4, "sync": sync, "kind": kind, "interval": "20ms"}
    if sync == "psp":
        fields["timer"] = "auto"
    seen, counted = train(lambda worker: worker.batches(DataLoader(Stream(), 10)), **fields)
    assert {len(batch) for batch in all_of(seen)} == {10}
    assert counted and counted % 10 == 0


def test_a_loader_of_whole_batches_is_counted_by_their_length() -> None:
    batches = DataLoader(NUMBERS.reshape(10, 10), batch_size=None)
    seen, counted = train(lambda worker: worker.batches(batches), rounds=5)
    assert numbers_in(seen) == NUMBERS.tolist()
    assert counted == POINTS


class OfRay:
    """The interface of `ray.data.DataIterator` that is used."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def iter_torch_batches(self, **how: Any) -> Iterator[dict[str, torch.Tensor]]:
        self.asked.append(how)
        return iter([{"x": part} for part in NUMBERS.split(how["batch_size"])])


class SetOfRay(OfRay):
    """The interface of `ray.data.Dataset` that is used."""

    def streaming_split(self) -> None:
        pass


@pytest.fixture
def in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("ray"), "is_initialized", lambda: True)


@pytest.mark.usefixtures("in_a_cluster")
def test_workers_divide_the_batches_of_a_data_set_of_ray(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = SetOfRay()
    seen, counted = train(lambda worker: worker.batches(source, batch_size=10), rounds=5)
    first = torch.cat([batch["x"] for batch in seen["worker-0"]])
    assert first.tolist() == torch.cat(NUMBERS.split(10)[::2]).tolist()
    assert counted == POINTS
    assert "the points of a ray.data.Dataset have no numbers" in capsys.readouterr().err
    how = {"batch_size": 10, "drop_last": False, "device": "cpu", "pin_memory": False}
    assert source.asked == [how, how]


@pytest.mark.usefixtures("in_a_cluster")
def test_an_iterator_of_ray_gives_each_worker_its_own_share() -> None:
    shares = {"worker-0": OfRay(), "worker-1": OfRay()}
    seen, _ = train(lambda worker: worker.batches(shares[worker.name], batch_size=50), rounds=2)
    for batches in seen.values():
        assert torch.cat([batch["x"] for batch in batches]).tolist() == NUMBERS.tolist()


def test_what_ray_does_itself_is_refused_and_a_cluster_is_needed() -> None:
    with pytest.raises(
        UsageError, match="num_workers and sampler cannot be used with a ray.data.Dataset"
    ):
        train(lambda worker: worker.batches(SetOfRay(), batch_size=10, num_workers=2), rounds=1)
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match="does not run on a Ray cluster: use --engine ray"):
        train(lambda worker: worker.batches(SetOfRay(), batch_size=10), rounds=1)


def test_passes_over_a_stream_cannot_end_a_job() -> None:
    with pytest.raises(UsageError, match="--epochs and --target-change cannot end the job"):
        train(lambda worker: worker.batches(Stream(), batch_size=10), epochs=1)


def test_an_empty_share_of_a_stream_is_an_error() -> None:
    class One(IterableDataset[float]):
        def __iter__(self) -> Iterator[float]:
            return iter([1.0])

    with pytest.raises(UsageError, match="too few points"):
        train(lambda worker: worker.batches(One(), batch_size=10), rounds=1)


def test_rows_of_tensors_are_those_that_torch_finds() -> None:
    """numpy has no bfloat16 and no tensors that require gradients, so torch must select the rows of
    such tensors."""
    wide = torch.arange(30.0).reshape(10, 3)
    columns = (
        *(wide, wide.t().contiguous().t(), wide.to(torch.bfloat16), wide[:, 0] > 9),
        *(wide.clone().requires_grad_(), wide.to(torch.complex64), wide[:, :0]),
    )
    indices = np.array([7, 0, 7, 3])
    for found, column in zip(rows_of(columns)(indices), columns, strict=True):
        expected = column[torch.from_numpy(indices)]
        assert torch.equal(found, expected)
        assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)


def test_rows_of_a_part_of_a_table_are_taken_without_a_copy_of_all_rows() -> None:
    """The test counts the memory of numpy's arrays, and not the memory of torch's tensors."""
    table = torch.arange(500_000.0).reshape(-1, 5)
    columns = (table[:, 1:], table[:, 0], table.t().contiguous().t())
    take, indices = rows_of(columns), np.array([19_000, 0, 7])
    tracemalloc.start()
    try:
        found = take(indices)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found[0].tolist() == [[95_001, 95_002, 95_003, 95_004], [1, 2, 3, 4], [36, 37, 38, 39]]
    assert found[1].tolist() == [95_000, 0, 35]
    assert peak < 200_000, "one column has at least 400,000 bytes"

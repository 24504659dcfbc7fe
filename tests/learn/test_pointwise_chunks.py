"""The points of a worker's chunks: what they add to its row, and what is subtracted when a chunk is
given up."""

from typing import Any

import msgspec
import numpy as np
import pytest

from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.chunks import COUNTS, Chunks, LeasedChunk
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm
from polyrhythm.learn.pointwise.source import ArraySource
from polyrhythm.wire.messages import ChunkLease, Leased

COUNT = 50
PARAMETER: Arrays = {"factor": np.asarray(1.0)}


class Total(Algorithm):
    """An algorithm without memory: the sum of all points, multiplied by the parameter."""

    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        return PARAMETER

    def statistics(self, parameter: Arrays) -> dict[str, tuple[int, ...]]:
        return {"total": ()}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Any) -> Arrays:
        return {"total": batch.x.sum() * parameter["factor"]}

    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        return old


class Remembering(Total):
    """The same algorithm with memory: it remembers what each point has added."""

    def memory(self, count: int) -> dict[str, Any]:
        return {"added": np.zeros(count)}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Any) -> Arrays:
        now = batch.x[:, 0] * parameter["factor"]
        change = (now - memory["added"]).sum()
        memory["added"][:] = now
        return {"total": change}


def lease(*chunks: ChunkLease, number: int = 1, incarnation: int = 1) -> Leased:
    return Leased(
        points=COUNT, seed=0, chunks=chunks, epochs=3, number=number, incarnation=incarnation
    )


FIRST, SECOND = ChunkLease(0, 0, 25, 0, 0), ChunkLease(1, 25, 50, 0, 0)
both = pytest.mark.parametrize("algorithm", [Total(), Remembering()])


def make(algorithm: Algorithm, *chunks: ChunkLease) -> Chunks:
    source = ArraySource(Batch(np.arange(COUNT, dtype=float).reshape(-1, 1)))
    made = Chunks(algorithm, source, 1, 10)
    made.take(lease(*chunks))
    return made


def collect(chunks: Chunks) -> list[float]:
    return [float(number) for number in chunks.remembered.collect()]


@both
def test_a_step_visits_whole_blocks_of_one_pass(algorithm: Algorithm) -> None:
    chunks = make(algorithm, FIRST, SECOND)
    visited, progress = chunks.visit(12, PARAMETER)
    assert visited == 10, "a block, and no other one for the two points that are missing"
    [(chunk, *at)] = [(each.chunk, each.passes, each.cursor) for each in progress]
    assert chunk in (0, 1) and at == [0, 10]
    visited, _ = chunks.visit(1000, PARAMETER)
    assert visited == 40, "the rest of the pass"
    assert chunks.passes == 1
    assert collect(chunks) == [50.0, 0.0, 50.0, sum(range(50))]


@both
def test_a_visit_with_other_parameters_contributes_the_difference(algorithm: Algorithm) -> None:
    chunks = make(algorithm, FIRST)
    chunks.visit(100, PARAMETER)
    collect(chunks)
    chunks.visit(100, {"factor": np.asarray(3.0)})
    assert collect(chunks) == [0.0, 0.0, 0.0, 2.0 * sum(range(25))]


@both
def test_a_chunk_that_is_given_up_is_subtracted(algorithm: Algorithm) -> None:
    chunks = make(algorithm, FIRST, SECOND)
    chunks.visit(1000, PARAMETER)
    collect(chunks)
    chunks.take(lease(FIRST, number=2))
    assert chunks.remembered.pending, "a worker without points to visit contributes too"
    assert collect(chunks) == [-25.0, 0.0, -25.0, -float(sum(range(25, 50)))]
    chunks.take(lease(FIRST, SECOND, number=3))
    chunks.visit(1000, PARAMETER)
    assert collect(chunks)[0] == 25.0, "the points of the second chunk begin without memory"


@both
def test_points_that_are_missing_from_the_sum_are_visited_first(algorithm: Algorithm) -> None:
    """The worker has visited its first chunk. It then gets the lease of a second chunk, without the
    memory of that chunk's points."""
    chunks = make(algorithm, FIRST)
    chunks.visit(1000, PARAMETER)
    third = ChunkLease(2, 25, 50, 1, 0)
    chunks.take(lease(FIRST, third, number=2))
    _, progress = chunks.visit(10, PARAMETER)
    assert [each.chunk for each in progress] == [2]
    _, progress = chunks.visit(1000, PARAMETER)
    assert [each.chunk for each in progress] == [2, 0]


@both
def test_a_worker_that_joins_again_begins_with_an_empty_row(algorithm: Algorithm) -> None:
    chunks = make(algorithm, FIRST)
    chunks.visit(1000, PARAMETER)
    assert chunks.take(lease(FIRST, incarnation=7))
    assert not chunks.remembered.pending
    chunks.visit(1000, PARAMETER)
    assert collect(chunks) == [25.0, 0.0, 25.0, sum(range(25))]


@both
def test_a_worker_that_joins_again_forgets_what_it_was_about_to_give_up(
    algorithm: Algorithm,
) -> None:
    """The second chunk was locked, because its points were to move."""
    chunks = make(algorithm, FIRST, SECOND)
    chunks.visit(1000, PARAMETER)
    chunks.take(msgspec.structs.replace(lease(FIRST, number=2), copies=(1,)))
    chunks.take(lease(FIRST, SECOND, number=3, incarnation=7))
    chunks.visit(1000, PARAMETER)
    assert collect(chunks) == [50.0, 0.0, 50.0, sum(range(50))]


@both
def test_no_point_is_visited_after_the_last_pass(algorithm: Algorithm) -> None:
    chunks = make(algorithm, ChunkLease(0, 0, 25, 3, 0))
    assert chunks.visit(10, PARAMETER) == (0, ())


@both
def test_a_chunk_that_comes_in_the_middle_of_a_pass_is_visited_from_there(
    algorithm: Algorithm,
) -> None:
    chunks = make(algorithm, ChunkLease(0, 0, 25, 1, 14))
    visited, progress = chunks.visit(1000, PARAMETER)
    assert visited == 11, "the points before its block are visited in the next pass"
    assert [(each.passes, each.cursor) for each in progress] == [(2, 0)]
    assert collect(chunks)[0] == 15.0, "its block is visited as a whole"


def visits(wanted: list[int], *, loose: bool) -> list[list[int]]:
    """Visit chunks of 7 blocks of 10 points, with visits of these sizes in turn, for a pass. Returns the
    points of each call of the algorithm, for each visit."""

    class Counting(Total):
        def update_points(self, batch: Batch, parameter: Arrays, memory: Any) -> Arrays:
            calls[-1].append(len(batch))
            return super().update_points(batch, parameter, memory)

        def memory(self, count: int) -> dict[str, Any]:
            return {"any": np.zeros(count)}

    calls: list[list[int]] = []
    source = ArraySource(Batch(np.zeros((280, 1))))
    chunks = Chunks(Counting(), source, 1, 10)
    chunks.take(lease(*(ChunkLease(n, 70 * n, 70 * n + 70, 0, 0) for n in range(4))))
    while not chunks.passes:
        calls.append([])
        chunks.visit(wanted[(len(calls) - 1) % len(wanted)], PARAMETER, loose=loose)
    return calls


def test_a_chunk_is_divided_into_equal_visits() -> None:
    """Every call of the algorithm has a fixed cost, also a call with few points."""
    assert visits([30], loose=True) == [[40], [30]] * 4
    assert visits([40, 30], loose=True) == [[70]] + [[40], [30]] * 3
    assert visits([60], loose=False) == [[70]] * 4
    assert visits([90], loose=True) == [[70]] * 4
    assert visits([150], loose=True) == [[70, 70]] * 2
    assert visits([10], loose=True) == [[20], [20], [20], [10]] * 4
    assert visits([10], loose=False) == [[10]] * 28


@pytest.mark.parametrize("wanted", [10, 20, 30, 40, 50, 60, 70, 80, 100, 150, 200, 280])
def test_a_visit_has_about_as_many_points_as_asked_for(wanted: int) -> None:
    for loose, fewer, more in ((False, 0.25, 0.25), (True, 0.5, 1.0)):
        found = [sum(calls) for calls in visits([wanted], loose=loose)]
        assert sum(found) == 280
        assert max(found) <= (1 + more) * wanted + 10, found
        least = min(wanted - 10, (1 - fewer) * wanted)
        assert min(found[:-1], default=wanted) >= least, (
            "only the last visit of a pass may be smaller"
        )


class Voting(Remembering):
    """Counts the points that it has computed. The points of the first block vote to halt."""

    computed = 0

    def update_points(self, batch: Batch, parameter: Arrays, memory: Any) -> Arrays:
        self.computed += len(batch)
        return super().update_points(batch, parameter, memory)

    def vote_to_halt(self, batch: Batch, parameter: Arrays, memory: Any) -> Any:
        return batch.x[:, 0] < 15


def test_blocks_whose_points_have_voted_are_not_computed_again() -> None:
    algorithm = Voting()
    chunks = make(algorithm, FIRST)
    chunks.visit(1000, PARAMETER)
    assert algorithm.computed == 25
    assert collect(chunks)[:COUNTS] == [25.0, 10.0, 25.0], "the first block has voted as a whole"
    visited, _ = chunks.visit(1000, PARAMETER, generation=2)
    assert (visited, algorithm.computed) == (25, 40)
    assert collect(chunks)[2] == 25.0, "the points that have voted advance with the others"


def test_blocks_whose_points_have_voted_do_not_vote_again_at_another_worker() -> None:
    algorithm = Voting()
    points, memory = Batch(np.arange(25.0).reshape(-1, 1)), algorithm.memory(25)
    begun = LeasedChunk(FIRST, points, memory, 10)
    assert begun.visit(1000, algorithm, PARAMETER)[1][1] == 10.0
    moved = LeasedChunk.of_state(ChunkLease(0, 0, 25, 1, 0), begun.state(), memory)
    visited, change = moved.visit(1000, algorithm, PARAMETER, generation=2)
    assert (visited, algorithm.computed) == (25, 40)
    assert list(change) == [0.0, 0.0, 25.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_a_chunk_that_moves_within_a_pass_knows_what_each_block_has_added(seed: int) -> None:
    """The blocks of an algorithm without memory are visited in a permuted order."""
    algorithm, points = Total(), Batch(np.arange(40.0).reshape(-1, 1))
    begun = LeasedChunk(ChunkLease(0, 0, 40, 0, 0), points, {}, 10, seed)
    total = begun.visit(10, algorithm, PARAMETER)[1] + begun.visit(10, algorithm, PARAMETER)[1]
    moved = LeasedChunk.of_state(ChunkLease(0, 0, 40, 0, 20), begun.state(), {}, seed)
    for _ in range(2):
        total += moved.visit(10, algorithm, PARAMETER)[1]
    assert moved.passes == 1
    assert list(total) == [40.0, 0.0, 40.0, sum(range(40))]


@both
def test_the_generations_tell_which_points_were_visited_since(algorithm: Algorithm) -> None:
    chunks = make(algorithm, FIRST, SECOND)
    chunks.visit(1000, PARAMETER)
    assert collect(chunks)[2] == 50.0, "every point was visited in generation 1"
    chunks.visit(20, PARAMETER, generation=2)
    assert collect(chunks)[2] == 20.0, "20 points have reached generation 2"
    chunks.visit(1000, PARAMETER, generation=1)
    assert collect(chunks)[2] == 0.0, "the other 30 were visited before generation 2 began"
    chunks.visit(1000, PARAMETER, generation=2)
    assert collect(chunks)[2] == 30.0


@both
def test_points_of_a_worker_that_was_ahead_are_visited_first(algorithm: Algorithm) -> None:
    """The former worker of the second chunk was two passes ahead, and has died."""
    chunks = make(algorithm, FIRST, ChunkLease(1, 25, 50, 2, 0))
    chunks.visit(1000, PARAMETER)
    assert collect(chunks)[0] == 50.0, "both chunks are in the sum after one pass"
    _, progress = chunks.visit(1000, PARAMETER)
    assert [each.chunk for each in progress] == [0], "then only the chunk that lags is visited"
    chunks = make(algorithm, FIRST, ChunkLease(1, 25, 50, 3, 0))
    chunks.visit(1000, PARAMETER)
    assert collect(chunks)[0] == 25.0, "a chunk that has had all of its visits gets no other one"


def left_over(algorithm: Algorithm, points: Batch, parameters: list[Arrays]) -> Arrays:
    """Visit all points with these parameters, one after the other. Returns the sum of what was
    contributed, which contains the rounding errors of all differences."""
    layout = algorithm.layout(parameters[0])
    chunks = Chunks(algorithm, ArraySource(points), layout.size, 10)
    chunks.take(lease(FIRST, SECOND))
    total = np.zeros(COUNTS + layout.size)
    for parameter in parameters:
        for _ in range(6):
            chunks.visit(10, parameter)
            total += chunks.remembered.collect()
    return layout.views(total[COUNTS:])


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_a_component_without_points_is_not_made_of_rounding_errors(covariance: Any) -> None:
    """The points of a component move to another one. The difference of two sums is seldom zero."""
    errors = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, weight = rng.normal(size=(COUNT, 2)) + 3.0, 1e3 * rng.random(COUNT)
        algorithm = GaussianMixtureAlgorithm(2, covariance=covariance)
        first = algorithm.init_parameter(Batch(x), rng)
        first["covariances"] = first["covariances"][[0, 0]]
        mean, far = np.average(x, axis=0, weights=weight), np.full(2, 80.0)
        old = {**first, "means": np.stack([mean, far])}
        before = {**first, "means": np.stack([mean, mean + 1.0])}
        statistics = left_over(algorithm, Batch(x, None, weight), [before, old])
        errors += 1e-14 < statistics["count"][1] < 1e-9
        new = algorithm.update_parameter(statistics, old)
        assert np.array_equal(new["means"][1], far)
        assert np.array_equal(new["covariances"][1], first["covariances"][1])
        assert np.allclose(new["means"][0], mean), "the other component has all points"
    assert errors > 2, "this test needs rounding errors"


def test_a_fuzzy_cluster_without_points_is_not_made_of_rounding_errors() -> None:
    errors = 0
    for seed in range(20):
        x = np.random.default_rng(seed).normal(size=(COUNT, 2)) + 3.0
        algorithm = FuzzyCMeansAlgorithm(2, m=1.01)
        first = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
        mean, far = x.mean(0), np.full(2, 1e5)
        old = {**first, "centers": np.stack([mean, far])}
        before = {**first, "centers": np.stack([mean, mean + 1.0])}
        statistics = left_over(algorithm, Batch(x), [before, old])
        errors += 0.0 < statistics["count"][1] < 1e-9
        assert np.array_equal(algorithm.update_parameter(statistics, old)["centers"][1], far)
    assert errors > 2, "this test needs rounding errors"


class Recording(Total):
    """Notes the points of every call. `remembers`: it is an algorithm with memory."""

    def __init__(self, *, remembers: bool) -> None:
        self.calls: list[list[float]] = []
        self.remembers = remembers

    def memory(self, count: int) -> dict[str, Any]:
        return {"any": np.zeros(count)} if self.remembers else {}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Any) -> Arrays:
        self.calls.append(batch.x[:, 0].tolist())
        return super().update_points(batch, parameter, memory)


class Copying(ArraySource):
    """A source whose points may be permuted, as those of a table. Notes what is read."""

    copies = True

    def __init__(self, points: Batch) -> None:
        super().__init__(points)
        self.reads: list[int] = []

    def read(self, first: int, last: int) -> Batch:
        self.reads.append(first)
        return super().read(first, last)


def recorded(
    source: ArraySource, *, remembers: bool, seed: int = 0, cursor: int = 0, passes: int = 3
) -> list[list[float]]:
    """The points of each call in some passes over four chunks of 25 points, in blocks of 10. `cursor`:
    the position at which this worker begins in the second chunk."""
    algorithm = Recording(remembers=remembers)
    chunks = Chunks(algorithm, source, 1, 10)
    first = [ChunkLease(n, 25 * n, 25 * n + 25, 0, cursor if n == 1 else 0) for n in range(4)]
    chunks.take(Leased(points=100, seed=seed, chunks=tuple(first), epochs=passes, number=1))
    while chunks.visit(10, PARAMETER)[0]:
        pass
    return algorithm.calls


def hundred(kind: type[ArraySource] = ArraySource) -> Any:
    return kind(Batch(np.arange(100.0).reshape(-1, 1)))


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("kind", [ArraySource, Copying])
def test_points_are_visited_in_an_order_that_depends_on_the_seed(
    kind: type[ArraySource], remembers: bool
) -> None:
    calls = recorded(hundred(kind), remembers=remembers)
    assert calls == recorded(hundred(kind), remembers=remembers)
    assert calls != recorded(hundred(kind), remembers=remembers, seed=1)
    orders = []
    for first in range(0, 36, 12):
        visited = [point for call in calls[first : first + 12] for point in call]
        assert sorted(visited) == [*range(100)], "every point once in each pass"
        orders.append([int(call[0]) // 25 for call in calls[first : first + 12]])
    assert all(sorted(order) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 for order in orders)
    assert len({tuple(order) for order in orders}) > 1, "chunks are permuted in every pass"
    assert orders[0] != sorted(orders[0])
    inside = [tuple(call) for call in calls if call[0] < 25]
    ascending = all(call == tuple(sorted(call)) for call in inside)
    assert ascending == (kind is ArraySource), "an array is not copied"
    assert len({frozenset(call) for call in inside}) == 3, "blocks always have the same points"
    permuted = False
    for chunk in range(4):
        own = [call for call in calls if int(call[0]) // 25 == chunk]
        permuted |= any(own[first] != own[0] for first in (3, 6))
    assert permuted == (not remembers), "without memory, blocks are permuted in every pass"


def test_chunks_are_read_in_the_order_of_the_file() -> None:
    """Neighbouring chunks may be in one row group, which is parsed once."""
    source = hundred(Copying)
    recorded(source, remembers=True)
    assert source.reads == [0, 25, 50, 75]


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("kind", [ArraySource, Copying])
def test_another_worker_continues_where_the_order_of_a_chunk_was_left(
    kind: type[ArraySource], remembers: bool
) -> None:
    whole = recorded(hundred(kind), remembers=remembers, passes=1)
    rest = recorded(hundred(kind), remembers=remembers, passes=1, cursor=10)
    begun = [call for call in whole if 25 <= call[0] < 50]
    assert rest[:2] == begun[1:], "a chunk that is partly visited comes first"


@pytest.mark.parametrize("seed", range(4))
def test_halted_blocks_are_those_whose_points_have_voted(seed: int) -> None:
    """The blocks of an algorithm without memory are visited in a permuted order."""

    class Halting(Recording):
        def vote_to_halt(self, batch: Batch, parameter: Arrays, memory: Any) -> Any:
            return batch.x[:, 0] < 10

    algorithm = Halting(remembers=False)
    chunks = Chunks(algorithm, hundred(), 1, 10)
    chunks.take(
        Leased(points=100, seed=seed, chunks=(ChunkLease(0, 0, 45, 0, 0),), epochs=9, number=1)
    )
    for _ in range(5):
        chunks.visit(10, PARAMETER)
    assert collect(chunks)[:COUNTS] == [45.0, 10.0, 45.0]
    algorithm.calls.clear()
    for _ in range(5):
        chunks.visit(10, PARAMETER, generation=2)
    visited = sorted(int(call[0]) for call in algorithm.calls)
    assert visited == [10, 20, 30, 40], "the block that has voted is left out"
    assert collect(chunks) == [0.0, 0.0, 45.0, 0.0]

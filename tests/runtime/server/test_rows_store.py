"""The slice store of kind statistics: rows of workers, their sum, the parameters, and replicas of
them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from polyrhythm.core.effects import Build
from polyrhythm.errors import LinkError
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.server.slice_store import RowsSliceStore, choose_slice_store
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    JobSpec,
    MemberSpec,
    Message,
    ModelSpec,
    OptimizerSpec,
    Route,
    Row,
    Seed,
    State,
    TensorSpec,
)

LENGTH = 8
SPEC = ModelSpec(
    (
        TensorSpec("statistics", (LENGTH,), "float64", 0, (1,)),
        TensorSpec("centers", (LENGTH,), "float64", -1, (1,)),
    ),
    OptimizerSpec("SGD", ({"lr": 0.0},)),
)
STATISTICS, PARAMETERS = 0, 1
EPOCH = 2
ROUTES = (Route(0, (1,)), Route(0, (1,)))
MEMBERS = [MemberSpec(0, 1, "anna"), MemberSpec(1, 1, "bert")]


def as_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())


class Site:
    """Two servers: s0 is the primary of both slices, s1 holds the copies."""

    def __init__(self, **job: Any) -> None:
        spec = JobSpec(job="j", kind="statistics", servers=2, replicas=1, slice_nbytes=64, **job)
        self.round = 0
        self.stores: list[RowsSliceStore] = []
        for server in (0, 1):
            made = choose_slice_store(spec)(
                server,
                Build(SPEC, ROUTES, EPOCH),
                spec,
                lambda nbytes: Segment(nbytes, shared=False),
                tell=self._tell,
            )
            assert isinstance(made, RowsSliceStore)
            self.stores.append(made)
        for store in self.stores:
            store.enlist(MEMBERS)
            for slice_, first in ((STATISTICS, 0.0), (PARAMETERS, 100.0)):
                first_values = torch.full((LENGTH,), first, dtype=torch.float64)
                store.seed(Seed(slice=slice_, routing=EPOCH), as_bytes(first_values))

    def _tell(self, to: int, message: Message, payload: Sequence[Any]) -> None:
        parts = [part.memory if isinstance(part, Piece) else part for part in payload]
        data = parts[0] if parts else None
        follower = self.stores[to].follower
        if isinstance(message, Copy):
            follower.step(message, data)
        else:
            assert isinstance(message, State)
            follower.adopt(message, data)

    def give(
        self,
        worker: int,
        sequence: int,
        difference: float,
        parameters: float | None = None,
        incarnation: int = 1,
    ) -> Any:
        """Contribute a difference, and parameters if they are given. Returns the event of the last
        slice."""
        event = None
        values = {STATISTICS: difference, PARAMETERS: parameters}
        for slice_, value in values.items():
            message = Contribution(
                worker=worker,
                incarnation=incarnation,
                sequence=sequence,
                slice=slice_,
                slices=2,
                weight=1.0,
                parts=() if value is None else None,
            )
            whole = torch.full((LENGTH,), value or 0.0, dtype=torch.float64)
            event = self.stores[0].add(message, as_bytes(whole if value is not None else whole[:0]))
        return event

    def fold(self, **named: int) -> float:
        """Fold the next round. `named`: per member, the sequence number of its last contribution in
        the fold."""
        self.round += 1
        numbers = {member.name: member.worker for member in MEMBERS}
        rows = tuple(Row(numbers[name], 1, sequence) for name, sequence in named.items())
        return self.stores[0].fold(self.round, self.round % 2, 0, rows=rows)

    def value(self, slice_: int, server: int = 0) -> float:
        store = self.stores[server]
        mine = slice_ in store.primary.index
        state = (store.primary if mine else store.follower.replicas).export(slice_)
        tensor = state["parameters"]
        assert tensor.eq(tensor[0]).all()
        return float(tensor[0])

    def values(self, slice_: int) -> tuple[float, float]:
        return self.value(slice_, 0), self.value(slice_, 1)


def test_a_version_is_the_sum_of_the_rows_on_the_primary_and_on_the_replica() -> None:
    site = Site()
    site.give(0, 1, 3.0)
    site.give(1, 1, 4.0)
    assert site.fold(anna=1, bert=1) == 2.0
    assert site.values(STATISTICS) == (7.0, 7.0)
    site.give(0, 2, -1.0)
    site.fold(anna=2, bert=1)
    assert site.values(STATISTICS) == (6.0, 6.0)


def test_a_difference_that_no_fold_has_named_is_in_no_version() -> None:
    site = Site()
    site.give(0, 1, 3.0)
    site.give(1, 1, 4.0)
    site.fold(anna=1, bert=0)
    assert site.values(STATISTICS) == (3.0, 3.0)
    site.fold(anna=1, bert=1)
    assert site.values(STATISTICS) == (7.0, 7.0)


def test_a_row_is_deleted_in_the_version_that_does_not_name_it() -> None:
    site = Site()
    site.give(0, 1, 3.0)
    site.give(1, 1, 4.0)
    site.fold(anna=1, bert=1)
    site.fold(bert=1)
    assert site.values(STATISTICS) == (4.0, 4.0)


def test_the_parameters_are_those_of_the_member_that_sends_them() -> None:
    site = Site()
    assert site.values(PARAMETERS) == (100.0, 100.0)
    site.give(0, 1, 3.0, parameters=0.1)
    site.give(1, 1, 4.0)
    site.fold(anna=0, bert=1)
    assert site.values(PARAMETERS) == (100.0, 100.0), "they wait for their fold as differences do"
    site.fold(anna=1, bert=1)
    assert site.values(PARAMETERS) == (0.1, 0.1), "the same bits, and not a sum of changes"
    assert site.stores[0].news_for(0, 1) == {PARAMETERS: (0,)}


def test_a_promoted_replica_has_the_rows_and_takes_again_what_was_not_named() -> None:
    site = Site()
    site.give(0, 1, 3.0)
    site.give(1, 1, 4.0)
    site.fold(anna=1, bert=0)
    promoted = (Route(1, (0,), since=3), Route(1, (0,), since=3))
    for store in site.stores:
        store.reroute(promoted, 3)
    site.stores.reverse()
    # the contribution is sent again; the row contains it already, so it is not added
    site.give(0, 1, 3.0)
    site.give(1, 1, 4.0)
    site.fold(anna=1, bert=1)
    assert site.value(STATISTICS) == 7.0


def test_a_learner_gets_the_rows_and_not_their_sum() -> None:
    site = Site()
    site.give(0, 1, 3.0)
    site.give(1, 1, 4.0)
    alone = (Route(0), Route(0))
    for store in site.stores:
        store.reroute(alone, 3)
    site.fold(anna=1, bert=1)
    learning = (Route(0, (), (1,)), Route(0, (), (1,)))
    for store in site.stores:
        store.reroute(learning, 4)
    fetch = site.stores[1].follower.fetch((STATISTICS, PARAMETERS), 4)
    site.stores[0].send_state(1, fetch.held, 4)
    assert site.values(STATISTICS) == (7.0, 7.0)
    site.fold(bert=1)
    assert site.values(STATISTICS) == (4.0, 4.0)


def test_a_checkpoint_has_the_parameters_and_no_rows() -> None:
    site = Site()
    site.give(0, 1, 3.0, parameters=0.5)
    site.fold(anna=1, bert=0)
    copies, torn = site.stores[0].copied()
    assert torn == 0
    assert {id_: list(state) for id_, state in copies.items()} == {
        STATISTICS: ["parameters"],
        PARAMETERS: ["parameters"],
    }
    again = Site()
    for store in again.stores:
        for id_, state in copies.items():
            store.restore(id_, state)
    assert again.values(PARAMETERS) == (0.5, 0.5)
    assert again.values(STATISTICS) == (0.0, 0.0), "no worker remembers the points"
    again.give(1, 1, 2.0)
    again.fold(anna=0, bert=1)
    assert again.values(STATISTICS) == (2.0, 2.0)


def test_a_state_with_a_tensor_that_is_no_row_is_refused() -> None:
    site = Site()
    replicas = site.stores[1].follower.replicas
    zeros = torch.zeros(LENGTH, dtype=torch.float64)
    with pytest.raises(LinkError, match="an unknown tensor 'momentum'"):
        replicas.adopt(STATISTICS, {"parameters": zeros, "momentum": zeros})

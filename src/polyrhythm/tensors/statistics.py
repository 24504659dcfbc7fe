"""The updaters of kind *statistics*: servers keep a row of statistics for each worker, and publish the
sum of the rows. Beside the statistics they keep the parameters that workers compute from the sum.

*A row and the sum are float64. Every server adds the rows in the order of the workers, so a replica
has the same bits as its primary.* The rows are not part of a checkpoint: when a job resumes, no
worker remembers the points that are in them.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

import torch

from polyrhythm.core.server.worker_rows import WorkerRows
from polyrhythm.errors import LinkError
from polyrhythm.tensors.held import Held, State
from polyrhythm.tensors.rows import Incoming
from polyrhythm.tensors.updater import Named, Stateless
from polyrhythm.wire.messages import Row, SliceStep

_ROW = "row"


class _ByName(Stateless):
    """An updater that accepts a contribution only when a fold names it (`enter`)."""

    by_name: ClassVar[bool] = True

    def add(
        self,
        held: Held,
        incoming: Incoming,
        weight: float,
        parts: tuple[int, ...] | None = None,
    ) -> None:
        raise AssertionError("this updater takes a contribution only when a fold names it")


class RowSums(_ByName):
    """The updater of statistics: a version is the sum of the live rows."""

    most_tensors: ClassVar[int] = 4096

    def __init__(self) -> None:
        self._rows: dict[int, WorkerRows[torch.Tensor]] = {}
        """The rows of each slice. A slice has rows after its first fold, or after its state has
        arrived."""

    def _of(self, held: Held) -> WorkerRows[torch.Tensor]:
        found = self._rows.get(held.slice.id)
        if found is None:
            found = self._rows[held.slice.id] = WorkerRows(torch.Tensor.add_)
        return found

    def enter(self, held: Held, live: Iterable[Row], named: Sequence[Named]) -> None:
        self._of(held).fold(live, named)

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        for held, place in zip(slices, target, strict=True):
            place.zero_()
            for row in self._of(held).rows.values():
                place.add_(row)

    def export(self, held: Held) -> State:
        rows = self._of(held).rows
        return {f"{_ROW} {key[0]} {key[1]}": row.clone() for key, row in rows.items()}

    def adopt(self, held: Held, state: State) -> None:
        self._of(held).rows = {_key(name): row for name, row in sorted(state.items())}

    def absorb(self, other: Self) -> None:
        self._rows |= other._rows

    def drop(self, held: Held) -> None:
        self._rows.pop(held.slice.id, None)


class Latest(_ByName):
    """The updater of the parameters that workers compute from the sum. One member sends them, so a
    fold names at most one contribution that contains parameters."""

    takes_parts: ClassVar[bool] = True

    def __init__(self) -> None:
        self._next: dict[int, torch.Tensor] = {}

    def enter(self, held: Held, live: Iterable[Row], named: Sequence[Named]) -> None:
        whole = [value for _, value in named if len(value)]
        if whole:
            self._next[held.slice.id] = whole[-1]

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        for held, place in zip(slices, target, strict=True):
            taken = self._next.pop(held.slice.id, None)
            if taken is not None:
                place.copy_(taken)
            elif place.data_ptr() != held.parameters.data_ptr():
                place.copy_(held.parameters)


def _key(name: str) -> tuple[int, int]:
    try:
        word, worker, incarnation = name.split(" ")
        if word == _ROW:
            return int(worker), int(incarnation)
    except ValueError:
        pass
    raise LinkError(f"the peer sent a state of statistics with an unknown tensor {name[:100]!r}")

"""A table in a file as a data set for `worker.batches`. Row groups are permuted, and rows are
shuffled inside a buffer. So a worker reads only the row groups of its chunks, one after the
other."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polyrhythm.errors import UsageError
from polyrhythm.learn.data.tables import open_points
from polyrhythm.learn.pointwise.source import ArraySource, Source

Indices = npt.NDArray[np.int64]


class RowGroups(torch.utils.data.Dataset[Any]):
    """A table of points in a file, as a data set for `worker.batches`. A worker reads only the
    parts of the file (row groups) that contain its own points.

    A batch is a tuple of tensors: the features, and the labels if `label` is given. The files are
    those of `open_points`. Rows are shuffled inside buffers, which stay in memory.

    Args:
        path: the file, or a folder of Parquet files.
        label: the name or number of the column with the label; -1 is the last column.
        features: the columns of the point; all others by default.
        buffer: how many rows are shuffled together.

    Raises:
        DataError: there is no such file, or it cannot be read.
        UsageError: a column does not exist, or pyarrow is missing (`pip install
            'polyrhythm[files]'`).

    Example:
        >>> from polyrhythm.data import RowGroups
        >>> np.save("points.npy", np.arange(30.0).reshape(10, 3))
        >>> dataset = RowGroups("points.npy", label=-1)
        >>> features, label = dataset[0]
        >>> features.tolist(), float(label)
        ([0.0, 1.0], 2.0)
    """

    def __init__(
        self,
        path: str | Path,
        *,
        label: str | int | None = None,
        features: Sequence[str | int] | None = None,
        buffer: int = 65_536,
    ) -> None:
        if buffer < 1:
            raise UsageError(f"buffer is {buffer}: it must be at least 1")
        self.source: Source = open_points(path, label=label, features=features, dtype=np.float32)
        self.buffer = buffer
        self._given = (Path(path).absolute(), label, features, buffer)

    def __reduce__(self) -> tuple[Any, ...]:
        """A data set that is sent to another process is opened there again."""
        return _again, self._given

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return tuple(column[0] for column in self.columns([index]))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self.columns(indices)

    def columns(self, indices: Sequence[int] | Indices) -> tuple[torch.Tensor, ...]:
        """Return the features of some points, and their labels if they have some.

        Args:
            indices: the numbers of the points.
        """
        wanted = np.asarray(indices, np.int64)
        if isinstance(self.source, ArraySource):
            batch = self.source.points.part(wanted)
        else:
            batch = self.source.rows(wanted)  # type: ignore[attr-defined]
        x = torch.from_numpy(np.ascontiguousarray(batch.x))
        return (x,) if batch.y is None else (x, torch.from_numpy(np.ascontiguousarray(batch.y)))

    def deal(self, rng: np.random.Generator) -> Indices:
        """Return the order in which points are assigned to chunks: row groups in a random order,
        and the rows of each group in the order of the file."""
        return np.concatenate([np.arange(first, last) for first, last in self._dealt(rng)])

    def edges(self, rng: np.random.Generator) -> list[int]:
        """Return the positions, in the order of `deal`, at which row groups begin."""
        return [0, *accumulate(last - first for first, last in self._dealt(rng))][:-1]

    def _dealt(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        groups = list(pairwise([*self.source.groups(), len(self)]))
        return [groups[at] for at in rng.permutation(len(groups))]

    def shuffle(self, points: Indices, rng: np.random.Generator) -> Indices:
        """Return the points of a chunk in the order of one pass: buffers in a random order, and
        the rows of each shuffled."""
        count = -(-len(points) // self.buffer)
        parts = np.array_split(points, max(1, count))
        return np.concatenate([rng.permutation(parts[at]) for at in rng.permutation(len(parts))])


def _again(path: Path, label: Any, features: Any, buffer: int) -> RowGroups:
    return RowGroups(path, label=label, features=features, buffer=buffer)

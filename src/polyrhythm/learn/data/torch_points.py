"""A torch data set as a source of points for algorithms that are written point by point."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.pointwise.algorithm import Batch


class DatasetSource:
    """The items of a map-style torch data set, as a source of points for point-wise algorithms.

    An item is a tensor, or a pair of a tensor and a label. A tensor with several dimensions, such
    as an image, becomes one row. A worker reads only the items of its chunks.

    Args:
        dataset: the data set.

    Raises:
        UsageError: the data set has no length or no items.

    Example:
        >>> from polyrhythm.data import DatasetSource
        >>> images = torch.zeros(10, 28, 28)
        >>> source = DatasetSource(torch.utils.data.TensorDataset(images))
        >>> source.read(0, 2).x.shape
        (2, 784)
    """

    copies = True

    def __init__(self, dataset: Any) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise UsageError(
                f"{type(dataset).__name__} has no length or no items: give a map-style data set"
            )
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def groups(self) -> list[int]:
        """Return the first point of every row group: a data set is one group."""
        return [0]

    def read(self, first: int, last: int) -> Batch:
        """Return the items from `first` up to `last` as points.

        Raises:
            DataError: an item is not a tensor or a pair, or is not finite.
        """
        together = getattr(self._dataset, "__getitems__", None)
        numbers = list(range(first, last))
        items = [self._dataset[at] for at in numbers] if together is None else together(numbers)
        found = default_collate(items) if isinstance(items, list) else items
        parts = list(found) if isinstance(found, (list, tuple)) else [found]
        if len(parts) > 2 or not all(isinstance(part, torch.Tensor) for part in parts):
            raise DataError(
                "an item of the data set must be a tensor, or a pair of a tensor and a label"
            )
        x = parts[0].reshape(len(numbers), -1).numpy()
        if not np.issubdtype(x.dtype, np.floating):
            x = x.astype(np.float32)
        broken = ~np.isfinite(x).all(axis=1)
        if broken.any():
            raise DataError(f"item {first + int(broken.argmax())} of the data set is not finite")
        return Batch(np.ascontiguousarray(x), parts[1].numpy() if len(parts) == 2 else None)

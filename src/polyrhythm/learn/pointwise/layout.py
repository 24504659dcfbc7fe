"""Named arrays as one flat float64 buffer. Statistics and parameters travel in this form, so servers
and links know nothing of their meaning."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import UsageError

Array = npt.NDArray[np.float64]
Arrays = dict[str, Array]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """The names and shapes of arrays, in the order in which they follow each other in the
    buffer."""

    shapes: tuple[tuple[str, Shape], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> "ArrayLayout":
        return cls(tuple((name, array.shape) for name, array in arrays.items()))

    @classmethod
    def of_shapes(cls, shapes: Mapping[str, Shape]) -> "ArrayLayout":
        return cls(tuple((name, tuple(shape)) for name, shape in shapes.items()))

    @property
    def size(self) -> int:
        """The number of float64 values of the buffer."""
        return sum(prod(shape) for _, shape in self.shapes)

    def zeros(self) -> Arrays:
        """Return arrays of zeros. They are views of one buffer."""
        return self.views(np.zeros(self.size))

    def views(self, buffer: Array) -> Arrays:
        """Return the arrays as views of `buffer`."""
        if buffer.shape != (self.size,) or buffer.dtype != np.float64:
            raise UsageError(
                f"a buffer of {self.size} float64 values is needed, but this one has"
                f" {buffer.size} values of {buffer.dtype}"
            )
        found, at = {}, 0
        for name, shape in self.shapes:
            count = prod(shape)
            found[name] = buffer[at : at + count].reshape(shape)
            at += count
        return found

    def flat(
        self,
        arrays: Mapping[str, npt.ArrayLike],
        out: Array | None = None,
        *,
        what: str = "the statistics",
    ) -> Array:
        """Copy the arrays into one buffer. Raises an error that names an array that is missing,
        unknown, of a wrong shape, or not finite. `what`: what the arrays contain, for the error
        message."""
        if out is None:
            out = np.empty(self.size)
        views = self.views(out)
        if arrays.keys() != views.keys():
            raise UsageError(
                f"{what} must be {_listed(views)}, but the algorithm returned {_listed(arrays)}"
            )
        for name, view in views.items():
            array = np.asarray(arrays[name])
            if array.shape != view.shape:
                raise UsageError(
                    f"{name!r} of {what} has the shape {array.shape}, but must have {view.shape}"
                )
            view[...] = array
        if not np.isfinite(out).all():
            broken = next(name for name, view in views.items() if not np.isfinite(view).all())
            raise UsageError(f"{broken!r} of {what} contains a value that is not finite")
        return out


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"

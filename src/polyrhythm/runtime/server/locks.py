"""One lock for every slice of the model, whether this server is its primary, a replica, or
neither."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager


class SliceLocks:
    def __init__(self, slices: int) -> None:
        self._locks = [threading.Lock() for _ in range(slices)]
        self._unknown = threading.Lock()

    def of(self, slice_: int) -> threading.Lock:
        """The lock of a slice. Invalid numbers, which a peer may send, share one lock."""
        return self._locks[slice_] if 0 <= slice_ < len(self._locks) else self._unknown

    @contextmanager
    def all_of(self, slices: Iterable[int]) -> Iterator[None]:
        """Hold the locks of these slices. The slices must be in ascending order, so that two
        threads that each take several locks cannot deadlock."""
        with ExitStack() as locks:
            for slice_ in slices:
                locks.enter_context(self._locks[slice_])
            yield

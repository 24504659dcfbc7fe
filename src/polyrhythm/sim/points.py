"""The points a worker visits: the cursor through leased chunks, without the points themselves.

The order of chunks, and of points within one, is not shuffled here: nobody looks at them.
"""

from polyrhythm.wire.messages import ChunkLease, Leased, Progress


class Points:
    def __init__(self) -> None:
        self.everything = 0
        """How many points are leased."""
        self._epochs: int | None = None
        self._chunks: dict[int, ChunkLease] = {}
        self._at: dict[int, tuple[int, int]] = {}
        self._been: dict[int, tuple[int, int]] = {}
        """How far this worker has been in any chunk, leased to it now or not."""
        self._left: list[int] = []
        """Chunks of this pass that are not wholly visited, the next one last."""
        self._lease: Leased | None = None

    def take(self, lease: Leased) -> bool:
        """A new lease: a chunk begins where the lease says, or further on if this worker has been
        further and that is still on its way. After an eviction the worker is somebody new, who has
        been nowhere: True."""
        if lease is self._lease:
            return False
        anew = self._lease is not None and lease.incarnation != self._lease.incarnation
        if anew:
            self._been.clear()
        self._lease, self._epochs = lease, lease.epochs
        self._chunks = {chunk.chunk: chunk for chunk in lease.chunks}
        self._at = {
            number: max(self._been.get(number, (0, 0)), (chunk.passes, chunk.cursor))
            for number, chunk in self._chunks.items()
        }
        self._left.clear()
        self.everything = sum(chunk.last - chunk.first for chunk in lease.chunks)
        return anew

    def left(self, count: int) -> int:
        """How many of up to `count` points `next` would give."""
        if not self._left and not self._begin_pass():
            return 0
        found = 0
        for number in reversed(self._left):
            chunk = self._chunks[number]
            found += chunk.last - chunk.first - self._at[number][1]
            if found >= count:
                return count
        return found

    def next(self, count: int) -> tuple[int, tuple[Progress, ...]]:
        """Up to `count` points of one pass, and the progress they make. None are left: 0."""
        if not self._left and not self._begin_pass():
            return 0, ()
        visited = 0
        progress: list[Progress] = []
        while self._left and visited < count:
            number = self._left[-1]
            passes, cursor = self._at[number]
            chunk = self._chunks[number]
            length = chunk.last - chunk.first
            taken = min(count - visited, length - cursor)
            visited += taken
            cursor += taken
            if cursor >= length:
                passes, cursor = passes + 1, 0
                self._left.pop()
            self._at[number] = self._been[number] = (passes, cursor)
            progress.append(Progress(number, passes, cursor))
        return visited, tuple(progress)

    def _begin_pass(self) -> bool:
        """The chunk that was begun comes first (the last of the list), then the rest."""
        this_pass = min(self._at.values(), default=(0, 0))[0]
        if self._epochs is not None and this_pass >= self._epochs:
            return False
        self._left = [number for number, (passes, _) in self._at.items() if passes == this_pass]
        self._left.sort(key=lambda number: (self._at[number][1] > 0, -number))
        return bool(self._left)

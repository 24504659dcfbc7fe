"""Which workers have as many contributions on their way as they may have unacknowledged.

The lead knows one by its trailer, and that it is acknowledged, or about to be, by its being complete.
"""


class InFlight:
    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[tuple[int, int], set[int]] = {}
        """Per worker and incarnation, the sequences that are on their way."""
        self._full_ns: dict[tuple[int, int], int] = {}
        """Since when there are as many as there may be."""

    def sent(self, worker: int, incarnation: int, sequence: int, now_ns: int) -> None:
        key = worker, incarnation
        sequences = self._open.setdefault(key, set())
        sequences.add(sequence)
        if len(sequences) >= self._most:
            self._full_ns.setdefault(key, now_ns)

    def counted(self, worker: int, incarnation: int, sequence: int) -> None:
        key = worker, incarnation
        sequences = self._open.get(key)
        if sequences is not None:
            sequences.discard(sequence)
            if len(sequences) < self._most:
                self._full_ns.pop(key, None)

    def forget(self, worker: int, incarnation: int) -> None:
        self._open.pop((worker, incarnation), None)
        self._full_ns.pop((worker, incarnation), None)

    def full(self) -> tuple[set[int], int] | None:
        """Whose are full, and since when the first of them is."""
        if not self._full_ns:
            return None
        return {worker for worker, _ in self._full_ns}, min(self._full_ns.values())

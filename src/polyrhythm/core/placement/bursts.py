"""Collects the bursts of bytes that a process receives, until the process reports them to the lead.

*A receiver notices the beginning and the end of a burst about 50 microseconds late, because its
thread must wake up first. So bursts of less than 0.2 milliseconds or less than 8 KiB (a few
packets) are too short to measure, and are dropped.* One exception: a short burst of at least 40 kB,
the size of a probe slice (`slices.py`), is kept and counts as 0.2 milliseconds long. Otherwise a
fast link would have no measurement, and its host would seem as slow as the slowest host that sends
to it. Bursts from one process are joined if the pause between them is very short.
"""

from polyrhythm.wire.messages.bursts import MOST_BURSTS, Burst, Received

LEAST_NBYTES = 8 * 1024
_LEAST_NS = 200_000
_FAST_NBYTES = 40_000
_BREAK = 0.1
"""Two bursts are joined if the pause between them is shorter than this share of the shorter
burst."""
_LIKE = 1.5
"""Two bursts are joined only if their rates differ by at most this factor. The lead needs the times
at which most bytes arrived, so a fast burst must not be joined with a slow one."""
_EVERY_NS = 250_000_000
"""The least time between two reports. The lead averages over longer times."""


class Bursts:
    def __init__(self) -> None:
        self._bursts: dict[str, list[Burst]] = {}
        """The bursts from each process, in the order of their times."""
        self._count = 0
        self._next_ns = 0

    def add(self, source: str, began_ns: int, ended_ns: int, nbytes: int) -> None:
        """Add `nbytes` that have come from this process between these two times."""
        if ended_ns - began_ns < _LEAST_NS:
            if nbytes < _FAST_NBYTES:
                return
            began_ns = ended_ns - _LEAST_NS
        burst = Burst(source, began_ns, ended_ns, nbytes)
        before = self._bursts.setdefault(source, [])
        if before and _continues(before[-1], burst):
            before[-1] = _join(before[-1], burst)
            return
        before.append(burst)
        self._count += 1
        if self._count > MOST_BURSTS:
            self._thin()

    def _thin(self) -> None:
        """Halve the number of bursts by joining each burst with the next one."""
        self._count = 0
        for source, bursts in self._bursts.items():
            pairs = [bursts[at : at + 2] for at in range(0, len(bursts), 2)]
            self._bursts[source] = [_join(pair[0], pair[-1]) for pair in pairs]
            self._count += len(pairs)
        while self._count > MOST_BURSTS:  # a report cannot name so many sources
            self._bursts.pop(next(iter(self._bursts)))
            self._count = sum(map(len, self._bursts.values()))

    def take(self, now_ns: int) -> Received | None:
        """Return a report with the bursts since the last report, and forget them. None if there are
        no bursts, or if it is too early for another report."""
        if not self._count or now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + _EVERY_NS
        bursts = [burst for each in self._bursts.values() for burst in each]
        self._bursts, self._count = {}, 0
        return Received(now_ns, tuple(bursts))


def _continues(before: Burst, burst: Burst) -> bool:
    lengths = (before.ended_ns - before.began_ns, burst.ended_ns - burst.began_ns)
    if burst.began_ns - before.ended_ns > _BREAK * min(lengths):
        return False
    first, second = before.nbytes / lengths[0], burst.nbytes / lengths[1]
    return first <= second * _LIKE and second <= first * _LIKE


def _join(before: Burst, burst: Burst) -> Burst:
    """Join two bursts. The pause between them counts as busy time."""
    if before is burst:
        return burst
    nbytes = before.nbytes + burst.nbytes
    return Burst(before.source, before.began_ns, max(before.ended_ns, burst.ended_ns), nbytes)

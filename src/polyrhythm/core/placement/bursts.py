"""What a process remembers of the bytes that it receives, until it reports them to the lead.

A burst is counted if it is long enough. *The receiver notices its begin and its end late, by the time
that a thread needs to wake up: about 50 microseconds. So a burst of less than a fifth of a millisecond
is not counted, and none of less than 8 KiB, which are only a few packets.* But 40 kB or more that come
in less time count as a fifth of a millisecond. Otherwise a fast link would not be seen, and its host
would count as slow as the slowest host from which it gets bytes. A probe slice (`slices.py`) has 40 kB,
of which the first packets come together with the head of its frame. Bursts that follow each other
without a break, or nearly, are one burst.
"""

from polyrhythm.wire.messages.bursts import MOST_BURSTS, Burst, Received

LEAST_NBYTES = 8 * 1024
_LEAST_NS = 200_000
_FAST_NBYTES = 40_000
_BREAK = 0.1
"""A pause that is shorter than this part of the bursts on both sides does not end a burst."""
_LIKE = 1.5
"""Bursts are joined only if their rates do not differ by more than this factor: the lead looks for the
times at which most bytes arrived."""
_EVERY_NS = 250_000_000
"""Reports are not made more often than this. The lead averages over longer times."""


class Bursts:
    def __init__(self) -> None:
        self._bursts: dict[str, list[Burst]] = {}
        """Per source, in the order of time."""
        self._count = 0
        self._next_ns = 0

    def add(self, source: str, began_ns: int, ended_ns: int, nbytes: int) -> None:
        """`nbytes` have come from this process between these times."""
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
        """Join neighbours, so that half as many bursts are left."""
        self._count = 0
        for source, bursts in self._bursts.items():
            pairs = [bursts[at : at + 2] for at in range(0, len(bursts), 2)]
            self._bursts[source] = [_join(pair[0], pair[-1]) for pair in pairs]
            self._count += len(pairs)
        while self._count > MOST_BURSTS:  # there are more sources than a report can name
            self._bursts.pop(next(iter(self._bursts)))
            self._count = sum(map(len, self._bursts.values()))

    def take(self, now_ns: int) -> Received | None:
        """The bursts since the last report, if it is time for another one."""
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
    """One burst with the bytes of both. The time between them counts as busy."""
    if before is burst:
        return burst
    nbytes = before.nbytes + burst.nbytes
    return Burst(before.source, before.began_ns, max(before.ended_ns, burst.ended_ns), nbytes)

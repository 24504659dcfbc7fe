"""Decides when a simulated server adds contributions and folds.

The time of a fold is proportional to its bytes. Slices that arrive during a fold wait: with rounds
for the locks of the slices, and on arrival for the one thread that folds all slices in turn.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from polyrhythm.core import effects as fx
from polyrhythm.sim.clock import Clock
from polyrhythm.wire.messages import Contribution


class SimAdding(Protocol):
    def take(self, message: Contribution, nbytes: int) -> None:
        """Add a slice of a contribution that has arrived: now, or later if a fold is running."""

    def start(self, effect: fx.StartFold, nbytes: int) -> None:
        """Start a fold, as the machine has ordered."""

    def done(self) -> None:
        """Add the slices that arrived during the fold, which is now complete."""


class SimRoundsAdding:
    def __init__(
        self,
        clock: Clock,
        add: Callable[[Contribution], None],
        fold: Callable[[fx.StartFold], None],
        ns_per_byte: float,
    ) -> None:
        self._clock = clock
        self._add = add
        self._fold = fold
        self._ns_per_byte = ns_per_byte
        self._folding = False
        self._after: deque[Contribution] = deque()

    def take(self, message: Contribution, nbytes: int) -> None:
        if self._folding:
            self._after.append(message)
        else:
            self._add(message)

    def start(self, effect: fx.StartFold, nbytes: int) -> None:
        self._folding = True
        took_ns = int(nbytes * self._ns_per_byte)
        self._clock.at(self._clock.now_ns + took_ns, self._fold, effect)

    def done(self) -> None:
        self._folding = False
        while self._after:
            self._add(self._after.popleft())


class SimOnArrivalAdding:
    def __init__(
        self, clock: Clock, fold_slice: Callable[[Contribution], None], ns_per_byte: float
    ) -> None:
        self._clock = clock
        self._fold_slice = fold_slice
        self._ns_per_byte = ns_per_byte
        self._free_ns = 0

    def take(self, message: Contribution, nbytes: int) -> None:
        begin_ns = max(self._free_ns, self._clock.now_ns)
        self._free_ns = begin_ns + int(nbytes * self._ns_per_byte)
        self._clock.at(self._free_ns, self._fold_slice, message)

    def start(self, effect: fx.StartFold, nbytes: int) -> None:
        raise AssertionError("a fold of a round was ordered in a job without rounds")

    def done(self) -> None:
        raise AssertionError("a fold of a round was ordered in a job without rounds")

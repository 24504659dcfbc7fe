"""When a simulated server adds and folds. A fold takes as long as its bytes need, and what arrives
meanwhile waits for it: with rounds as it would for the locks of the slices, without them because one
thread folds slice after slice.
"""

from collections import deque
from collections.abc import Callable

from polyrhythm.core import effects as fx
from polyrhythm.sim.clock import Clock
from polyrhythm.wire.messages import Contribution


class SimAdding:
    def __init__(
        self,
        clock: Clock,
        add: Callable[[Contribution], None],
        fold: Callable[[fx.StartFold], None],
        fold_slice: Callable[[Contribution], None],
        *,
        rounds: bool,
        ns_per_byte: float,
    ) -> None:
        """With rounds `add` and `fold` are called when it is time to, without them `fold_slice`."""
        self._clock = clock
        self._add = add
        self._fold = fold
        self._fold_slice = fold_slice
        self._rounds = rounds
        self._ns_per_byte = ns_per_byte
        self._folding = False
        self._free_ns = 0
        self._after: deque[Contribution] = deque()

    def take(self, message: Contribution, nbytes: int) -> None:
        if self._folding:
            self._after.append(message)
        elif self._rounds:
            self._add(message)
        else:
            begin_ns = max(self._free_ns, self._clock.now_ns)
            self._free_ns = begin_ns + int(nbytes * self._ns_per_byte)
            self._clock.at(self._free_ns, self._fold_slice, message)

    def start(self, effect: fx.StartFold, nbytes: int) -> None:
        self._folding = True
        took_ns = int(nbytes * self._ns_per_byte)
        self._clock.at(self._clock.now_ns + took_ns, self._fold, effect)

    def done(self) -> None:
        """Add what has come meanwhile."""
        self._folding = False
        while self._after:
            self._add(self._after.popleft())

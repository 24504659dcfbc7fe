"""Trying one value after another for as long as the objective falls faster per second.

Two baselines of FSP search like this, at the very beginning of training: the halved interval and
the doubled mini-batch. A reading ends one trial and begins the next, so the next value is already
being tried when the one before it is judged; at the first reversal that is undone.
"""


class Climb:
    def __init__(self, first: int, *, first_rounds: int, rounds: int) -> None:
        self.value = first
        """What the coming round tries; once found, the best."""
        self.found = False
        self.gain: float | None = None
        """Of the best so far: what the objective fell by per second."""
        self._best = first
        self._tried: tuple[int, float, float] | None = None
        self._left, self._rounds = first_rounds, rounds
        self._read: float | None = None
        self._elapsed_s = 0.0

    @property
    def probe(self) -> bool:
        """The coming round begins a trial."""
        return not self.found and self._read is None

    def closed(self, elapsed_s: float, reading: float, following: int) -> None:
        """One round of a trial. `reading` counts in its first one. `following` comes next, after
        the trial; where it is the same value, the search ends with it."""
        if self._read is None:
            self._judge(reading)
            if self.found:
                return
            self._read = reading
        self._elapsed_s += elapsed_s
        self._left -= 1
        if self._left == 0:
            self._tried = (self.value, self._read, self._elapsed_s)
            self.value, self._left = following, self._rounds
            self._read, self._elapsed_s = None, 0.0

    def settle(self) -> None:
        """Stop with the best so far."""
        self.value, self.found = self._best, True

    def _judge(self, reading: float) -> None:
        if self._tried is None:
            return
        value, read, elapsed_s = self._tried
        gain = (read - reading) / elapsed_s
        if self.gain is not None and gain <= self.gain:
            self.settle()
            return
        self._best, self.gain = value, gain
        self.found = value == self.value

"""A search that tries one value after another, as long as the objective falls faster per second
with each.

Two baselines of FSP search in this way at the beginning of training: one halves the interval, the
other doubles the batch. Each measurement of the objective ends one trial and begins the next. So
the search judges a value while the next one is already in use. When the objective falls more slowly
than with the previous value, the search returns to that value and ends.
"""

import msgspec


class Climb(msgspec.Struct):
    value: int
    """The value for the next round. After the search: the best value that was found."""
    _left: int
    """The number of rounds left in the trial."""
    _rounds: int
    """The number of rounds of the next trial."""
    _best: int
    """The best value so far."""
    found: bool = False
    gain: float | None = None
    """How fast the objective fell per second with the best value so far."""
    _tried: tuple[int, float, float] | None = None
    _objective: float | None = None
    """The objective at the beginning of this trial; None if not measured yet."""
    _elapsed_s: float = 0.0

    @classmethod
    def begin(cls, first: int, *, first_rounds: int, rounds: int) -> "Climb":
        """`first_rounds`: the number of rounds of the first trial. `rounds`: the number of rounds
        of every other trial."""
        return cls(first, first_rounds, rounds, first)

    @property
    def probe(self) -> bool:
        """Whether the coming round begins a trial, so that it must measure the objective."""
        return not self.found and self._objective is None

    def on_closed(self, elapsed_s: float, objective: float, following: int) -> None:
        """Record one round of a trial.

        `objective` is used only in the first round of a trial. `following` is the value to try
        next; the search ends if it equals the current value.
        """
        if self._objective is None:
            self._judge(objective)
            if self.found:
                return
            self._objective = objective
        self._elapsed_s += elapsed_s
        self._left -= 1
        if self._left == 0:
            self._tried = (self.value, self._objective, self._elapsed_s)
            self.value, self._left = following, self._rounds
            self._objective, self._elapsed_s = None, 0.0

    def settle(self) -> None:
        """End the search and keep the best value so far."""
        self.value, self.found = self._best, True

    def _judge(self, objective: float) -> None:
        if self._tried is None:
            return
        value, objective_before, elapsed_s = self._tried
        gain = (objective_before - objective) / elapsed_s
        if self.gain is not None and gain <= self.gain:
            self.settle()
            return
        self._best, self.gain = value, gain
        self.found = value == self.value

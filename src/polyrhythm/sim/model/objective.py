"""A stand-in for learning: an objective that falls with the number of folded points.

*`w` points folded at once count as `w / (1 + w / at_once)` points, because many gradients at the
same parameters tell less than few gradients at each of many. The objective halves every `halving`
points.* So longer rounds gain less per second of work; FSP's interval balances this against the
cost of the barrier. The model has no noise, and all workers' points are alike.
"""

from polyrhythm.sim.scenario import ObjectiveTable


class Objective:
    def __init__(self, table: ObjectiveTable) -> None:
        self.value = table.start
        self._table = table
        self._worth = 0.0
        self._folded = 0.0

    def folded(self, total: float) -> None:
        """Note how many points are in the parameters now; the new ones were folded at once. A
        replica that is behind its primary changes nothing."""
        if total <= self._folded:
            return
        new, self._folded = total - self._folded, total
        self._worth += new / (1.0 + new / self._table.at_once)
        self.value = self._table.start * 0.5 ** (self._worth / self._table.halving)

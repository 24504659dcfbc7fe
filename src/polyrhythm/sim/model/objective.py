"""A stand-in for learning: an objective that falls with the points that were folded.

*`w` points folded at once are worth `w / (1 + w / at_once)` points: many gradients at one place say
less than few at each of many places. The objective halves every `halving` points' worth.* So longer
rounds gain less per second of work, which is what FSP's interval weighs against the barrier's cost.
There is nothing else in it: no noise, and no difference between workers' points.
"""

from polyrhythm.sim.scenario import ObjectiveTable


class Objective:
    def __init__(self, table: ObjectiveTable) -> None:
        self.value = table.start
        self._table = table
        self._worth = 0.0
        self._folded = 0.0

    def folded(self, total: float) -> None:
        """So many points are in the parameters by now, the new ones at once. A copy that is behind
        its primary tells nothing new."""
        if total <= self._folded:
            return
        new, self._folded = total - self._folded, total
        self._worth += new / (1.0 + new / self._table.at_once)
        self.value = self._table.start * 0.5 ** (self._worth / self._table.halving)

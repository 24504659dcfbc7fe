"""A model of learning: an objective that falls with the number of folded points.

*`w` points folded at once count as `w / (1 + w / at_once)` points, because several gradients at the
same parameters tell less than gradients at different parameters. The objective halves every
`halving` points.* So a longer round gains less per point. FSP's interval balances this lower gain
against the cost of barriers. The model has no noise, and the points of all workers are equally
useful.
"""

from polyrhythm.sim.tables import ObjectiveTable


class Objective:
    def __init__(self, table: ObjectiveTable) -> None:
        self.value = table.start
        self._table = table
        self._worth = 0.0
        self._folded = 0.0

    def on_folded(self, total: float) -> None:
        """Note the total number of points in the parameters. The points since the last call count
        as folded at once. A smaller total, from a replica that is behind its primary, changes
        nothing."""
        if total <= self._folded:
            return
        new, self._folded = total - self._folded, total
        self._worth += new / (1.0 + new / self._table.at_once)
        self.value = self._table.start * 0.5 ** (self._worth / self._table.halving)

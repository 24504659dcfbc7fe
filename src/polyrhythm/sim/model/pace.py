"""How long a worker's steps take: their noise, and the times at which its host is slower.

Steps are timed in stretches: several steps in a row, of which only the total time matters. The
noise of single steps averages out within a stretch, as on a real host. The slowness of the host at
the beginning of a stretch applies to the whole stretch.
"""

from math import ceil, sqrt
from random import Random

from polyrhythm.sim.tables import WorkersTable

_LEAST = 0.1
"""The shortest time of a step with noise, as a share of its usual time."""


class SimulatedPace:
    __slots__ = ("_began_ns", "_rng", "_table", "handling_ns", "slowness")

    def __init__(self, table: WorkersTable, began_ns: int, rng: Random) -> None:
        """`began_ns`: the simulated time at which the scenario begins."""
        self.slowness = 1.0
        self.handling_ns = int(table.handling)
        self._table = table
        self._began_ns = began_ns
        self._rng = rng

    def stretch_ns(self, steps: float, points: float, visited: float, now_ns: int) -> int:
        """Return how long `steps` steps over `points` points take if they begin now. `visited`: how
        many points the worker visited before."""
        table = self._table
        took_ns = steps * table.step * self.slowness
        if table.slows or table.tenant is not None:
            took_ns *= self._factor(now_ns)
        noise = table.step_noise
        if noise:
            took_ns *= max(
                _LEAST, self._rng.gauss(1.0, noise / sqrt(steps) if steps > 1 else noise)
            )
        else:
            took_ns *= self._varied(max(1.0, steps))
        stall = table.stall
        if stall is not None:
            stalls = (visited + points) // stall.points - visited // stall.points
            took_ns += stalls * stall.pause
        return max(1, int(took_ns))

    def point_ns(self, batch: int) -> float:
        """The usual time of one point."""
        return self._table.step * self.slowness / batch

    def _factor(self, now_ns: int) -> float:
        elapsed_ns = now_ns - self._began_ns
        factor = 1.0
        for change in self._table.slows:
            if elapsed_ns >= change.at:
                factor = change.factor
        tenant = self._table.tenant
        if tenant is not None and elapsed_ns % (tenant.on + tenant.off) < tenant.on:
            factor *= tenant.factor
        return factor

    def _varied(self, steps: float) -> float:
        """Return the mean time of this many steps, as a multiple of the usual time. Normal noise is
        not included here."""
        table, rng = self._table, self._rng
        if table.step_lognormal:
            drawn = [rng.lognormvariate(0.0, table.step_lognormal) for _ in range(ceil(steps))]
        elif table.step_pareto is not None:
            drawn = [rng.paretovariate(table.step_pareto) for _ in range(ceil(steps))]
        else:
            return 1.0
        return sum(drawn) / len(drawn)

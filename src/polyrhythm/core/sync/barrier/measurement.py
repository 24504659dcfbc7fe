"""Measures rounds, and decides which rounds are not measured because a worker is warming up."""

import msgspec

from polyrhythm.wire.messages import ContributionReport


class RoundMeasurement(msgspec.Struct):
    """The measurements of one round, summed over the reports of its contributions:

    the objective, the micro-batches, and the cost of the barrier with which the round opened.
    """

    _visited: float = 0.0
    _batch: float = 0.0
    probe_ns: int = 0
    """The longest time that a worker spent on its share of the probe sample."""
    _losses: float = 0.0
    _points: float = 0.0
    _probes: float = 0.0
    _probed: float = 0.0
    _micro_ns: float = 0.0
    _barriers_ns: int = 0
    _waited: int = 0

    def count(self, report: ContributionReport, *, first: bool = False) -> None:
        """Add one contribution. `first`: it is the worker's first one, whose micro-batches are not
        typical."""
        steps = report.steps or 1
        if not first:
            micro_ns = report.micro_ns or report.compute_ns / steps
            if micro_ns > self._micro_ns:
                self._micro_ns = micro_ns
        self._visited += report.weight
        self._batch += report.batch or report.weight / steps
        if report.probe_ns > self.probe_ns:
            self.probe_ns = report.probe_ns
        barrier_ns = report.wait_ns + report.transfer_ns
        if barrier_ns:  # a worker that has not been at a barrier yet reports 0
            self._barriers_ns += barrier_ns
            self._waited += 1
        if report.probe is not None:
            self._probes += report.probe * report.probe_points
            self._probed += report.probe_points
        if report.objective is not None:
            self._losses += report.objective * report.weight
            self._points += report.weight

    @property
    def objective(self) -> float | None:
        """The loss on the probe sample if it was evaluated, else the loss on the visited points."""
        if self._probed:
            return self._probes / self._probed
        return self._losses / self._points if self._points else None

    @property
    def batches(self) -> float:
        """The points of the round, divided by the number of points in a bsp round (one batch of the
        user's size per worker); 0 if unknown."""
        return self._visited / self._batch if self._batch else 0.0

    @property
    def micro_ns(self) -> int:
        """The duration of the slowest worker's shortest micro-batch, or of its mean step if it does
        not report micro-batches; 0 if neither was measured."""
        return round(self._micro_ns)

    @property
    def phi_ns(self) -> int:
        """The cost of the barrier with which this round opened: the workers' mean time from pause
        to resume."""
        return self._barriers_ns // max(1, self._waited)


class WarmUp(msgspec.Struct):
    """Warm-up: which rounds contain the first contribution of a worker.

    A process's first step takes many times as long as its others, so it does not show the speed of
    the host. The barrier that waited for that step is not typical either; its cost is reported with
    the next round.
    """

    _known: set[int] = set()
    in_round: bool = False
    """Whether the open round contains a worker's first contribution."""
    in_last_round: bool = False
    """Whether the round before the open one contained a worker's first contribution."""

    def on_arrived(self, worker: int) -> bool:
        """Count a contribution. Returns True if it is the worker's first."""
        first = worker not in self._known
        self._known.add(worker)
        self.in_round = self.in_round or first
        return first

    def left(self, worker: int) -> None:
        """Forget a worker: another process may join with the same number."""
        self._known.discard(worker)

    def close(self) -> None:
        """Close the open round, and open another one."""
        self.in_last_round, self.in_round = self.in_round, False

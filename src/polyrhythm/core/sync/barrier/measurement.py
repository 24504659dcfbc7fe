"""What the trailers of a round say about its objective, its micro-batches and the barrier before it."""

from polyrhythm.wire.messages import Trailer


class RoundMeasurement:
    def __init__(self) -> None:
        self._visited = self._batch = 0.0
        self.probe_ns = 0
        """The longest time that a worker spent on its share of the probe sample."""
        self._losses = self._points = 0.0
        self._probes = self._probed = 0.0
        self._micro_ns = 0.0
        self._barriers_ns = self._trailers = 0

    def count(self, trailer: Trailer, *, first: bool = False) -> None:
        """`first`: the worker's first, whose micro-batches took longer than they will."""
        steps = trailer.steps or 1
        if not first:
            micro_ns = trailer.micro_ns or trailer.compute_ns / steps
            if micro_ns > self._micro_ns:
                self._micro_ns = micro_ns
        self._visited += trailer.weight
        self._batch += trailer.batch or trailer.weight / steps
        if trailer.probe_ns > self.probe_ns:
            self.probe_ns = trailer.probe_ns
        barrier_ns = trailer.wait_ns + trailer.transfer_ns
        if barrier_ns:  # it has been at one
            self._barriers_ns += barrier_ns
            self._trailers += 1
        if trailer.probe is not None:
            self._probes += trailer.probe * trailer.probe_points
            self._probed += trailer.probe_points
        if trailer.objective is not None:
            self._losses += trailer.objective * trailer.weight
            self._points += trailer.weight

    @property
    def objective(self) -> float | None:
        """The probe sample's loss if it was asked for, else that of the points just visited."""
        if self._probed:
            return self._probes / self._probed
        return self._losses / self._points if self._points else None

    @property
    def batches(self) -> float:
        """The points of the round, as a multiple of one user's batch per worker; 0: unknown."""
        return self._visited / self._batch if self._batch else 0.0

    @property
    def micro_ns(self) -> int:
        """The slowest worker's shortest micro-batch, or its mean step where it does not say; 0 if
        nothing was measured."""
        return round(self._micro_ns)

    @property
    def phi_ns(self) -> int:
        """The mean over workers from pause to resume, at the barrier with which this round opened."""
        return self._barriers_ns // max(1, self._trailers)

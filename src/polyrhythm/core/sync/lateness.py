"""Semi-centralised coordination (FSP §5.2): who answers late stops early, so that all arrive together.

*Every worker runs the interval on its own timer, shortened by how late its contributions came: never
below half the interval, never longer than it.* Lateness is what it would be without the shortening.
Were it what remains after it, the mean would settle half-way: half shortened, half late.
"""

_RECENT = 0.3


class Lateness:
    def __init__(self) -> None:
        self._late_ns: dict[int, float] = {}
        self._shortened_ns: dict[int, int] = {}

    def own_interval(self, worker: int, interval_ns: int) -> int:
        """The worker's interval in the coming round."""
        late_ns = round(self._late_ns.get(worker, 0.0))
        shortened_ns = max(0, min(late_ns, interval_ns // 2))
        self._shortened_ns[worker] = shortened_ns
        return interval_ns - shortened_ns

    def arrived(self, worker: int, opened_ns: int, interval_ns: int, now_ns: int) -> None:
        """Its contribution to the round that opened then with that interval for all. One that comes
        too early was stopped by nobody's timer: it had seen all points, and says nothing here."""
        shortened_ns = self._shortened_ns.get(worker, 0)
        if now_ns - opened_ns < interval_ns - shortened_ns:
            return
        late_ns = now_ns - opened_ns - interval_ns + shortened_ns
        mean_ns = self._late_ns.setdefault(worker, float(late_ns))
        self._late_ns[worker] = mean_ns + _RECENT * (late_ns - mean_ns)

    def forget(self, worker: int) -> None:
        self._late_ns.pop(worker, None)
        self._shortened_ns.pop(worker, None)

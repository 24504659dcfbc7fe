"""Semi-centralised coordination (FSP §5.2): who answers late stops early, so that all arrive together.

*Every worker runs the interval on its own timer, shortened by how late its contributions came: never
below half the interval, never longer than it.* Lateness is what it would be without the shortening.
Were it what remains after it, the mean would settle half-way: half shortened, half late. A worker's
first contribution counts until its second comes, because a process's first step takes many times as
long as its others. Evaluating the probe sample is not lateness; in the rounds that begin with it, who
needs longer for it than the fastest has an interval that is as much shorter.
"""

_RECENT = 0.3
_ALONE = 2
"""So many of a worker's contributions stand for themselves: the second takes the first one's place."""


class Lateness:
    def __init__(self) -> None:
        self._late_ns: dict[int, float] = {}
        self._own_ns: dict[int, int] = {}
        self._probe_ns: dict[int, int] = {}
        self._times: dict[int, int] = {}
        """How often each has come."""

    def own_interval(self, worker: int, interval_ns: int, *, probe: bool = False) -> int:
        """The worker's interval in the coming round."""
        late_ns = round(self._late_ns.get(worker, 0.0))
        if probe and worker in self._probe_ns:
            late_ns += self._probe_ns[worker] - min(self._probe_ns.values())
        own_ns = interval_ns - max(0, min(late_ns, interval_ns // 2))
        self._own_ns[worker] = own_ns
        return own_ns

    def arrived(self, worker: int, opened_ns: int, now_ns: int, probe_ns: int = 0) -> None:
        """Its contribution to the round that opened then. One that comes far too early was stopped
        by nobody's timer: it had seen all points, and says nothing here."""
        if probe_ns:
            self._probe_ns[worker] = probe_ns
        own_ns = self._own_ns.get(worker)
        took_ns = now_ns - opened_ns - probe_ns
        if own_ns is None or 2 * took_ns < own_ns:
            return
        times = self._times[worker] = self._times.get(worker, 0) + 1
        mean_ns = self._late_ns.get(worker, 0.0)
        weight = _RECENT if times > _ALONE else 1.0
        self._late_ns[worker] = mean_ns + weight * (took_ns - own_ns - mean_ns)

    def forget(self, worker: int) -> None:
        for known in (self._late_ns, self._own_ns, self._probe_ns, self._times):
            known.pop(worker, None)

"""Semi-centralised coordination (FSP §5.2): who answers late stops early, so that all arrive together.

*Every worker runs the interval on its own timer, shortened by how late its contributions came: never
below half the interval, never longer than it.* Lateness is what it would be without the shortening.
Were it what remains after it, the mean would settle half-way: half shortened, half late. A worker's
first contribution counts until its second comes, because a process's first step takes many times as
long as its others. Evaluating the probe sample is not lateness; in the rounds that begin with it, who
needs longer for it than the fastest has an interval that is as much shorter.
"""

import msgspec

_RECENT = 0.3
_ALONE = 2
"""So many of a worker's contributions stand for themselves: the second takes the first one's place."""


class _Known(msgspec.Struct, gc=False):
    """What is known of one worker."""

    times: int = 0
    """How often it has come."""
    late_ns: float = 0.0
    own_ns: int | None = None
    probe_ns: int = 0


class Lateness:
    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._fastest_ns: int | None = None
        """What the fastest needs for its part of the probe sample; None: to be looked for."""

    def _of(self, worker: int) -> _Known:
        known = self._known.get(worker)
        if known is None:
            known = self._known[worker] = _Known()
        return known

    def own_interval(self, worker: int, interval_ns: int, *, probe: bool = False) -> int:
        """The worker's interval in the coming round."""
        known = self._of(worker)
        late_ns = round(known.late_ns)
        if probe and known.probe_ns:
            late_ns += known.probe_ns - self._fastest()
        known.own_ns = interval_ns - max(0, min(late_ns, interval_ns // 2))
        return known.own_ns

    def _fastest(self) -> int:
        if self._fastest_ns is None:
            probes_ns = (known.probe_ns for known in self._known.values() if known.probe_ns)
            self._fastest_ns = min(probes_ns, default=0)
        return self._fastest_ns

    def arrived(self, worker: int, opened_ns: int, now_ns: int, probe_ns: int = 0) -> None:
        """Its contribution to the round that opened then. One that comes far too early was stopped
        by nobody's timer: it had seen all points, and says nothing here."""
        known = self._of(worker)
        if probe_ns:
            known.probe_ns = probe_ns
            self._fastest_ns = None
        own_ns = known.own_ns
        took_ns = now_ns - opened_ns - probe_ns
        if own_ns is None or 2 * took_ns < own_ns:
            return
        known.times += 1
        weight = _RECENT if known.times > _ALONE else 1.0
        known.late_ns += weight * (took_ns - own_ns - known.late_ns)

    def forget(self, worker: int) -> None:
        self._known.pop(worker, None)
        self._fastest_ns = None

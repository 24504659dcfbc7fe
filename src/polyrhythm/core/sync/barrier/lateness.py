"""Semi-centralised coordination (FSP §5.2): late workers stop earlier, so that all arrive together.

Every worker runs the interval on its own timer, shortened by the mean lateness of its
contributions, but never to less than half of the interval. Lateness is calculated as if the
interval had not been shortened. Otherwise the correction would reduce the lateness from which it is
calculated, and half of the delay would remain.

The first measurement of a worker is dropped when the second one comes, because a process's first step
takes many times as long as its others. The time to evaluate the probe sample does not count as
lateness. In rounds that begin with the probe sample, the interval of each worker is shortened by the
time that it needs for the sample beyond that of the fastest worker.
"""

import msgspec

_RECENT = 0.3
_ALONE = 2
"""The first two contributions of a worker are not averaged: the second one replaces the first."""


class _Known(msgspec.Struct, gc=False):
    """The measurements of one worker."""

    times: int = 0
    """The number of contributions that were measured."""
    late_ns: float = 0.0
    own_ns: int | None = None
    probe_ns: int = 0


class Lateness:
    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._fastest_ns: int | None = None
        """The time that the fastest worker needs for its part of the probe sample; None if it must
        be calculated again."""

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
        """Measure a worker's contribution to the round that opened at `opened_ns`.

        A contribution that arrives far too early is ignored: the worker had visited all of its
        points and did not wait for its timer.
        """
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

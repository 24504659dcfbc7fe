"""The throughput of links and hosts, as the receiving processes measure it (Aware, §3.2).

A receiver reports bursts (`bursts.py`). A burst is a number of bytes that came from one process
without a break, with the times of its beginning and end; Eq. 6 computes its rate. The lead puts the
bursts of all receivers on one time axis and adds the rates of overlapping bursts. *So it adds two
links of one network card only while both are busy.* The paper adds the average rates of all links
of a host (Eq. 8), so it counts a card twice if two of its links are busy at different times.

*A host that waits for slower hosts is faster than its traffic shows.* So the lead takes the rate of
the busiest quarter of the bytes, and not the mean over the busy time. If a host sends less than
before while all of its peers work at their limits, its average stays, because the peers are the
limit. The throughput S_i of a host is the smaller of its sending and its receiving rate.

Each rate is a moving average. A new value within a quarter of the average moves the average by a
third of the difference. A value further away moves it by half of the difference. A second such
value in the same direction replaces the average.

Bursts between processes of one host do not use its network card and are not counted. The lead
ignores a burst if its source is unknown, if it has no length, if it ends after the time of its
report, or if its rate is impossible.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from polyrhythm.wire.messages.bursts import Burst, Received

_EVERY_NS = 1_000_000_000
"""The shortest time between two updates of the averages. In a job with short rounds, the reports
about the pushes and the pulls of a round arrive in different rounds."""
_LATEST_NS = 60 * 10**9
_BUSIEST = 0.25
_NEAR = 1.25
_GAIN_NEAR, _GAIN_FAR = 1 / 3, 1 / 2
_LEAST_RATE, _MOST_RATE = 1.0, 1e12
"""In bytes per second. A rate outside these limits is a wrong measurement: no link is that slow or
fast."""
_OLDEST_NS = 600 * 10**9
"""A burst that ended longer than this before its report does not show the present rate."""
_OFFSETS = 16


class Average(msgspec.Struct, gc=False):
    """The moving average of a rate. After a lasting change, the second new value becomes the
    average. A single outlier moves the average only part of the way."""

    value: float
    _far: int = 0
    """In which direction the last value was far from the average: 1, -1, or 0 if it was near."""

    def add(self, rate: float) -> None:
        far = (rate > self.value * _NEAR) - (rate < self.value / _NEAR)
        if far and far == self._far:
            self.value, self._far = rate, 0
            return
        self.value += (_GAIN_FAR if far else _GAIN_NEAR) * (rate - self.value)
        self._far = far


class Transfer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A burst from one host to another. Its times are those of the lead's clock."""

    source: str
    target: str
    began_ns: int
    ended_ns: int
    nbytes: int


class Network(msgspec.Struct, kw_only=True):
    """The hosts of the processes of a job, and the measured rates between hosts. Rates are in bytes per
    second."""

    _host_of: dict[str, str] = {}
    """The host of each process."""
    _names: dict[str, str] = {}
    """The names of hosts by their identities."""
    _links: dict[str, dict[str, Average]] = {}
    """Per source host and target host."""
    _sent: dict[str, Average] = {}
    _received: dict[str, Average] = {}
    _fresh: list[Transfer] = []
    """The transfers since the last update of the averages."""
    _offsets: dict[str, list[int]] = {}
    """Per host, the last differences between two clocks: the lead's when a report arrived, and the
    host's when it made the report. The smallest difference contains the least delay."""
    _settled_ns: int = 0
    _heard: set[str] = set()
    """The workers that have sent a contribution since `_settled_ns`, the time of the last update of
    the averages."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts on which a process of the job runs."""
        return tuple(sorted(set(self._host_of.values())))

    def host_of(self, process: str) -> str:
        """The host of a process, such as w3 or s1. If the host of a process is not known, the
        process's own name stands for it."""
        return self._host_of.get(process, process)

    def rate(self, source: str, target: str) -> float | None:
        """The measured rate of the link from one host to another; None if it was never measured."""
        average = self._links.get(source, {}).get(target)
        return None if average is None else average.value

    @property
    def rates(self) -> dict[str, dict[str, float]]:
        """The measured rates of all links, by source host and target host."""
        return {
            source: {target: average.value for target, average in to.items()}
            for source, to in self._links.items()
            if to
        }

    @property
    def residents(self) -> dict[str, list[str]]:
        """The processes on each host."""
        found: dict[str, list[str]] = {host: [] for host in self.hosts}
        for process in sorted(self._host_of, key=lambda name: (name[0], int(name[1:] or 0))):
            found[self._host_of[process]].append(process)
        return found

    def throughput(self, host: str) -> float | None:
        """S_i: the smaller of the total rates at which a host sends and receives; None if neither was
        measured."""
        known = [table[host].value for table in (self._sent, self._received) if host in table]
        return min(known, default=None)

    # -- processes -----------------------------------------------------------------------------

    def learn(self, process: str, host: str, identity: str = "") -> None:
        """Note that a process of the job runs on this host. `identity` distinguishes the host, and
        the user account on it, from others with the same name (`io/local.py`). If it is empty, the
        process gets a host for itself."""
        if identity:
            place = identity.rpartition("/")[0] or identity
            self._host_of[process] = self._names.setdefault(place, self._unused(host or process))
        else:
            self._host_of[process] = process

    def _unused(self, host: str) -> str:
        """This name, if no other host has it. Otherwise a free name that begins with it."""
        taken = set(self._names.values())
        names = (host, *(f"{host}-{number}" for number in range(2, len(taken) + 3)))
        return next(name for name in names if name not in taken)

    def forget(self, process: str) -> None:
        """Forget a process that has left the job. When the last process of a host has left, forget
        the measurements of the host too."""
        host = self._host_of.pop(process, None)
        if host is None or host in self._host_of.values():
            return
        for table in (self._links, self._sent, self._received, self._offsets):
            table.pop(host, None)
        for rates in self._links.values():
            rates.pop(host, None)
        self._fresh = [item for item in self._fresh if host not in (item.source, item.target)]

    # -- measurements --------------------------------------------------------------------------

    def record(self, process: str, received: Received, now_ns: int) -> None:
        """Record the bursts in the report of a process."""
        target = self.host_of(process)
        offsets = self._offsets.setdefault(target, [])
        offsets.append(now_ns - received.at_ns)
        del offsets[:-_OFFSETS]
        offset_ns = min(offsets)
        for burst in received.bursts:
            source = self._host_of.get(burst.source)
            if source is not None and source != target and is_plausible(burst, received.at_ns):
                began_ns, ended_ns = burst.began_ns + offset_ns, burst.ended_ns + offset_ns
                self._fresh.append(Transfer(source, target, began_ns, ended_ns, burst.nbytes))

    def on_contribution(self, worker: str) -> None:
        """Note that a worker has sent a contribution."""
        self._heard.add(worker)

    def settle(self, now_ns: int, workers: Iterable[str] = ()) -> bool:
        """Update the averages with the transfers since the last update, if all of these workers
        have sent a contribution since then. Returns whether there was an update. *The transfers
        must include the traffic of every worker: during a part of a round, the fastest hosts may
        send to slow hosts only.* A worker that contributes nothing for a minute no longer delays
        the update."""
        if not self._fresh or now_ns < self._settled_ns + _EVERY_NS:
            return False
        waited_ns = now_ns - self._fresh[0].ended_ns
        if waited_ns < _LATEST_NS and not self._heard.issuperset(workers):
            return False
        self._heard.clear()
        self._settled_ns = now_ns
        fresh, self._fresh = self._fresh, []
        links: dict[tuple[str, str], list[Transfer]] = {}
        for item in fresh:
            links.setdefault((item.source, item.target), []).append(item)
        rates = {link: busiest_rate(items) for link, items in links.items()}
        sent = {host: average.value for host, average in self._sent.items()}
        received = {host: average.value for host, average in self._received.items()}
        for host in sorted({item.source for item in fresh}):
            peers = {target: rate for (source, target), rate in rates.items() if source == host}
            rate = busiest_rate(item for item in fresh if item.source == host)
            if rate >= sent.get(host, 0.0) or not _at_their_limits(peers, received):
                _add(self._sent, host, rate)
        for host in sorted({item.target for item in fresh}):
            peers = {source: rate for (source, target), rate in rates.items() if target == host}
            rate = busiest_rate(item for item in fresh if item.target == host)
            if rate >= received.get(host, 0.0) or not _at_their_limits(peers, sent):
                _add(self._received, host, rate)
        for (source, target), rate in rates.items():
            _add(self._links.setdefault(source, {}), target, rate)
        return True


def _at_their_limits(peers: Mapping[str, float], limits: Mapping[str, float]) -> bool:
    """Whether each of these peers has reached at least half of its highest rate. If so, the peers
    limit the traffic, and its rate says nothing about this host: a fast host that only fetches
    slices from a slow host is not slow. A peer that exchanges bytes with many hosts gives each of
    them less than half of its highest rate."""
    return all(limits.get(peer, math.inf) <= 2 * rate for peer, rate in peers.items())


def _add(averages: dict[str, Average], name: str, rate: float) -> None:
    if (average := averages.get(name)) is None:
        averages[name] = Average(rate)
    else:
        average.add(rate)


def is_plausible(burst: Burst, at_ns: int) -> bool:
    """Whether the times and the rate of a burst are possible, in a report that was made at
    `at_ns`."""
    length_ns = burst.ended_ns - burst.began_ns
    if length_ns <= 0 or not at_ns - _OLDEST_NS <= burst.ended_ns <= at_ns:
        return False
    return _LEAST_RATE <= burst.nbytes * 1e9 / length_ns <= _MOST_RATE


def busiest_rate(transfers: Iterable[Transfer]) -> float:
    """The mean rate of the busiest quarter of the transferred bytes: those that were sent while the
    total rate of all transfers was highest."""
    changes: dict[int, tuple[float, int]] = {}
    for item in transfers:
        rate = item.nbytes * 1e9 / (item.ended_ns - item.began_ns)
        for at_ns, sign in ((item.began_ns, 1), (item.ended_ns, -1)):
            before = changes.get(at_ns, (0.0, 0))
            changes[at_ns] = (before[0] + sign * rate, before[1] + sign)
    segments: list[tuple[float, int]] = []
    total, count, since_ns = 0.0, 0, 0
    for at_ns in sorted(changes):
        if count:
            segments.append((total, at_ns - since_ns))
        rate, more = changes[at_ns]
        total, count, since_ns = total + rate, count + more, at_ns
    left = wanted = _BUSIEST * sum(rate * length for rate, length in segments)
    time_ns = 0.0
    for rate, length in sorted(segments, reverse=True):
        taken = min(left, rate * length)
        time_ns += taken / rate
        left -= taken
        if left <= 0:
            break
    return wanted / time_ns

"""The throughput of links and of hosts, as the processes that receive have measured it (Aware, §3.2).

A receiver reports bursts (`bursts.py`): bytes that came from one process without a break, and when
(Eq. 6 is their rate). The lead places the bursts of all receivers on one time axis and adds up those
that overlap. *So links that share a network card are added only while they are busy at the same time.*
The paper adds average rates, s_ij over all j (Eq. 8), and so counts a card twice whose links take turns.

*A host that waits for slower ones shows less than it can do.* So a rate is that of the busiest quarter
of the bytes, and not the mean over the busy time. It is not lowered while all hosts at the other ends
are about as fast as they ever are: then they are the limit. The throughput S_i of a
host is the smaller of what it sends and what it receives.

Averages forget: a new rate that differs little moves the average by a third of the difference. One that
differs by more than a quarter moves it by half, and a second one in the same direction replaces it.

Bursts between processes of one host never reach its card, and are not counted. A burst is refused if
its source is unknown, if it has no length or ends after its report, and if its rate is absurd.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from polyrhythm.wire.messages.bursts import Burst, Received

_EVERY_NS = 1_000_000_000
"""Averages take in new bursts at most this often: in a job with short rounds, reports of the two
directions of a round come in different rounds."""
_LATEST_NS = 60 * 10**9
_BUSIEST = 0.25
_NEAR = 1.25
_GAIN_NEAR, _GAIN_FAR = 1 / 3, 1 / 2
_LEAST_RATE, _MOST_RATE = 1.0, 1e12
"""Bytes per second. No link is that slow or that fast: the measurement is wrong."""
_OLDEST_NS = 600 * 10**9
"""A burst that ended longer ago than this, at the time of its report, does not show the
present rate."""
_OFFSETS = 16


class Average(msgspec.Struct, gc=False):
    """The average of a rate. After a lasting change it has the new rate within two values; a single
    outlier moves it only in part."""

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
    """A burst between two hosts, by the clock of the lead."""

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
    """The transfers that the averages do not contain yet."""
    _offsets: dict[str, list[int]] = {}
    """Per host: the last differences between the lead's clock, when a report came, and the host's clock,
    when it was made. The smallest is the one with the least delay."""
    _settled_ns: int = 0
    _heard: set[str] = set()
    """The workers that have sent contributions since `_settled_ns`, when bursts were last taken
    into the averages."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts on which a process of the job runs."""
        return tuple(sorted(set(self._host_of.values())))

    def host_of(self, process: str) -> str:
        """The host of a process, such as w3 or s1. A process whose host is not known counts as a host
        of the same name."""
        return self._host_of.get(process, process)

    def rate(self, source: str, target: str) -> float | None:
        """What the link from one host to another has carried; None if it was never measured."""
        average = self._links.get(source, {}).get(target)
        return None if average is None else average.value

    @property
    def rates(self) -> dict[str, dict[str, float]]:
        """What every measured link has carried, per source host and target host."""
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
        """A process of the job runs on this host. `identity`: what distinguishes the host from others
        of the same name, with the user at its end (`io/local.py`); empty if that is not known: then
        the process counts as a host of its own."""
        if identity:
            place = identity.rpartition("/")[0] or identity
            self._host_of[process] = self._names.setdefault(place, self._unused(host or process))
        else:
            self._host_of[process] = process

    def _unused(self, host: str) -> str:
        """This name, if no other host has it; otherwise the first name made from it that is
        free."""
        taken = set(self._names.values())
        names = (host, *(f"{host}-{number}" for number in range(2, len(taken) + 3)))
        return next(name for name in names if name not in taken)

    def forget(self, process: str) -> None:
        """A process is no longer part of the job. What was measured of a host is forgotten with its
        last process."""
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
        """Note what a process has received."""
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
        """A worker has sent a contribution."""
        self._heard.add(worker)

    def settle(self, now_ns: int, workers: Iterable[str] = ()) -> bool:
        """Take the transfers since the last time into the averages, if all of these workers have sent
        contributions since then. Returns whether there were any. *The time between must contain the
        traffic of every worker: in a part of a round, the fastest hosts may only send to slow ones.* A
        worker that contributes nothing for a minute is not waited for."""
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
    """Whether all of these peers were at least half as fast as they ever are. Then their rates say
    nothing about the host at the other end: a fast host that only fetches slices from a slow one is not
    slow. A host that exchanges bytes with many gives each of them less than half of what it can do."""
    return all(limits.get(peer, math.inf) <= 2 * rate for peer, rate in peers.items())


def _add(averages: dict[str, Average], name: str, rate: float) -> None:
    if (average := averages.get(name)) is None:
        averages[name] = Average(rate)
    else:
        average.add(rate)


def is_plausible(burst: Burst, at_ns: int) -> bool:
    """Whether a burst in a report of the time `at_ns` can have happened as it says."""
    length_ns = burst.ended_ns - burst.began_ns
    if length_ns <= 0 or not at_ns - _OLDEST_NS <= burst.ended_ns <= at_ns:
        return False
    return _LEAST_RATE <= burst.nbytes * 1e9 / length_ns <= _MOST_RATE


def busiest_rate(transfers: Iterable[Transfer]) -> float:
    """The rate of the busiest quarter of the bytes of these transfers. A byte is the busier, the
    higher the total rate of all transfers is that are under way together with its own."""
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

"""The measured rates of links in words: a matrix for `status --links`, and the link that a job waits for
(`why`)."""

from collections.abc import Iterable, Sequence

from polyrhythm.core.names import server_name, worker_name
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.observe.columns import aligned, cut, width
from polyrhythm.observe.state import MeasuredLinks, RunState
from polyrhythm.observe.words import duration, listed, percent, size, wrapped
from polyrhythm.wire.messages import JobSpec

_BUSY = 0.5
"""Rounds wait for links if transfers take at least this part of their time."""
_OF_HOST, _OF_PROCESSES = 5, 4
"""The most columns for the name of a host, and for the names of its processes."""
_ROUNDS = 3
"""The duration of a round is computed from this many lines of the journal."""


def links_in_words(state: RunState, columns: int) -> list[str]:
    """The lines of `status --links`, in at most this many columns."""
    measured = state.measured
    if measured is None:
        return [*_text(_unmeasured(state), columns), *_loads(state, columns)]
    at = f"measured at {measured.at_s:.1f} s, in MB/s"
    title = f"{at}; the host of a row sends to the host of a column:"
    lines = [*_text(title, columns), *_matrix(measured, columns)]
    if measured.seconds is not None:
        seconds = duration(measured.seconds)
        slowest = f"the transfers of a round take longest on {measured.slowest}: about {seconds}"
        lines += _text(slowest, columns)
    return [*lines, *_loads(state, columns)]


def _text(text: str, columns: int) -> list[str]:
    return wrapped(text, columns).split("\n")


def _unmeasured(state: RunState) -> str:
    hosts = {host for _, host in state.processes.values() if host}
    if len(hosts) < 2:
        return "no rates: all known processes of the job are on one host"
    return "no rates yet: a link is measured when 8 KiB or more arrive without a pause"


def _matrix(measured: MeasuredLinks, columns: int) -> list[str]:
    """Rates from the hosts of rows to the hosts of columns. Columns have numbers instead of names,
    to be narrow. Columns that do not fit follow in further blocks."""
    hosts = list(measured.hosts)
    rows = [["", "host", "processes"]]
    for at, host in enumerate(hosts):
        there = cut(", ".join(measured.hosts[host]), columns // _OF_PROCESSES)
        rows.append([str(at + 1), cut(host, columns // _OF_HOST), there])
    ends = len(rows[0])
    lines, block = [], rows
    for at, other in enumerate(hosts):
        rates = [measured.rates.get(host, {}).get(other) for host in hosts]
        cells = [str(at + 1), *map(_rate, rates)]
        cells[at + 1] = "-"
        wider = [[*row, cell] for row, cell in zip(block, cells, strict=True)]
        if width(wider) > columns and len(block[0]) > ends:
            lines += _drawn(block, columns)
            wider = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
        block = wider
    return [*lines, *_drawn(block, columns)]


def _drawn(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    right = [True, False, False, *[True] * (len(rows[0]) - 3)]
    return [cut(line, columns) for line in aligned(rows, right)]


def _rate(rate: float | None) -> str:
    if rate is None:
        return "?"
    mb = rate / 1e6
    return f"{mb:.0f}" if mb >= 100 else f"{mb:.1f}" if mb >= 10 else f"{mb:.2f}"


def _loads(state: RunState, columns: int) -> list[str]:
    """One line for each server: its slices, their bytes, and its part of the model."""
    if not state.slices:
        return []
    total = sum(state.loads.values())
    rows = [["server", "host", "slices", "holds", "of all"]]
    for server, slices in state.slices.items():
        name, nbytes = server_name(server), state.loads.get(server)
        host = None if state.measured is None else state.measured.host_of(name)
        host = host or state.processes.get(name, (0, ""))[1]
        held = ["", ""] if nbytes is None or not total else [size(nbytes), percent(nbytes / total)]
        rows.append([name, cut(host, columns // _OF_HOST), str(slices), *held])
    lines = aligned(rows, [False, False, True, True, True])
    return ["", *(cut(line, columns) for line in lines)]


# -- why -------------------------------------------------------------------------------------------


def awaited_link(state: RunState, workers: Iterable[int], servers: object) -> str | None:
    """The slowest measured link that contributions of these workers use to reach these servers."""
    measured = state.measured
    if measured is None or not isinstance(servers, Sequence):
        return None
    found: list[tuple[float, str]] = []
    for worker in workers:
        for server in servers:
            source = measured.host_of(worker_name(worker))
            target = measured.host_of(server_name(server))
            rate = measured.rates.get(source or "", {}).get(target or "")
            if rate is not None:
                ends = (
                    f"from {source} ({state.name_of(worker)}) to {target} ({server_name(server)})"
                )
                found.append((rate, ends))
    if not found:
        return None
    rate, ends = min(found)
    return f"contributions come over the link {ends}: {size(rate)}/s when it was last measured"


def busy_link(state: RunState, job: JobSpec) -> str | None:
    """The host whose links take most of the time of rounds; None if something else takes longer, or
    if this is not known."""
    measured, round_s = state.measured, _round_s(state, job)
    if measured is None or measured.slowest is None or measured.seconds is None or not round_s:
        return None
    share = min(1.0, measured.seconds / round_s)
    host = measured.host_of(measured.slowest)
    if share < _BUSY or host is None:
        return None
    there = listed(measured.hosts[host])
    rate = measured.throughputs.get(host)
    carry = "" if rate is None else f", which carry {size(rate)}/s,"
    slow = _slowest_of(measured, host)
    return (
        f"the links of {host} ({there}){carry} take about {duration(measured.seconds)} of the"
        f" {duration(round_s)} of a round{slow}"
    )


def _slowest_of(measured: MeasuredLinks, host: str) -> str:
    """The slowest link of a host in words, if it has several."""
    rates = {(host, other): rate for other, rate in measured.rates.get(host, {}).items()}
    rates |= {(other, host): to[host] for other, to in measured.rates.items() if host in to}
    if len(rates) < 2:
        return ""
    source, target = min(rates, key=lambda pair: rates[pair])
    return f"; the slowest is from {source} to {target}, with {size(rates[source, target])}/s"


def _round_s(state: RunState, job: JobSpec) -> float | None:
    """How long the last rounds took; None without rounds, or if too few rounds are known."""
    last = state.curve[-_ROUNDS:]
    if not traits_of(job.sync).rounds or len(last) < 2 or last[-1].round <= last[0].round:
        return None
    return (last[-1].at_s - last[0].at_s) / (last[-1].round - last[0].round)

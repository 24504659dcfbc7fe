"""Decisions about the processes of a job on a cluster (Ray): which resources each process asks for,
which cluster is used, what a job waits for while the cluster has no room, and in which words the
end of a process is reported.

*A job fails if the cluster has no room for all of its servers, or for any worker, for as long as the
start timeout. Otherwise a worker without room is waited for as long as the job runs.*
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.errors import UsageError

CPU, GPU = "CPU", "GPU"
_ITEM = re.compile(r"(?:(?P<count>\d+):)?(?P<items>.+)", re.ASCII)
_FORM = (
    "give NAME=NUMBER, such as CPU=2 or GPU=1,CPU=4; LABEL=VALUE chooses nodes by a label, and 2:GPU=1"
    " is for two processes"
)


class Demand(msgspec.Struct, frozen=True):
    """The resources that one process asks for. Processes with equal demands are interchangeable."""

    amounts: tuple[tuple[str, float], ...] = ((CPU, 1.0),)
    labels: tuple[tuple[str, str], ...] = ()
    """The labels that the node must have."""

    @property
    def resources(self) -> dict[str, float]:
        return dict(self.amounts)

    def __str__(self) -> str:
        said = [f"{name}={amount:g}" for name, amount in self.amounts]
        return ",".join([*said, *(f"{name}={value}" for name, value in self.labels)]) or "nothing"


def parse_demands(flag: str, given: Sequence[str]) -> list[tuple[int | None, Demand]]:
    """Parse the values of a flag into demands, each with the number of processes to which it
    applies. A demand with the number None applies to every process that has no other demand. Raises
    UsageError if a value is not understood."""
    found = [_parse_demand(flag, text) for text in given]
    if sum(count is None for count, _ in found) > 1:
        raise UsageError(
            f"{flag} is given twice for all processes: write 2:GPU=1, for example, if one of them is for"
            " two processes only"
        )
    return found


def _parse_demand(flag: str, text: str) -> tuple[int | None, Demand]:
    match = _ITEM.fullmatch(text)
    amounts: dict[str, float] = {}
    labels: dict[str, str] = {}
    for item in (match["items"] if match else text).split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{flag} {text!r} is not understood: {_FORM}")
        try:
            amounts[name] = float(value)
        except ValueError:
            labels[name] = value
            continue
        if not 0 <= amounts[name] < float("inf"):
            raise UsageError(f"{flag} {text!r}: {name} must be at least 0")
    amounts.setdefault(CPU, 1.0)
    count = int(match["count"]) if match and match["count"] else None
    return count, Demand(tuple(sorted(amounts.items())), tuple(sorted(labels.items())))


def demands_of(flag: str, given: Sequence[str], processes: int) -> list[Demand]:
    """The demand of each process. Demands with a number apply to the first processes. A process to
    which no demand applies asks for one CPU."""
    parsed = parse_demands(flag, given)
    rest = next((demand for count, demand in parsed if count is None), Demand())
    counted = [demand for count, demand in parsed for _ in range(count or 0)]
    if len(counted) > processes:
        raise UsageError(
            f"{flag} is for {len(counted)} processes, and this command starts {processes} of them"
        )
    return counted + [rest] * (processes - len(counted))


def threads_for(demand: Demand) -> int:
    """How many threads a process uses: as many as it has CPUs, rounded down, and at least one."""
    return max(1, int(demand.resources.get(CPU, 0)))


# -- how many workers ----------------------------------------------------------------------------


def worker_range(text: str | int) -> tuple[int, int]:
    """Parse the number of workers, such as `8` or `2..8`. Returns the number of workers with which
    the job begins, and the largest number that it accepts. Raises UsageError."""
    least, dots, most = str(text).partition("..")
    try:
        numbers = int(least), int(most if dots else least)
    except ValueError:
        raise UsageError(f"--workers is {text!r}: give a number, or two, such as 2..8") from None
    if numbers[0] < 1:
        raise UsageError(f"--workers is {text}: it must be at least 1")
    if numbers[1] < numbers[0]:
        raise UsageError(f"--workers is {text}: the second number must not be below the first")
    return numbers


# -- which Ray ------------------------------------------------------------------------------------

_OLDEST = (2, 52)


def check_ray(version: str) -> None:
    """Raise UsageError if this version of Ray is too old."""
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise UsageError(
            f"--engine ray needs Ray {oldest} or later, and this is {version}: run"
            " pip install -U 'polyrhythm[ray]'"
        )


# -- which cluster -------------------------------------------------------------------------------

AUTO, HERE = "auto", "local"
"""Values of `--ray-address`: the cluster of this machine, and a new one that ends with the job."""
CLIENT = "ray://"
"""The address of a session of Ray Client."""


_NO_CLIENT = (
    "Ray Client (ray://), which is not supported, because messages of the processes would travel"
    " through a proxy that ends with its connection; run this command on a node of the cluster, for"
    " example with 'ray job submit', and give HOST:PORT"
)


def choose_address(given: str | None, environment: str | None, joined: str | None) -> str | None:
    """The address of the cluster to join; None: the cluster of this machine, or else a new one.
    `given`: the option. `environment`: RAY_ADDRESS. `joined`: the address of the cluster that this
    process has joined already. Raises UsageError if the address cannot be used."""
    if joined == CLIENT:
        raise UsageError(f"this process has joined a cluster by {_NO_CLIENT}")
    if joined is not None:
        if given not in (None, AUTO, joined):
            raise UsageError(
                f"--address {given}: this process has joined the Ray cluster at {joined} already;"
                " leave --address out, or call ray.shutdown() before"
            )
        return joined
    address, source = (given, "--address") if given else (environment or None, "RAY_ADDRESS")
    if given == AUTO and environment:
        address, source = environment, "RAY_ADDRESS"
    if address is None or address in (AUTO, HERE):
        return address
    if "://" in address:
        raise UsageError(f"{source} {address}: {_NO_CLIENT}")
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{source} {address!r} is not understood: give HOST:PORT, auto or local")
    return address


# -- room on the nodes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster. `totals`: all of its resources, in use or free."""

    node: str
    address: str
    alive: bool = True
    totals: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    died: str = ""
    """Why the node has died, as the cluster says; empty if it does not say."""

    def has(self, demand: Demand) -> bool:
        enough = all(self.totals.get(name, 0) >= amount for name, amount in demand.amounts)
        return enough and all(self.labels.get(name) == value for name, value in demand.labels)


def lacking(
    pending: Mapping[str, Demand], nodes: Sequence[ClusterNode], free: Mapping[str, float]
) -> str:
    """Describe what the processes without a place wait for. `free`: the free resources of the whole
    cluster."""
    names: dict[Demand, list[str]] = {}
    for name, demand in pending.items():
        names.setdefault(demand, []).append(name)
    return "; ".join(_lack(demand, who, nodes, free) for demand, who in names.items())


def _lack(
    demand: Demand,
    names: Sequence[str],
    nodes: Sequence[ClusterNode],
    free: Mapping[str, float],
) -> str:
    if len(names) == 1:
        waits = f"{names[0]} has not started yet and asks for {demand}"
    else:
        who = f"{', '.join(names[:-1])} and {names[-1]}"
        waits = f"{who} have not started yet and ask for {demand} each"
    alive = [node for node in nodes if node.alive]
    asked = [*demand.resources, *([] if CPU in demand.resources else [CPU])]
    if not any(node.has(demand) for node in alive):
        there = sorted({_amounts(node.totals, asked) for node in alive})
        return f"{waits}: no node of the cluster has that (nodes: {'; '.join(there) or 'none'})"
    room = f"{waits}: the cluster has {_amounts(free, asked)} free"
    if all(free.get(name, 0) >= amount * len(names) for name, amount in demand.amounts):
        starts = "it is starting" if len(names) == 1 else "they are starting"
        return f"{room}, so either {starts}, or no single node has enough"
    return room


def _amounts(amounts: Mapping[str, float], names: Sequence[str]) -> str:
    return ",".join(f"{name}={amounts.get(name, 0):g}" for name in names)


_PATIENCE_S = 3.0
"""After a process has waited for a place this long, the user is told about it."""
_AGAIN_S = 10.0
"""The shortest time between two messages about processes without a place."""


class Placing:
    """Says what a job waits for until all of its processes have places, and when it has waited too
    long."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._lacking_s: float | None = now_s
        """Since when a server has had no place, or no worker has had one."""
        self._said_s = now_s + _PATIENCE_S - _AGAIN_S
        self._said = ""

    def line(self, lack: str, now_s: float) -> str | None:
        """The message for the user about processes without a place; None if there is nothing to say
        now. `lack`: the text of `lacking`, which is empty if every process has its place."""
        if not lack or lack == self._said or now_s < self._said_s + _AGAIN_S:
            return None
        self._said, self._said_s = lack, now_s
        return lack

    def failure(self, lack: str, *, servers: bool, workers: bool, now_s: float) -> str | None:
        """Why the job fails; None if it can go on waiting. `servers`: whether every server has its
        place. `workers`: whether at least one worker has its place, or the job starts none."""
        if servers and workers:
            self._lacking_s = None
            return None
        if self._lacking_s is None:
            self._lacking_s = now_s  # another node starts the processes of a lost node
        if now_s < self._lacking_s + self._timeout_s:
            return None
        return (
            f"the cluster has no room for this job after {self._timeout_s:g} s: {lack}; ask for less,"
            " add nodes, or wait longer with --start-timeout"
        )


# -- the control service -------------------------------------------------------------------------

_AWAY_S = 20.0
"""How long the control service (GCS) of the cluster may be away before the job ends. Ray itself ends
the command when it was away for a minute."""


class ControlService:
    """Whether the control service of the cluster answers."""

    def __init__(self) -> None:
        self._away_since_s: float | None = None
        self._given_up = False

    @property
    def away(self) -> bool:
        return self._away_since_s is not None

    def on_look(self, fault: str | None, now_s: float) -> str | None:
        """Note whether the control service answered. `fault`: why it did not answer; None if it
        did. Returns why the job must end. None: the job continues, or this reason was returned
        before."""
        if fault is None:
            self._away_since_s = None
            return None
        if self._away_since_s is None:
            self._away_since_s = now_s
        if self._given_up or now_s < self._away_since_s + _AWAY_S:
            return None
        self._given_up = True
        return f"the Ray cluster does not answer any more ({fault})"


# -- how processes and nodes end -----------------------------------------------------------------

_UNKNOWN_END = "its process died: it was killed, ran out of memory, or crashed"
_NODE_DIED = ("its node has died", "node is dead")
_ENDS = (
    ("killed by `ray.kill`", "killed through Ray"),
    ("running low on memory", "killed by Ray, because its node was low on memory"),
    ("placement group", "its placement group was removed"),
    ("connection error code", _UNKNOWN_END),
)
_STATUS = re.compile(r"exit code (\d+)", re.ASCII)
_MODULE = re.compile(r"No module named '[^']+'")
_MOST_WORDS = 200


def process_end(text: str, node: str) -> str:
    """How the process of an actor ended. `text`: Ray's error. `node`: the address of its node; empty
    if the process had no place yet."""
    where = f" (node {node})" if node else ""
    if (module := _MODULE.search(text)) is not None:
        return with_node(module[0], node)
    if died_with_node(text):
        return node_died(node)
    if "owner has died" in text:
        return "the cluster has ended, or has lost the node of this command"
    for part, words in _ENDS:
        if part in text:
            return f"{words}{where}"
    if (status := _STATUS.search(text)) is not None:
        return f"exit status {status[1]}{where}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[-1][:_MOST_WORDS] if lines else _UNKNOWN_END}{where}"


def with_node(failed: str, node: str) -> str:
    """The failure of a process. If a module is missing, the first line says on which node, and what
    to do."""
    first, newline, rest = failed.partition("\n")
    if not _MODULE.search(first):
        return failed
    where = f" (node {node})" if node else ""
    return (
        f"{first}{where}: install it on every node, or send it along with 'ray job submit"
        f" --working-dir' or a runtime_env{newline}{rest}"
    )


def node_died(node: str) -> str:
    """How a process ended whose node has died. `node`: its address; empty if it is not known."""
    return f"node {node} died" if node else "its node died"


_NODE_S = 60.0
"""A process that died at most this long before its node was found dead has died because of the
node. Ray counts a node as dead only when it has not answered for a while."""


def went_with_node(died_s: float, now_s: float) -> bool:
    """Whether a process died because of its node, which is now known to be dead."""
    return now_s < died_s + _NODE_S


def died_with_node(text: str) -> bool:
    """Whether the process of an actor ended because its node has died. `text`: Ray's error."""
    return any(part in text for part in _NODE_DIED)


def actor_died(name: str, how: str) -> Reason:
    """The journal's entry for a process that has died."""
    return Reason("actor-died", {"name": name, "detail": how})


def node_lost(node: ClusterNode, names: Sequence[str]) -> Reason:
    """The journal's entry for a dead node. `names`: the processes that were on it."""
    detail = f" ({node.died})" if node.died else ""
    return Reason("node-lost", {"node": node.address, "on_it": ", ".join(names), "detail": detail})


def node_drains(
    address: str, names: Sequence[str], lead: str | None, *, store: bool
) -> Iterator[Reason]:
    """The journal's entries for a node that the cluster will remove soon. `names`: the processes on
    this node. They leave the job now, and a server first moves its slices to other servers. `lead`:
    the server on this node in which the lead runs; None if there is none. This server cannot leave,
    so it takes a checkpoint if the job has a store."""
    if leaving := [name for name in names if name != lead]:
        yield Reason("node-drains", {"node": address, "on_it": ", ".join(leaving)})
    if lead is not None:
        code = "node-drains-lead-cut" if store else "node-drains-lead"
        yield Reason(code, {"node": address, "on_it": lead})

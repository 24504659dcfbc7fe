"""The engine that runs servers and workers on a Ray cluster, each as an actor (`ray_process.py`).

Ray starts, places and ends the processes; the supervisor of all engines decides which are started, and
when again (`supervisor.py`, `core/supervision.py`). *Ray restarts no actor by itself.* Messages between
the engine and the processes are calls of their actors. Tensors never travel through Ray: the processes
have links of their own.

The servers are one placement group, which spreads them over the nodes and is removed when the job ends.
Each worker has its place for itself: Ray places it when it can, and an autoscaler sees those that wait.

*When this process ends, Ray ends all actors of the job and removes the group.*
"""

import atexit
import contextlib
import functools
import math
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from polyrhythm.core.cluster import (
    AUTO,
    CLIENT,
    CPU,
    GPU,
    HERE,
    ClusterNode,
    Demand,
    Placing,
    actor_died,
    check_ray,
    choose_address,
    demands_of,
    died_with_node,
    lacking,
    node_died,
    node_drains,
    node_lost,
    process_end,
    threads_for,
)
from polyrhythm.core.names import is_loopback
from polyrhythm.engines.engine import ClusterOptions, EngineRun, EngineWatch
from polyrhythm.engines.exits import ending
from polyrhythm.engines.host import (
    Exited,
    HostEvent,
    HostLost,
    MustLeave,
    Noticed,
    Printed,
    ProcessReported,
)
from polyrhythm.engines.output import flush
from polyrhythm.engines.ray_process import GROUPS, ActorPlace, Heard, RayProcess
from polyrhythm.engines.requests import ChildRequest, Told, encode
from polyrhythm.engines.supervisor import Supervisor
from polyrhythm.errors import JobFailed, PolyrhythmError, UsageError
from polyrhythm.release import VERSION

_DIAL_S = 5.0
_LOOK_S = 1.0
"""How often the nodes of the cluster are looked at."""
_CONTROL_S = 20.0
"""How long the control service (GCS) of the cluster may be away before the job ends. Ray itself ends
this process when it was away for a minute."""
_SILENT_S = 10.0
"""How long a look at the cluster may take."""
_CLOSE_S = 10.0
_KILLED_S = 5.0
"""How long after an order to kill a process it counts as ended, if Ray has not reported the end."""
_NODE_S = 60.0
"""If a process died at most this long before its node was found dead, it died with its node: Ray
counts a node as dead only when it has not answered for a while."""
_DEBUGGER = "PYTHONBREAKPOINT"
_KINDS = {CPU: "num_cpus", GPU: "num_gpus", "memory": "memory"}
"""Resources with a parameter of their own in the options of an actor."""


class RayEngine:
    def __init__(self, options: ClusterOptions) -> None:
        self._options = options

    def run(self, requests: Sequence[ChildRequest], watch: EngineWatch) -> EngineRun:
        options = self._options
        servers = [each.name for each in requests if each.role == "server"]
        workers = [each.name for each in requests if each.role == "worker"]
        per_server, per_worker = "--resources-per-server", "--resources-per-worker"
        asked = demands_of(per_server, options.per_server, len(servers))
        asked += demands_of(per_worker, options.per_worker, len(workers))
        demands = dict(zip([*servers, *workers], asked, strict=True))
        with joined(options.address, sum(each.resources[CPU] for each in asked)):
            host = RayHost(requests, demands, options.threads, watch)
            return Supervisor(requests, host, watch).run()


# -- joining a cluster ---------------------------------------------------------------------------


@contextlib.contextmanager
def joined(given: str | None, cpus: float) -> Iterator[None]:
    """This process has joined a cluster within this context. `given`: the option --address. `cpus`: how
    many CPUs a cluster must have that is started for this job."""
    check_ray(ray.__version__)
    before = _address_of_session()
    address = choose_address(given, os.environ.get("RAY_ADDRESS"), before)
    if before is not None:
        yield
        return
    with _messages_of_ray_kept_away():
        try:
            with _settings_of_process_kept():
                _join(address, cpus)
            yield
        finally:
            if not within(_CLOSE_S, ray.shutdown):
                atexit.unregister(ray.shutdown)  # at the exit of this process it would wait again
                atexit.register(_exit_without_ray)


def _exit_without_ray() -> None:
    """Threads of Ray hang, because the cluster does not answer, and this process would crash at its
    exit."""
    atexit.unregister(_exit_without_ray)
    atexit._run_exitfuncs()
    flush()
    os._exit(1)


def _address_of_session() -> str | None:
    """The address of the cluster that this process has joined already."""
    if ray.util.client.ray.is_connected():
        return CLIENT
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


def _join(address: str | None, cpus: float) -> None:
    if address in (None, AUTO):
        running = _running_cluster()
        if running is None and address == AUTO:
            raise PolyrhythmError(
                "no Ray cluster runs on this machine: start one with 'ray start --head', or give"
                " --address HOST:PORT"
            )
        address = running or HERE
    elif address != HERE:
        assert address is not None
        _check_answers(address)
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "critical"}
    if address == HERE:
        how["num_cpus"] = max(os.cpu_count() or 1, math.ceil(cpus))
        how["include_dashboard"] = False
    try:
        ray.init(address, **how)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PolyrhythmError(f"cannot join the Ray cluster: {_first_line(error)}") from None


def _running_cluster() -> str | None:
    """The address of the cluster of this machine; None if none answers. Ray keeps a note of the newest
    one, also when it was killed, and would wait for that one for minutes."""
    try:
        found: str = ray._private.services.get_ray_address_from_environment(AUTO, None)
    except ConnectionError:
        return None
    return found if _control_fault(found) is None else None


def _check_answers(address: str) -> None:
    """Raise an error if no Ray cluster answers at this address. Without this check Ray would wait
    for a minute, and then end this process."""
    if (fault := _control_fault(address)) is not None:
        raise PolyrhythmError(f"no Ray cluster answers at {address}: {fault}")


def _control_fault(address: str) -> str | None:
    """Why the control service of the cluster cannot be reached; None if it can."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _DIAL_S).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


@contextlib.contextmanager
def _settings_of_process_kept() -> Iterator[None]:
    """`ray.init` sets a handler for SIGTERM, and lets `breakpoint()` open a debugger of Ray. Both would
    stay in this process after the job."""
    debugger = os.environ.get(_DEBUGGER)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)
        if debugger is None:
            os.environ.pop(_DEBUGGER, None)
        else:
            os.environ[_DEBUGGER] = debugger


@contextlib.contextmanager
def _messages_of_ray_kept_away() -> Iterator[None]:
    """Ray prints messages about dead actors and nodes on the stdout of the process that has called
    `ray.init`, even if its logs are not printed there. A command that prints one JSON object must print
    nothing else there, and reports such deaths itself. In a session that the user has begun, Ray prints
    as usual."""
    name = "print_to_stdstream"
    shown = getattr(ray._private.worker, name, None)
    if shown is not None:
        setattr(ray._private.worker, name, lambda *args, **keywords: None)
    try:
        yield
    finally:
        if shown is not None:
            setattr(ray._private.worker, name, shown)


def within(seconds: float, act: Callable[[], object]) -> bool:
    """Call this on another thread, because it may wait for a cluster that is gone. Returns whether it
    came to its end in time. An error of Ray means that there is nothing left to do."""

    def run() -> None:
        with contextlib.suppress(Exception):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


# -- looking at the cluster ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    fault: str | None = None
    """Why the control service could not be reached. If it could not, nothing else is known."""
    nodes: Sequence[ClusterNode] = ()
    free: Mapping[str, float] = field(default_factory=dict)
    draining: frozenset[str] = frozenset()
    """The ids of the nodes that will be taken away."""


class ClusterWatch:
    """Looks at the cluster on a thread of its own, because Ray's calls wait while the control service
    is away."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._looks: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._looked_s = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="cluster", daemon=True).start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                fault = _control_fault(self._address)
                found = look() if fault is None else Look(fault)
            except Exception as error:
                found = Look(_first_line(error) or type(error).__name__)
            self._looks.put(found)
            self._ended.wait(_LOOK_S)

    def newest(self) -> Look | None:
        """The last state of the cluster that was read since the last call; None if none was
        read. A control service that hangs takes a connection and does not answer."""
        found = None
        with contextlib.suppress(queue.Empty):
            while True:
                found = self._looks.get_nowait()
                self._looked_s = time.monotonic()
        if found is None and time.monotonic() > self._looked_s + _SILENT_S:
            return Look("it hangs")
        return found

    def end(self) -> None:
        self._ended.set()


def look() -> Look:
    nodes = [
        ClusterNode(
            each["NodeID"],
            each["NodeManagerAddress"],
            each["Alive"],
            each.get("Resources") or {},
            each.get("Labels") or {},
            each.get("DeathReasonMessage") or "",
        )
        for each in ray.nodes()
    ]
    return Look(None, nodes, ray.available_resources(), draining_nodes())


def draining_nodes() -> frozenset[str]:
    """The ids of the nodes that the cluster will take away, for example because of a spot warning. Ray
    has no public function for this; Ray Train polls the same one."""
    state = getattr(ray._private.state, "state", None)
    get = getattr(state, "get_draining_nodes", None)
    return frozenset() if get is None else frozenset(get())


# -- the host ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Actor:
    """The newest actor with the name of a process."""

    name: str
    demand: Demand
    handle: Any
    heard: Any = None
    """The result of the present call of the actor's `hear`, which has not returned yet."""
    running: Any = None
    """The result of the call of the actor's `run`, which returns when the process ends."""
    confirmed: int = 0
    sent: int = 0
    place: ActorPlace | None = None
    ended: bool = False
    died_s: float | None = None
    """When it ended without an exit status."""
    killed_s: float | None = None
    """When it was ordered to be killed."""
    leaves: bool = False
    """Whether it was told to leave, because its node is drained."""
    given_up: bool = False
    """Whether it was killed because it had no place when the job ended."""

    @property
    def address(self) -> str:
        return "" if self.place is None else self.place.address


class RayHost:
    """Processes in actors of a cluster that this process has joined."""

    def __init__(
        self,
        requests: Sequence[ChildRequest],
        demands: Mapping[str, Demand],
        threads: int | None,
        watch: EngineWatch,
    ) -> None:
        """`demands`: what each process asks for, by its name. `threads`: how many threads torch uses in
        each worker; None: as many as it has CPUs."""
        self._requests = requests
        self._job = requests[0].job
        self._run_dir = Path(requests[0].run_dir)
        self._demands = demands
        self._threads = threads or (1 if self._job.deterministic else None)
        self._roles = {request.name: request.role for request in requests}
        self._say = watch.say
        self._code = Path(self._job.path).read_bytes() if self._job.path else b""
        self._actors: dict[str, _Actor] = {}
        self._new: set[str] = set()
        """The processes whose newest actors are made and were not started yet."""
        self._unseen: list[HostEvent] = []
        """The ends of processes that were not started yet. They are reported when these are."""
        self._starts: dict[str, int] = {}
        self._given: Any = None
        """The placement group in which this process runs, such as that of a trial of Ray Tune. All
        processes of the job have their places in it."""
        self._group: Any = None
        """The group that this host has made."""
        self._bundles: dict[str, int] = {}
        self._placing = Placing(self._job.start_timeout_s, time.monotonic())
        self._watch: ClusterWatch | None = None
        self._dead: set[str] = set()
        self._away_since_s: float | None = None
        self._unkilled: list[_Actor] = []
        """To be killed when the control service is back."""
        self._lost = False

    # -- starting ------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask Ray for a place for every process. The processes import torch while the lead starts."""
        context = ray.get_runtime_context()
        self._say_insecure(context.gcs_address)
        servers = [name for name, role in self._roles.items() if role == "server"]
        self._given = ray.util.get_current_placement_group()
        try:
            if self._given is None:
                self._make_group(servers)
            for request in self._requests:
                self._make(request.name)
                self._new.add(request.name)
        except ValueError as error:
            said = "".join(map(str, error.args))
            raise UsageError(f"Ray refuses what the processes ask for: {said}") from None
        self._placing = Placing(self._job.start_timeout_s, time.monotonic())
        self._watch = ClusterWatch(context.gcs_address)

    def _say_insecure(self, address: str) -> None:
        if not is_loopback(address.rpartition(":")[0].strip("[]")):
            self._say(
                "links between the nodes of the Ray cluster are not encrypted: everyone who can watch"
                " their network can read this job"
            )

    def _make_group(self, servers: Sequence[str]) -> None:
        demands = [self._demands[name] for name in servers]
        if not all(any(each.resources.values()) for each in demands):
            return  # Ray has no groups of processes that ask for nothing
        labels = [dict(each.labels) for each in demands]
        self._group = placement_group(
            [_positive(each.resources) for each in demands],
            strategy="SPREAD",
            name=f"polyrhythm: servers of {self._run_dir.name} ({self._job.job})",
            **({"bundle_label_selector": labels} if any(labels) else {}),
        )
        self._bundles = {name: number for number, name in enumerate(servers)}

    def _make(self, name: str) -> None:
        """Create the actor of a process."""
        demand = self._demands[name]
        start = self._starts[name] = self._starts.get(name, 0) + 1
        incarnation = f" ({start})" if start > 1 else ""
        options: dict[str, Any] = {"scheduling_strategy": "SPREAD"}
        if name in self._bundles:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._bundles[name]
            )
        elif self._given is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._given)
        elif demand.labels:
            options["label_selector"] = dict(demand.labels)
        handle = (
            _actor_class()
            .options(
                name=f"{self._run_dir.name}: {name}{incarnation}",
                namespace=f"polyrhythm-{self._job.job}",
                **_options_of(demand),
                **options,
            )
            .remote(name, self._roles[name], self._job.kind, self._threads_of(name))
        )
        actor = self._actors[name] = _Actor(name, demand, handle)
        actor.heard = handle.hear.remote(0)
        handle.warm.remote()

    def _threads_of(self, name: str) -> int:
        own = self._threads if self._roles[name] == "worker" else None
        return own or threads_for(self._demands[name])

    def prepare(self, name: str) -> None:
        """Create the next actor of a process that has ended. It imports torch until it is started."""
        self._kill(self._actors[name])  # it may still be alive
        self._make(name)
        self._new.add(name)

    def start(self, request: ChildRequest) -> None:
        name = request.name
        if name not in self._new:
            self.prepare(name)
        self._new.discard(name)
        follows = request.main is not None
        threads = self._threads_of(name)
        sent = msgspec.structs.replace(request, main=None, main_follows=follows, threads=threads)
        actor = self._actors[name]
        actor.running = actor.handle.run.remote(encode(sent), self._code, VERSION)
        if follows:
            self.tell(name, Told(main=request.main))

    # -- messages ------------------------------------------------------------------------------

    def tell(self, name: str, told: Told) -> None:
        actor = self._actors[name]
        if not actor.ended and name not in self._new:
            actor.handle.tell.remote(actor.sent, encode(told))
            actor.sent += 1

    def signal(self, name: str, number: signal.Signals) -> None:
        actor = self._actors[name]
        asks = number == signal.SIGTERM and self._roles[name] == "worker"
        if asks and actor.place is not None:
            self.tell(name, Told(leave=True))
        elif not actor.ended and actor.killed_s is None:
            actor.killed_s = time.monotonic()
            self._kill(actor)

    def _kill(self, actor: _Actor) -> None:
        if self._away_since_s is None:
            _kill(actor)
        else:
            self._unkilled.append(actor)

    def wait(self, timeout_s: float) -> Sequence[HostEvent]:
        events: list[HostEvent] = []
        calls = {actor.heard: actor for actor in self._actors.values() if not actor.ended}
        if calls:
            ready, _ = ray.wait(list(calls), timeout=timeout_s)
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
            for call in ready:
                if not calls[call].ended:  # it may have ended with its node just now
                    events += self._hear(calls[call])
        else:
            time.sleep(timeout_s)
        if (look := self._watch.newest() if self._watch else None) is not None:
            events += self._on_look(look)
        for actor in self._actors.values():
            late = actor.killed_s is not None and time.monotonic() > actor.killed_s + _KILLED_S
            if late and not actor.ended:
                events.append(self._end_killed(actor))
        return self._of_started([*self._unseen, *events])

    def _of_started(self, events: Sequence[HostEvent]) -> list[HostEvent]:
        """Keep the ends of processes that were not started yet for later."""
        self._unseen = [
            each for each in events if isinstance(each, Exited) and each.name in self._new
        ]
        return [each for each in events if each not in self._unseen]

    def _hear(self, actor: _Actor) -> list[HostEvent]:
        """What the process has sent, or how it has ended."""
        try:
            heard: Heard = ray.get(actor.heard)
        except ray.exceptions.ActorUnavailableError:
            self._listen(actor)  # either its process is ending, or a connection to it has broken
            return []
        except (ray.exceptions.RayError, RuntimeError) as error:
            if actor.killed_s is not None:
                return [self._end_killed(actor)]
            if actor.place is not None and died_with_node(str(error)):
                return self._lose_node(ClusterNode(actor.place.node, actor.address, alive=False))
            self._kill(actor)  # if the call has failed for another reason, the process still runs
            actor.died_s = time.monotonic()
            how = process_end(str(error), actor.address)
            died = Noticed(actor_died(actor.name, how), said=False)
            return _ordered([died], [self._end(actor, 1, how)], leads=self._leads(actor.name))
        actor.place = heard.place or actor.place
        events: list[HostEvent] = []
        for printed, data in heard.entries[actor.confirmed - heard.first :]:
            if printed:
                events.append(Printed(actor.name, data))
                continue
            told = msgspec.json.decode(data, type=Told)
            events.append(ProcessReported(actor.name, told))
            if told.ended is not None:
                self._give_up_places()
        actor.confirmed = heard.first + len(heard.entries)
        if heard.status is not None:
            self._kill(actor)  # the actor would wait for another call
            events.append(self._end(actor, heard.status, ending(heard.status)))
        else:
            self._listen(actor)
        return events

    def _listen(self, actor: _Actor) -> None:
        actor.heard = actor.handle.hear.remote(actor.confirmed)

    def _end(self, actor: _Actor, status: int, how: str) -> Exited:
        actor.ended = True
        return Exited(actor.name, status, how)

    def _end_killed(self, actor: _Actor) -> Exited:
        if actor.given_up or actor.place is None:
            return self._end(actor, 0, "it was never placed")  # that is no failure of a process
        return self._end(actor, -signal.SIGKILL, ending(-signal.SIGKILL))

    def _give_up_places(self) -> None:
        """The job has ended: a process without a place is not needed any more."""
        for name, actor in self._actors.items():
            if actor.place is None:
                actor.given_up = True
                self.signal(name, signal.SIGKILL)

    # -- the cluster ---------------------------------------------------------------------------

    def _on_look(self, look: Look) -> list[HostEvent]:
        now_s = time.monotonic()
        if look.fault is not None:
            self._away_since_s = self._away_since_s or now_s
            if self._lost or now_s < self._away_since_s + _CONTROL_S:
                return []
            self._lost = True
            return [HostLost(f"the Ray cluster does not answer any more ({look.fault})")]
        self._away_since_s = None
        while self._unkilled:
            _kill(self._unkilled.pop())
        events = [*self._dead_nodes(look), *self._draining(look)]
        self._look_for_places(look, now_s)
        return events

    def _on_node(self, node: str, died_since_s: float = math.inf) -> list[str]:
        """The processes that are on this node, and those that have died there since then."""
        return [
            each.name
            for each in self._actors.values()
            if each.place is not None
            and each.place.node == node
            and (not each.ended or (each.died_s is not None and each.died_s > died_since_s))
        ]

    def _dead_nodes(self, look: Look) -> Iterator[HostEvent]:
        for node in look.nodes:
            if not node.alive:
                yield from self._lose_node(node)

    def _lose_node(self, node: ClusterNode) -> list[HostEvent]:
        """All processes on a dead node have ended."""
        if node.node in self._dead:
            return []
        self._dead.add(node.node)
        names = self._on_node(node.node, time.monotonic() - _NODE_S)
        if not names:
            return []
        how = node_died(node.address)
        ended = [self._end(self._actors[name], 1, how) for name in names if self._runs(name)]
        leads = any(self._leads(each.name) for each in ended)
        return _ordered([Noticed(node_lost(node, names))], ended, leads=leads)

    def _runs(self, name: str) -> bool:
        return not self._actors[name].ended

    def _leads(self, name: str) -> bool:
        return name == self._requests[0].name

    def _draining(self, look: Look) -> Iterator[HostEvent]:
        addresses = {node.node: node.address for node in look.nodes}
        for node in look.draining:
            names = [each for each in self._on_node(node) if not self._actors[each].leaves]
            if not names or not self._new.isdisjoint(names):
                continue  # wait until all processes on it were started
            lead = next(filter(self._leads, names), None)
            address, store = addresses.get(node, node), bool(self._job.store)
            yield from map(Noticed, node_drains(address, names, lead, store=store))
            for name in names:
                self._actors[name].leaves = True
                self._bundles.pop(name, None)  # the bundle stays on the node until that is gone
            yield MustLeave(names)

    def _look_for_places(self, look: Look, now_s: float) -> None:
        waiting = {
            actor.name: actor.demand
            for actor in self._actors.values()
            if actor.place is None and not actor.ended
        }
        lack = lacking(waiting, look.nodes, look.free) if waiting else ""
        if (line := self._placing.line(lack, now_s)) is not None:
            self._say(line)
        workers = [name for name, role in self._roles.items() if role == "worker"]
        failure = self._placing.failure(
            lack,
            servers=not any(self._roles[name] == "server" for name in waiting),
            workers=not workers or any(name not in waiting for name in workers),
            now_s=now_s,
        )
        if failure is not None:
            raise JobFailed(failure)

    # -- ending --------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill the actors that are left, and remove the group of the servers. If the cluster is gone,
        nothing of it is left."""
        if self._watch is not None:
            self._watch.end()
        if self._away_since_s is not None:
            return

        def end() -> None:
            for actor in self._actors.values():
                _kill(actor)
            if self._group is not None:
                remove_placement_group(self._group)

        if not within(_CLOSE_S, end):
            self._say("the Ray cluster does not answer, so its processes end with this command")


def _kill(actor: _Actor) -> None:
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        ray.kill(actor.handle)


@functools.cache
def _actor_class() -> Any:
    remote: Any = ray.remote  # its types do not know all of its options
    return remote(concurrency_groups=GROUPS, max_restarts=0, max_task_retries=0)(RayProcess)


def _ordered(
    notices: Sequence[HostEvent], ended: Sequence[HostEvent], *, leads: bool
) -> list[HostEvent]:
    """The notices come before the ends that they explain. If the lead's process has ended (`leads`),
    they come after them, because the lead cannot write them any more."""
    return [*ended, *notices] if leads else [*notices, *ended]


def _positive(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in resources.items() if amount}


def _options_of(demand: Demand) -> dict[str, Any]:
    resources = demand.resources
    options: dict[str, Any] = {
        option: resources.pop(name) for name, option in _KINDS.items() if name in resources
    }
    return {**options, "resources": _positive(resources)}

"""The engine that runs servers and workers on a Ray cluster, each as an actor (`ray_process.py`).

Ray starts, places and ends the processes. The supervisor, which all engines share, decides which
processes to start and restart (`supervisor.py`, `core/supervision.py`). *Ray restarts no actor by
itself.* Messages between the engine and the processes are calls of their actors. Tensors never
travel through Ray: the processes have direct links.

*When this process ends, Ray ends all actors of the job and removes the group of its servers.*
"""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import ray

from polyrhythm.core.cluster import (
    CPU,
    ClusterNode,
    ControlService,
    Demand,
    Placing,
    actor_died,
    demands_of,
    died_with_node,
    lacking,
    node_died,
    node_drains,
    node_lost,
    process_end,
    went_with_node,
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
from polyrhythm.engines.ray_actors import Actor, ActorMaker
from polyrhythm.engines.ray_cluster import CLOSE_S, ClusterWatch, Look, joined, within
from polyrhythm.engines.ray_messages import Heard
from polyrhythm.engines.requests import ChildRequest, Told, encode
from polyrhythm.engines.supervisor import Supervisor
from polyrhythm.errors import JobFailed
from polyrhythm.release import VERSION

_KILLED_S = 5.0
"""After an order to kill a process, it counts as ended after this time, even if Ray has not
reported the end."""


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
        self._lead = requests[0].name
        self._job = requests[0].job
        self._maker = ActorMaker(requests, demands, threads)
        self._roles = {request.name: request.role for request in requests}
        self._say = watch.say
        self._code = Path(self._job.path).read_bytes() if self._job.path else b""
        self._actors: dict[str, Actor] = {}
        self._new: set[str] = set()
        """The processes whose newest actors exist and have no request yet."""
        self._unseen: list[HostEvent] = []
        """The ends of processes that were not started yet. They are reported once these are
        started."""
        self._placing = Placing(self._job.start_timeout_s, time.monotonic())
        self._watch: ClusterWatch | None = None
        self._dead: set[str] = set()
        self._control = ControlService()
        self._unkilled: list[Actor] = []
        """The actors to kill when the control service is back."""

    # -- starting ------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask Ray for a place for every process. The processes import torch while the lead starts."""
        address = ray.get_runtime_context().gcs_address
        self._say_insecure(address)
        for actor in self._maker.make_all():
            self._actors[actor.name] = actor
            self._new.add(actor.name)
        self._placing = Placing(self._job.start_timeout_s, time.monotonic())
        self._watch = ClusterWatch(address)

    def _say_insecure(self, address: str) -> None:
        if not is_loopback(address.rpartition(":")[0].strip("[]")):
            self._say(
                "links between the nodes of the Ray cluster are not encrypted: everyone who can watch"
                " their network can read this job"
            )

    def prepare(self, name: str) -> None:
        """Create the next actor of a process that has ended. It imports torch until it is started."""
        self._kill(self._actors[name])  # it may still be alive
        self._actors[name] = self._maker.make(name)
        self._new.add(name)

    def start(self, request: ChildRequest) -> None:
        name = request.name
        if name not in self._new:
            self.prepare(name)
        self._new.discard(name)
        follows, threads = request.main is not None, self._maker.threads_of(name)
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

    def _kill(self, actor: Actor) -> None:
        if self._control.away:
            self._unkilled.append(actor)
        else:
            actor.kill()

    def wait(self, timeout_s: float) -> Sequence[HostEvent]:
        events: list[HostEvent] = []
        calls = {actor.heard: actor for actor in self._actors.values() if not actor.ended}
        if calls:
            ready, _ = ray.wait(list(calls), timeout=timeout_s)
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
            for call in ready:
                if not calls[call].ended:  # the actor may have ended with its node just now
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

    def _hear(self, actor: Actor) -> list[HostEvent]:
        """What the process has sent, or how it has ended."""
        try:
            heard: Heard = ray.get(actor.heard)
        except ray.exceptions.ActorUnavailableError:
            actor.listen()  # either its process is ending, or a connection to it has broken
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
            return self._ordered([died], [self._end(actor, 1, how)])
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
            actor.listen()
        return events

    def _end(self, actor: Actor, status: int, how: str) -> Exited:
        actor.ended = True
        return Exited(actor.name, status, how)

    def _end_killed(self, actor: Actor) -> Exited:
        if actor.given_up or actor.place is None:
            return self._end(actor, 0, "it was never placed")  # that is no failure of a process
        return self._end(actor, -signal.SIGKILL, ending(-signal.SIGKILL))

    def _give_up_places(self) -> None:
        """Give up the processes without a place: the job has ended."""
        for name, actor in self._actors.items():
            if actor.place is None:
                actor.given_up = True
                self.signal(name, signal.SIGKILL)

    # -- the cluster ---------------------------------------------------------------------------

    def _on_look(self, look: Look) -> list[HostEvent]:
        now_s = time.monotonic()
        failure = self._control.on_look(look.fault, now_s)
        if self._control.away:
            return [] if failure is None else [HostLost(failure)]
        while self._unkilled:
            self._unkilled.pop().kill()
        events = [*self._dead_nodes(look), *self._draining(look)]
        self._look_for_places(look, now_s)
        return events

    def _on_node(self, node: str) -> list[Actor]:
        """The actors that are on this node, and those that have ended there."""
        actors = self._actors.values()
        return [each for each in actors if each.place is not None and each.place.node == node]

    def _dead_nodes(self, look: Look) -> Iterator[HostEvent]:
        for node in look.nodes:
            if not node.alive:
                yield from self._lose_node(node)

    def _lose_node(self, node: ClusterNode) -> list[HostEvent]:
        """All processes on a dead node have ended."""
        if node.node in self._dead:
            return []
        self._dead.add(node.node)
        now_s = time.monotonic()
        actors = [
            each
            for each in self._on_node(node.node)
            if not each.ended or (each.died_s is not None and went_with_node(each.died_s, now_s))
        ]
        if not actors:
            return []
        how = node_died(node.address)
        ended = [self._end(each, 1, how) for each in actors if not each.ended]
        lost = Noticed(node_lost(node, [each.name for each in actors]))
        return self._ordered([lost], ended)

    def _ordered(self, notices: Sequence[HostEvent], ended: Sequence[Exited]) -> list[HostEvent]:
        """The notices come before the ends that they explain. If the lead's process has ended, they
        come after its end, because the lead cannot write them any more."""
        leads = any(each.name == self._lead for each in ended)
        return [*ended, *notices] if leads else [*notices, *ended]

    def _draining(self, look: Look) -> Iterator[HostEvent]:
        addresses = {node.node: node.address for node in look.nodes}
        for node in look.draining:
            actors = [each for each in self._on_node(node) if not each.ended and not each.leaves]
            names = [each.name for each in actors]
            if not names or not self._new.isdisjoint(names):
                continue  # wait until all processes on the node were started
            lead = self._lead if self._lead in names else None
            address, store = addresses.get(node, node), bool(self._job.store)
            yield from map(Noticed, node_drains(address, names, lead, store=store))
            for actor in actors:
                actor.leaves = True
                self._maker.leave_bundle(actor.name)
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
        if self._control.away:
            return

        def end() -> None:
            for actor in self._actors.values():
                actor.kill()
            self._maker.remove_group()

        if not within(CLOSE_S, end):
            self._say("the Ray cluster does not answer, so its processes end with this command")

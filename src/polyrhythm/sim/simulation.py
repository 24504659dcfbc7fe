"""One run of a scenario: processes, links and faults, until the lead ends the job. The same
scenario and seed give the same run on every machine."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.lead.pacemaker import PACEMAKER
from polyrhythm.core.machine import Machine
from polyrhythm.core.names import LEAD, server_name
from polyrhythm.core.placement.schemes import MEASURING
from polyrhythm.core.record import Record
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.errors import JobFailed
from polyrhythm.observe.journal import Journal
from polyrhythm.observe.reasons import in_words
from polyrhythm.sim.checker import Checker
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.model.card import Card
from polyrhythm.sim.model.link import Channel, link
from polyrhythm.sim.model.objective import Objective
from polyrhythm.sim.model.pace import SimulatedPace
from polyrhythm.sim.scenario import LINKS, Happening, Scenario, WorkerSpec
from polyrhythm.sim.server.node import ServerProcess
from polyrhythm.sim.tables import LinkSettings
from polyrhythm.sim.worker.loop import UserCode
from polyrhythm.sim.worker.node import POINTS, WorkerProcess
from polyrhythm.sim.world import World
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.operator import DRAIN, STOP


class OperatorProcess:
    """A simulated operator: it sends the lead a request, and keeps the answers."""

    def __init__(self, name: str, job: str) -> None:
        self.answers: list[m.Message] = []
        self._hello = m.OperatorHello(name=name, job=job)

    def ask(self, lead: Channel, request: m.OperatorRequest) -> None:
        lead.send(self._hello)
        lead.send(request)

    def receive(self, channel: Channel, batch: Sequence[m.Message]) -> None:
        self.answers += [message for message in batch if not isinstance(message, m.Alive)]

    def on_closed(self, channel: Channel, reason: str) -> None:
        """Does nothing: the operator has all answers when its link ends."""


_MOST_NAMES = 5
"""Of the machines that wait for the same thing, this many are named; the others are only
counted."""


class Simulation:
    def __init__(
        self,
        scenario: Scenario,
        job: m.JobSpec,
        clock: Clock,
        journal: Journal,
        *,
        seed: int = 0,
        check: bool = False,
        resumed: Record | None = None,
    ) -> None:
        """`job` is made by `scenario.job_spec`. `check`: machines assert their invariants after
        every event, servers record the contributions in their slices, and a checker compares
        acknowledged contributions with folded ones. `resumed`: the record of the checkpoint from
        which the job resumes."""
        self.scenario = scenario
        self.job = job
        self.workers: dict[str, WorkerProcess] = {}
        """For each name of a worker, the process that was the last to join under this name."""
        self.operators: list[OperatorProcess] = []
        self._clock = clock
        self._rng = random.Random(seed)
        self._model = _model_of(scenario.job.model)
        self.objective = Objective(scenario.objective) if scenario.objective else None
        measures = job.placement in MEASURING
        moves = job.replicas > 0 or measures or any(e.server is not None for e in scenario.events)
        self._checker = Checker(promises=not moves) if check else None
        self._world = World(job, scenario.job, clock, self.objective, self._checker)
        self._journal = journal
        self._lives: Counter[int] = Counter()
        """How often a server was started, by its number."""
        self._cards = [Card(clock, host.outgoing, host.incoming) for host in scenario.hosts]
        self._host_of = {
            name: number for number, host in enumerate(scenario.hosts) for name in host.processes()
        }
        """The number of the host of each process whose host has a network card."""
        self.servers = [self._make_server(server) for server in range(scenario.job.servers)]
        if self._checker is not None:
            self._checker.is_member = self._is_member
        self._cast = {spec.name: spec for spec in scenario.cast()}
        self._silent: set[frozenset[str]] = set()
        """The pairs of processes between which nothing passes."""
        self._began_ns = clock.now_ns
        self._resumed = resumed

    def _is_member(self, worker: int, incarnation: int) -> bool:
        lead = self._lead.machines[LEAD]
        assert isinstance(lead, LeadMachine)
        return lead.view.get(worker, incarnation) is not None

    @property
    def _lead(self) -> ServerProcess:
        """The process in which the lead runs."""
        return self.servers[FIRST_SEAT.server]

    def _make_server(self, server: int) -> ServerProcess:
        self._lives[server] += 1
        return ServerProcess(
            server,
            self._world,
            journal=self._journal if server == FIRST_SEAT.server else None,
            dial=self._dial_server,
            life=self._lives[server],
            host=self._host_name(server_name(server)),
        )

    def _card_of(self, name: str) -> Card | None:
        number = self._host_of.get(name)
        return None if number is None else self._cards[number]

    def _host_name(self, name: str) -> str:
        """The name of a process's host; empty if the host has no network card."""
        number = self._host_of.get(name)
        return "" if number is None else f"host-{number}"

    def run(self) -> fx.End:
        clock, lead = self._clock, self._lead
        began_ns = self._began_ns
        if self._resumed is not None:
            lead.post(LEAD, ev.ResumeAsked(self._resumed, self._model, self.scenario.job.kept))
        for server in self.servers:
            server.say_hello(
                None if server is lead else self._link(server, lead, self.scenario.link)
            )
        for spec in self._cast.values():
            clock.at(began_ns + spec.table.join, self._start, spec)
        for event in self.scenario.events:
            clock.at(began_ns + event.at, self._happen, event)
        if not clock.run(began_ns + self.scenario.job.limit):
            limit_s = self.scenario.job.limit / 1e9
            # Heartbeats of the lead do not count as progress: it sends them even if the job is
            # stuck.
            stuck = clock.idle_but_for(lead.hosted[PACEMAKER])
            never = "cannot go on" if stuck else f"does not end within {limit_s:.0f} s"
            raise JobFailed(f"the run {never}: {self.why()}")
        assert lead.outcome is not None
        return lead.outcome

    def why(self) -> str:
        """What every machine waits for. Machines with the same reason are listed together."""
        waiting: dict[str, list[str]] = {}
        for name, machine in self._machines():
            waiting.setdefault(in_words(machine.why().reason), []).append(name)
        return "; ".join(f"{_names(names)}: {reason}" for reason, names in waiting.items())

    def _machines(self) -> Iterable[tuple[str, Machine]]:
        for server in self.servers:
            if server.alive:
                for name, machine in reversed(server.machines.items()):
                    if name != PACEMAKER:
                        yield name, machine
        for worker in self.workers.values():
            if worker.alive:
                yield worker.name, worker.machine

    # -- starting ------------------------------------------------------------------------------

    def _link(
        self,
        near: ServerProcess | WorkerProcess,
        far: ServerProcess | WorkerProcess,
        table: LinkSettings,
        names: tuple[str, str] | None = None,
    ) -> Channel:
        """Open a link between two processes. `names`: the name by which each knows the other, if it
        is not the name of the process."""
        near_card, far_card = (self._card_of(process.name) for process in (near, far))
        cards = (None, None) if near_card is far_card else (near_card, far_card)
        both = names or (near.name, far.name)
        return link(self._clock, self._rng, table, near, far, both, cards)

    def _start(self, spec: WorkerSpec) -> None:
        user = UserCode(
            self._model,
            spec.table.points or self.scenario.job.points,
            self.scenario.job.batch,
            spec.table.share_data,
            spec.table.data,
        )
        worker = WorkerProcess(
            spec,
            self._world,
            user,
            SimulatedPace(spec.table, self._began_ns, self._rng),
            dial=self._dial,
            dial_worker=self._dial_worker,
            host=self._host_name(spec.name),
        )
        before = self.workers.get(spec.name)
        if before is None or not before.alive:
            self.workers[spec.name] = worker
        worker.say_hello()

    def _dial_server(self, near: ServerProcess, spec: m.ServerSpec) -> Channel | None:
        far = self.servers[spec.server]
        if not self._reachable(near, far) or far.address != spec.address:
            return None
        return self._link(near, far, self.scenario.link)

    def _dial(self, worker: WorkerProcess, server: int, at: m.Address | None) -> Channel | None:
        far = self.servers[server]
        if not self._reachable(worker, far) or at not in (None, far.address):
            return None
        return self._link(worker, far, self._cast[worker.name].link)

    def _dial_worker(self, worker: WorkerProcess, send: m.ChunkSend) -> Channel | None:
        far = self.workers.get(send.name)
        if far is None or not far.alive or far.machine.incarnation != send.incarnation:
            return None
        return self._link(worker, far, self._cast[worker.name].link, (POINTS, POINTS))

    # -- faults and other events of a scenario --------------------------------------------------

    def _happen(self, event: Happening) -> None:
        if event.what == "cut":
            self._cut(event)
        elif event.what in LINKS:
            self._silence(event, silent=event.what == "silence")
        elif event.what == "rate":
            assert event.host is not None
            self._cards[event.host].change(event.outgoing, event.incoming)
        elif event.what == "end" and event.operator is not None:
            self._operate(event.operator, m.OperatorRequest(what=STOP))
        elif event.what == "drain" and event.operator is not None:
            assert event.server is not None
            self._operate(event.operator, m.OperatorRequest(what=DRAIN, server=event.server))
        elif event.what == "end":
            self._lead.post(LEAD, ev.StopAsked())
        elif event.server is not None:
            self._change_server(event.server, event.what)
        elif event.worker is not None:
            self._change_worker(event, event.worker)

    def _operate(self, name: str, request: m.OperatorRequest) -> None:
        """Let an operator connect to the lead and send it this request."""
        operator = OperatorProcess(name, self.job.job)
        self.operators.append(operator)
        lead = self._lead
        link_to_lead = link(
            self._clock, self._rng, self.scenario.link, operator, lead, (name, LEAD)
        )
        operator.ask(link_to_lead, request)

    def _change_server(self, number: int, what: str) -> None:
        if number == len(self.servers):
            self.servers.append(self._make_server(number))
            server = self.servers[number]
            server.say_hello(self._link(server, self._lead, self.scenario.link))
            return
        server = self.servers[number]
        if what == "join":
            if not server.alive:
                server = self.servers[number] = self._make_server(number)
                server.say_hello(self._link(server, self._lead, self.scenario.link))
        elif server.alive:
            _SERVER_EVENTS[what](server)

    def _cut(self, event: Happening) -> None:
        """Break a link for both sides."""
        assert event.server is not None
        name = server_name(event.server)
        if event.peer is not None:
            self.servers[event.peer].cut({name})
        elif event.worker in self.workers:
            self.workers[event.worker].cut(event.server)

    def _silence(self, event: Happening, *, silent: bool) -> None:
        """Stop all messages between two processes, or let them pass again."""
        assert event.server is not None
        server, peer = self.servers[event.server], event.peer
        other = self.workers.get(event.worker or "") if peer is None else self.servers[peer]
        if other is None:
            return
        pair = frozenset((other.name, server.name))
        (self._silent.add if silent else self._silent.discard)(pair)
        server.silence(other, silent=silent)
        if isinstance(other, ServerProcess):
            other.looks = server.looks

    def _reachable(self, near: WorkerProcess | ServerProcess, far: ServerProcess) -> bool:
        """Whether a new link between the two processes can be opened."""
        return far.alive and frozenset((near.name, far.name)) not in self._silent

    def _change_worker(self, event: Happening, name: str) -> None:
        if event.what == "join":
            self._start(self._changed(name, event))
            return
        worker = self.workers.get(name)
        if worker is None or not worker.alive:
            return  # an ended worker ignores all faults
        if event.factor is not None:
            worker.pace.slowness = event.factor
        else:
            _WORKER_EVENTS[event.what](worker)

    def _changed(self, name: str, event: Happening) -> WorkerSpec:
        """The worker with the changes that this event makes. The changes also apply when the worker
        joins again later."""
        spec = self._cast[name]
        changes = {"points": event.points, "share_data": event.share_data}
        given = {key: value for key, value in changes.items() if value is not None}
        table = msgspec.structs.replace(spec.table, **given)
        self._cast[name] = msgspec.structs.replace(spec, table=table)
        return self._cast[name]


_SERVER_EVENTS: dict[str, Callable[[ServerProcess], None]] = {
    "crash": ServerProcess.crash,
    "stop": ServerProcess.freeze,
    "continue": ServerProcess.thaw,
    "drain": ServerProcess.drain,
}
_WORKER_EVENTS: dict[str, Callable[[WorkerProcess], None]] = {
    "crash": WorkerProcess.crash,
    "stop": WorkerProcess.freeze,
    "continue": WorkerProcess.thaw,
    "leave": WorkerProcess.leave,
}


def _model_of(nbytes: int) -> m.ModelSpec:
    """A model with one tensor of this size."""
    return m.ModelSpec(
        (m.TensorSpec("parameters", (nbytes // 4,), "float32", 0, (1,)),),
        m.OptimizerSpec("SGD", ({"lr": 0.1},)),
    )


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more

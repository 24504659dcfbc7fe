"""The lead's, servers' and workers' machines together, over links of which each keeps its order and
all are interleaved at random. Memory is modelled: a slot holds, slice by slice, which contributions
are in it and which version it is, so that what a worker reads can be checked against what it was
promised. Nothing here is timing: a seed gives a run.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead import LeadMachine
from polyrhythm.core.ledger import Ledger, Verdict
from polyrhythm.core.machine import Effect
from polyrhythm.core.server import ServerMachine
from polyrhythm.core.worker import WorkerMachine
from polyrhythm.wire import messages as m

LEAD = fx.LEAD
ADDRESS = m.Address("memory", 0, "", "")
SPEC = m.ModelSpec(
    (m.TensorSpec("weight", (100,), "float32", 0, (1,)),),
    m.OptimizerSpec("SGD", ({"lr": 0.1},)),
)
SECOND_NS = 10**9
Given = tuple[int, int, int]
"""A contribution: worker, incarnation, sequence."""


@dataclass(frozen=True)
class Cell:
    """A slice in a slot: its version, and what was folded into it."""

    version: int | str
    given: tuple[Given, ...] = ()


@dataclass
class Store:
    """A server's memory, and all that it ever held."""

    server: int
    slices: tuple[int, ...]
    routing: int
    grows: bool
    ledger: Ledger = field(default_factory=Ledger)
    slot: int = 0
    fill: int = 1
    slots: dict[int, dict[int, Cell]] = field(default_factory=dict)
    aggregate: dict[int, list[Given]] = field(default_factory=dict)
    history: dict[int, dict[int, Cell]] = field(default_factory=dict)
    seeders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Per slice, whose parameters began: worker and incarnation."""

    def __post_init__(self) -> None:
        self.slots[0] = {slice_: Cell("unseeded") for slice_ in self.slices}
        self.aggregate = {slice_: [] for slice_ in self.slices}

    def seed(self, message: m.Seed) -> ev.SliceSeeded | None:
        if message.routing != self.routing:
            return None
        slice_ = message.slice
        assert not self.history, f"s{self.server}: slice {slice_} was seeded after round 0"
        self.slots[0][slice_] = Cell(0)
        self.seeders[slice_] = (message.worker, message.incarnation)
        return ev.SliceSeeded(slice_, message.routing)

    def add(self, slice_: int, given: Given) -> None:
        self.aggregate[slice_].append(given)
        if self.grows:
            self.slots.setdefault(self.fill, {})[slice_] = Cell("growing")

    def fold(self, round_: int, slot: int, fill: int) -> None:
        new = {
            slice_: Cell(round_, cell.given + tuple(self.aggregate[slice_]))
            for slice_, cell in self.slots[self.slot].items()
        }
        self.history.setdefault(0, self.slots[self.slot])
        self.slots[slot] = new
        self.history[round_] = new
        self.aggregate = {slice_: [] for slice_ in self.slices}
        self.slot, self.fill = slot, fill
        if self.grows:
            self.slots[fill] = {slice_: Cell("growing") for slice_ in self.slices}
        self.ledger.close(round_)


@dataclass
class Life:
    """One worker process: its machine, its buffer, and what its user's code is doing."""

    name: str
    machine: WorkerMachine
    buffer: dict[int, Cell] = field(default_factory=dict)
    reads: dict[int, tuple[int, int]] = field(default_factory=dict)
    expected: int | None = None
    doing: str = "joining"
    steps: int = 0
    resumed: list[int] = field(default_factory=list)
    failed: str | None = None
    gone: bool = False

    @property
    def peer(self) -> str:
        return fx.worker_name(self.machine.worker)


class Ensemble:
    """`deaths`, `joins`: how many workers die and come late at random moments; `seeder_deaths`:
    how many die while their seeds are on their way; `repeats`: how often a slice comes twice;
    `abstains`: how often a worker has nothing to give; `timer_rate`: how often time jumps to when
    the lead wants to be woken. Whether readers look into the server's memory themselves, and
    whether slices are added by other threads than the link's, is up to the seed."""

    def __init__(
        self,
        seed: int,
        job: m.JobSpec,
        *,
        deaths: int = 0,
        seeder_deaths: int = 0,
        joins: int = 0,
        repeats: float = 0.0,
        abstains: float = 0.0,
        timer_rate: float = 0.02,
    ) -> None:
        self.rng = random.Random(seed)
        self.job = job = msgspec.structs.replace(job, heartbeat_s=1e6)  # nobody is silent here
        self.deaths, self.seeder_deaths, self.joins = deaths, seeder_deaths, joins
        self.repeats, self.abstains, self.timer_rate = repeats, abstains, timer_rate
        self.by_reference = job.in_place or self.rng.random() < 0.5
        self.lanes = self.rng.random() < 0.5
        self.now_ns = SECOND_NS
        self.lead = LeadMachine(job)
        self.servers = [ServerMachine(server, job) for server in range(job.servers)]
        self.stores: dict[int, Store] = {}
        self.lives: list[Life] = []
        self.alias: dict[str, str] = {}
        self.links: dict[Any, deque[tuple[Any, ...]]] = {}
        self.end: fx.End | None = None
        self.arrived: dict[Given, set[int]] = {}
        self.trailers: set[Given] = set()
        self.promised: list[tuple[int, Given]] = []
        for server in range(job.servers):
            self._knock_server(server)
        for number in range(job.workers):
            self._start_worker(f"worker-{number}")

    # -- carrying --------------------------------------------------------------------------------

    def put(self, link: Any, *what: Any) -> None:
        self.links.setdefault(link, deque()).append(what)

    def put_next(self, link: Any, *what: Any) -> None:
        self.links.setdefault(link, deque()).appendleft(what)

    def _knock_server(self, server: int) -> None:
        bonjour = m.ServerBonjour(
            server=server, name=f"s{server}", job=self.job.job, address=ADDRESS, identity=""
        )
        self.put((f"s{server}", LEAD), "lead", ev.ServerKnocked(f"link-s{server}", bonjour))

    def _start_worker(self, name: str) -> None:
        life = Life(name, WorkerMachine(name))
        self.lives.append(life)
        link = f"link-{len(self.lives)}"
        self.alias[link] = link
        life.machine.link = link  # type: ignore[attr-defined]
        bonjour = m.WorkerBonjour(name=name, job=self.job.job, identity="")
        self.put((id(life), LEAD), "lead", ev.WorkerKnocked(link, bonjour))

    def _life_at(self, peer: str) -> Life | None:
        for life in reversed(self.lives):
            link = life.machine.link  # type: ignore[attr-defined]
            if peer in (link, self.alias.get(link)):
                return None if life.gone else life
        return None

    # -- one step ---------------------------------------------------------------------------------

    def run(self, most: int = 20_000) -> "Ensemble":
        for _ in range(most):
            if self.end is not None:
                self.check_folds()
                return self
            if not self.step():
                if all(life.gone for life in self.lives) and not self.promised:
                    return self  # all died before round 1: the lead waits for others
                self.check_folds()
                raise AssertionError(f"it hangs: {self.why()}")
        raise AssertionError(f"it does not end: {self.why()}")

    def why(self) -> list[str]:
        machines = [self.lead, *self.servers, *(life.machine for life in self.lives)]
        return [str(machine.why().reason) for machine in machines]

    def step(self) -> bool:
        self.now_ns += 1000
        ready: list[Callable[[], None]] = [
            lambda queue=queue: self._deliver(queue) for queue in self.links.values() if queue
        ]
        ready += [
            lambda life=life: self._user(life)
            for life in self.lives
            if life.doing in ("attach", "compute") and not life.gone
        ]
        wake_ns = self.lead.wake_at()
        if wake_ns is not None and wake_ns - self.now_ns > 1e6 * SECOND_NS:
            wake_ns = None  # it only listens for silence
        if wake_ns is not None and (not ready or self.rng.random() < self.timer_rate):
            self.now_ns = max(self.now_ns, wake_ns)
            ready = [lambda: self._lead(ev.Tick())]
        if self.deaths and self.rng.random() < 0.01:
            self.deaths -= 1
            ready = [lambda: self._kill(self.rng.choice(self.lives))]
        if self.seeder_deaths and self.rng.random() < 0.1 and (seeding := self._seeding()):
            self.seeder_deaths -= 1
            ready = [lambda: self._kill(self.rng.choice(seeding))]
        if self.joins and self.rng.random() < 0.02:
            self.joins -= 1
            ready = [self._join]
        if ready:
            self.rng.choice(ready)()
        return bool(ready)

    def _join(self) -> None:
        """Somebody new, or somebody who was here before."""
        busy = {link[0] for link, queue in self.links.items() if queue}
        linked = {life.name for life in self.lives if not life.gone or id(life) in busy}
        again = sorted({life.name for life in self.lives} - linked)
        fresh = f"worker-{len(self.lives)}"
        self._start_worker(self.rng.choice([*again, fresh]))

    def _seeding(self) -> list[Life]:
        """Whose seeds are on their way."""
        links = {
            link[0] for link, queue in self.links.items() if any(w[0] == "seed" for w in queue)
        }
        return [life for life in self.lives if id(life) in links and not life.gone]

    def _kill(self, life: Life) -> None:
        """Of what it sent, each link still brings some; then the link's end is noticed."""
        if life.gone:
            return
        self._close(life, lose=True, reason="it was killed")

    def _close(self, life: Life, *, lose: bool, reason: str) -> None:
        life.gone, life.doing = True, "gone"
        for link, queue in self.links.items():
            if isinstance(link, tuple) and link[0] == id(life) and lose:
                for _ in range(self.rng.randint(0, len(queue))):
                    queue.pop()
        link = life.machine.link  # type: ignore[attr-defined]
        self.put((id(life), LEAD), "closed", LEAD, link, reason)
        for server in range(self.job.servers):
            self.put((id(life), server), "closed", server, link, reason)

    def _deliver(self, queue: deque[tuple[Any, ...]]) -> None:
        kind, *what = queue.popleft()
        getattr(self, f"_take_{kind}")(queue, *what)

    # -- what arrives -----------------------------------------------------------------------------

    def _take_lead(self, queue: Any, event: Any) -> None:
        self._lead(event)

    def _take_server(self, queue: Any, server: int, event: Any) -> None:
        self._server(server, event)

    def _take_worker(self, queue: Any, life: Life, event: Any) -> None:
        if not life.gone:
            self._worker(life, event)

    def _take_closed(self, queue: Any, where: Any, link: str, reason: str) -> None:
        closed = ev.LinkClosed(self.alias.get(link, link), reason)
        if where == LEAD:
            self._lead(closed)
        else:
            self._server(where, closed)

    def _take_seed(self, queue: deque[Any], server: int, message: m.Seed) -> None:
        seeded = self.stores[server].seed(message)
        if seeded is not None:
            self.put(("seeded", server), "server", server, seeded)

    def _take_contribution(self, queue: deque[Any], server: int, part: m.Contribution) -> None:
        if self.rng.random() < self.repeats:
            queue.append(("contribution", server, part))
        if self.lanes:
            self.put(("lane", server, part.slice % 2), "slice", server, part)
        else:
            self._take_slice(queue, server, part)

    def _take_slice(self, queue: deque[Any], server: int, part: m.Contribution) -> None:
        store = self.stores[server]
        given = (part.worker, part.incarnation, part.sequence)
        verdict = store.ledger.judge(*given, part.slice)
        if verdict is Verdict.STRANGER:
            alive = any(
                not life.gone and (life.machine.worker, life.machine.incarnation) == given[:2]
                for life in self.lives
            )
            assert not alive, f"s{server} takes w{part.worker} for a stranger"
        elif verdict is Verdict.REPEATED:
            queue.appendleft(("server", server, ev.Repeated(*given)))
        else:
            store.add(part.slice, given)
            round_ = store.ledger.add(*given, part.slice, part.slices)
            if round_ is not None:
                queue.appendleft(("server", server, ev.Contributed(*given, round_)))

    def _take_fold(self, queue: deque[Any], server: int, effect: fx.StartFold) -> None:
        store = self.stores[server]
        weight = float(max(len(given) for given in store.aggregate.values()))
        store.fold(effect.round, effect.slot, effect.fill)
        queue.appendleft(("server", server, ev.FoldDone(effect.round, weight)))

    def _take_parameters(
        self,
        queue: deque[Any],
        life: Life,
        server: int,
        effect: fx.Publish,
        slices: tuple[int, ...],
    ) -> None:
        """The head is here and says where the slices land; the bytes may come later."""
        awaited = not life.gone and life.expected is not None and effect.round >= life.expected
        queue.appendleft(("bytes", life, server, effect, slices, awaited))
        if self.by_reference:  # one copy, at once
            self._deliver(queue)

    def _take_bytes(
        self,
        queue: deque[Any],
        life: Life,
        server: int,
        effect: fx.Publish,
        slices: tuple[int, ...],
        awaited: bool,
    ) -> None:
        """Look into the slot now: by reference that is when the reader copies, over a stream when
        the bytes leave."""
        every = self.by_reference
        if awaited and not life.gone:
            for slice_ in slices:
                life.buffer[slice_] = self.stores[server].slots[effect.slot][slice_]
                life.reads[slice_] = (server, effect.slot)
            slice_ = m.EVERY_SLICE if every else slices[0]
            landed = ev.Landed(server, slice_, effect.round, effect.sequence)
            queue.appendleft(("worker", life, landed))
        if not every and slices[-1] == self.stores[server].slices[-1]:
            self.put(("sent", server), "server", server, ev.Sent(effect.worker, effect.round))

    # -- the lead --------------------------------------------------------------------------------

    def _lead(self, event: Any) -> None:
        if isinstance(event, m.Arrived):
            given = (event.worker, event.incarnation, event.sequence)
            self.arrived.setdefault(given, set()).add(event.server)
        elif isinstance(event, m.Trailer):
            self.trailers.add((event.worker, event.incarnation, event.sequence))
        for effect in self._handle(self.lead, LEAD, event):
            match effect:
                case fx.Send(to, message):
                    if isinstance(message, m.Fold) and message.round == 0:
                        self._check_seeds()
                    if isinstance(message, m.Fold) and to == "s0":
                        self._note_promises(message)
                    self._lead_sends(to, message)
                case fx.Bind(link, peer):
                    self.alias[link] = peer
                case fx.Drop(peer, reason):
                    life = self._life_at(peer)
                    if life is not None:
                        closed = ev.LinkClosed(LEAD, reason)
                        self.put((LEAD, id(life)), "worker", life, closed)
                case fx.End():
                    self.end = effect

    def _note_promises(self, fold: m.Fold) -> None:
        """What is complete at the lead now must wholly be in this fold."""
        holders = set(self.stores)
        members = {(spec.worker, spec.incarnation) for spec in fold.members}
        for given in self.trailers:
            if given[:2] in members and self.arrived.get(given) == holders:
                self.promised.append((fold.round, given))

    def _lead_sends(self, to: str, message: m.Message) -> None:
        if to.startswith("s") and to[1:].isdigit():
            server = int(to[1:])
            self.put((LEAD, server), "server", server, message)
            return
        life = self._life_at(to)
        if life is not None:
            self.put((LEAD, id(life)), "worker", life, message)

    # -- servers ---------------------------------------------------------------------------------

    def _server(self, server: int, event: Any) -> None:
        for effect in self._handle(self.servers[server], f"s{server}", event):
            match effect:
                case fx.Send(to, message) if to == LEAD:
                    self.put((server, LEAD), "lead", message)
                case fx.Send(to, message):
                    life = self._life_at(to)
                    if life is not None:
                        self.put((server, id(life)), "worker", life, message)
                case fx.Build(_, routes, routing):
                    mine = tuple(i for i, route in enumerate(routes) if route.primary == server)
                    grows = self.job.updater == "addition"
                    self.stores[server] = Store(server, mine, routing, grows)
                case fx.Enlist(members):
                    self.stores[server].ledger.enlist({s.worker: s.incarnation for s in members})
                case fx.StartFold():
                    self.put(("fold", server), "fold", server, effect)
                case fx.Publish(worker):
                    self._publish(server, worker, effect)

    def _publish(self, server: int, worker: int, effect: fx.Publish) -> None:
        life = self._life_at(fx.worker_name(worker))
        if life is None:
            return
        store = self.stores[server]
        store.history.setdefault(0, store.slots[0])
        parts = [store.slices] if self.by_reference else [(slice_,) for slice_ in store.slices]
        for part in parts:
            self.put((server, id(life)), "parameters", life, server, effect, part)

    # -- workers ---------------------------------------------------------------------------------

    def _worker(self, life: Life, event: Any) -> None:
        for effect in self._handle(life.machine, life.name, event):
            match effect:
                case fx.Send(to, message) if to == LEAD:
                    self.put((id(life), LEAD), "lead", message)
                case fx.Send(to, message):
                    self.put((id(life), int(to[1:])), "server", int(to[1:]), message)
                case fx.Dial(addresses):
                    for server in range(len(addresses)):
                        self.put((id(life), "dial"), "worker", life, ev.Linked(server))
                    life.doing = "attach"
                case fx.SeedSlices(server, slices, routing):
                    for slice_ in slices:
                        seed = m.Seed(**_who(life), slice=slice_, routing=routing)
                        self.put((id(life), server), "seed", server, seed)
                case fx.PushSlices():
                    self._push(life, effect)
                case fx.Expect(round_):
                    life.expected = round_
                case fx.Resume(round_, stop):
                    self._resume(life, round_, stop)
                case fx.Fail(reason):
                    life.failed = str(reason)
                    self._close(life, lose=False, reason=f"it failed: {reason}")
                case fx.End():
                    self._close(life, lose=False, reason="it left")

    def _push(self, life: Life, effect: fx.PushSlices) -> None:
        order = list(effect.slices)
        self.rng.shuffle(order)
        for slice_ in order:
            part = m.Contribution(
                **_who(life),
                sequence=effect.sequence,
                round=effect.round,
                slice=slice_,
                weight=effect.weight,
                slices=len(order),
            )
            self.put((id(life), effect.server), "contribution", effect.server, part)

    def _resume(self, life: Life, round_: int, stop: bool) -> None:
        versions = {cell.version for cell in life.buffer.values()}
        assert versions == {round_}, f"{life.name} goes on with {round_}, but reads {versions}"
        life.resumed.append(round_)
        life.doing = "compute"
        if stop:
            self._worker(life, ev.Leaving("the job is done"))

    def _user(self, life: Life) -> None:
        if life.doing == "attach":
            life.doing = "waiting"
            self._worker(life, ev.Attaching(SPEC))
            return
        life.doing = "waiting"
        if self.job.in_place:  # there is no copy: what is read is the server's slot, still
            for slice_, (server, slot) in life.reads.items():
                life.buffer[slice_] = self.stores[server].slots[slot][slice_]
        versions = {cell.version for cell in life.buffer.values()}
        assert versions == {life.resumed[-1]}, f"{life.name}'s parameters changed as it computed"
        life.steps += 1
        if self.rng.random() < self.abstains:
            self._worker(life, ev.Exhausted("it has nothing"))
        else:
            self._worker(life, ev.Computed(life.steps % 2, 1.0, (0.1,), None, 0, 0, 0, ()))

    # -- checks ----------------------------------------------------------------------------------

    def _handle(self, machine: Any, name: str, event: Any) -> list[Effect]:
        effects = list(machine.handle(event, self.now_ns))
        machine.check()
        return effects

    def _check_seeds(self) -> None:
        """Round 1 is about to open: everything is there, and is one worker's."""
        for server, store in self.stores.items():
            missing = set(store.slices) - set(store.seeders)
            assert not missing, f"s{server}: round 1 opens, but {missing} were not seeded"
        seeders = {seeder for store in self.stores.values() for seeder in store.seeders.values()}
        assert len(seeders) == 1, f"round 1 opens on a mixture of the parameters of {seeders}"

    def check_folds(self) -> None:
        if any(store.history for store in self.stores.values()):
            self._check_seeds()
        for server, store in self.stores.items():
            for version, cells in store.history.items():
                for slice_, cell in cells.items():
                    twice = [given for given, n in Counter(cell.given).items() if n > 1]
                    assert not twice, f"s{server}: {twice} in slice {slice_} of {version} twice"
        for round_, given in self.promised:
            for server, store in self.stores.items():
                for slice_, cell in store.history.get(round_, {}).items():
                    assert given in cell.given, (
                        f"{given} was complete when round {round_} was decided,"
                        f" but is not in slice {slice_} of s{server}"
                    )


def _who(life: Life) -> dict[str, int]:
    return {"worker": life.machine.worker, "incarnation": life.machine.incarnation}

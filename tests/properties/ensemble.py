"""The machines of lead, servers and workers together, over modelled links.

A link delivers its messages in order, and links take turns at random. A seed determines a run.
Memory is modelled too: a slot records the version of each slice and the contributions in it. So the
version that a worker reads can be compared with the version that it was promised.

Without rounds, the version of a slice is the number of its folds. A reader copies a slice at any
moment before it reports `Pulled`, and checks that it finds the version that was leased.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.machine import Effect
from polyrhythm.core.names import LEAD, worker_name
from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.server.slices import HeldSlices, OnArrivalSlices, RoundsSlices, Verdict
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.learn.points import Points
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE

ADDRESS = m.Address("memory", 0, "", "")
SPEC = m.ModelSpec(
    (m.TensorSpec("weight", (100,), "float32", 0, (1,)),),
    m.OptimizerSpec("SGD", ({"lr": 0.1},)),
)
SECOND_NS = 10**9
BATCH = 3
Given = tuple[int, int, int]
"""A contribution: worker, incarnation, sequence."""


@dataclass(frozen=True)
class Cell:
    """A slice in a slot: its version, and the contributions folded into it."""

    version: int | str
    given: tuple[Given, ...] = ()


@dataclass
class Store:
    """A server's memory, and the history of all versions."""

    rules_type: ClassVar[type[HeldSlices[Any]]] = RoundsSlices
    server: int
    routes: tuple[m.Route, ...]
    routing: int
    grows: bool
    slot: int = 0
    fill: int = 1
    slots: dict[int, dict[int, Cell]] = field(default_factory=dict)
    aggregate: dict[int, list[Given]] = field(default_factory=dict)
    history: dict[int, dict[int, Cell]] = field(default_factory=dict)
    seeders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Per slice, the worker and incarnation that seeded it."""

    def __post_init__(self) -> None:
        self.rules: Any = self.rules_type(self.server, self.routes, self.routing)
        self.slices = self.rules.mine
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

    @property
    def cells(self) -> dict[int, Cell]:
        """The current content of every slice."""
        return self.slots[self.slot]

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
        self.rules.fold(round_)


@dataclass
class Flow(Store):
    """A server's memory under a policy without rounds: a slice is folded when it arrives."""

    rules_type = OnArrivalSlices
    frozen: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.latest = SliceVersions(self.slices)

    @property
    def cells(self) -> dict[int, Cell]:
        return {slice_: self.slots[self.latest.slot(slice_)][slice_] for slice_ in self.slices}

    def add(self, slice_: int, given: Given) -> None:
        before = self.cells[slice_]
        slot = self.latest.target(slice_)
        new = Cell(int(before.version) + 1, (*before.given, given))
        self.slots.setdefault(slot, {})[slice_] = new
        self.latest.on_folded(slice_, slot)

    def freeze(self) -> None:
        self.frozen = True

    def unlease(self, worker: int, ticket: int | None) -> None:
        self.latest.release(worker, ticket)
        for slot in self.latest.surplus():
            del self.slots[slot]
        self.latest.check()


@dataclass
class Life:
    """One worker process: its machine, its buffer, and the state of the user's code."""

    name: str
    machine: WorkerMachine
    link: str
    """The name of the worker's link. Before a worker is admitted, it is known by this name. A
    worker that joins again has a link with another name."""
    buffer: dict[int, Cell] = field(default_factory=dict)
    tickets: dict[int, int] = field(default_factory=dict)
    """Without rounds: per slice in the buffer, the ticket of the pull that it answers."""
    sent: set[Given] = field(default_factory=set)
    """The contributions of this incarnation that are not acknowledged yet."""
    last: Given | None = None
    lease: m.Leased | None = None
    points: Points | None = None
    batch: tuple[int, ...] = ()
    reads: dict[int, tuple[int, int]] = field(default_factory=dict)
    expected: int | None = None
    keeps: int | None = None
    """The ticket whose answers wait in the link while nothing may be written to the buffer."""
    doing: str = "joining"
    steps: int = 0
    resumed: list[int] = field(default_factory=list)
    failed: str | None = None
    gone: bool = False
    asleep: bool = False
    rejoined: int = 0
    incarnations: set[int] = field(default_factory=set)
    """The incarnations under which the worker contributed."""


class Ensemble:
    """One run of a job, determined by its seed.

    - `deaths`, `joins`: the number of workers that die, or join late, at random moments;
    - `seeder_deaths`: the number of workers that die while their seeds are in flight;
    - `repeats`: the probability that a slice is sent twice;
    - `abstains`: the probability that a worker has nothing to contribute;
    - `timer_rate`: the probability that time jumps to the next wake-up of the lead;
    - `sleeps`: the number of workers that are paused until the lead evicts them (without any, there
      are no heartbeats);
    - `points`: the size of the data set. With 0 there is no data, and the job counts steps.

    The seed also decides whether workers read the memory of a server directly, and whether a server
    adds slices in separate threads.
    """

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
        sleeps: int = 0,
        points: int = 0,
    ) -> None:
        self.rng = random.Random(seed)
        if not sleeps:
            # no worker is paused, so heartbeats are not needed
            job = msgspec.structs.replace(job, heartbeat_s=1e6)
        self.job = job
        self.rounds = traits_of(job.sync).rounds
        self.sleeps, self.points = sleeps, points
        self._slept = False
        """Whether any worker has been asleep."""
        self.evictions = 0
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
        self.incarnations: dict[str, int] = {}
        self.holds: dict[tuple[int, str], str] = {}
        """Per server and peer: the link over which the server reaches the peer."""
        self.kept: set[str] = set()
        """Links of paused workers whose messages stay in flight."""
        self.links: dict[Any, deque[tuple[Any, ...]]] = {}
        self.end: fx.End | None = None
        self.arrived: dict[Given, set[int]] = {}
        self.trailers: set[Given] = set()
        self.promised: list[tuple[int, Given]] = []
        self.visits: dict[Given, tuple[int, ...]] = {}
        self.counted: list[Given] = []
        self._watch_counting()
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
        hello = m.ServerHello(
            server=server, name=f"s{server}", job=self.job.job, address=ADDRESS, identity=""
        )
        self.put((f"s{server}", LEAD), "lead", ev.ServerHelloReceived(f"link-s{server}", hello))

    def _start_worker(self, name: str) -> None:
        life = Life(name, WorkerMachine(name), f"link-{len(self.alias) + 1}")
        self.lives.append(life)
        self._handshake(life)

    def _handshake(self, life: Life) -> None:
        self.alias[life.link] = life.link
        hello = m.WorkerHello(name=life.name, job=self.job.job, identity="")
        self.put((life.link, LEAD), "lead", ev.WorkerHelloReceived(life.link, hello))

    def _life_at(self, peer: str) -> Life | None:
        for life in reversed(self.lives):
            if peer in (life.link, self.alias.get(life.link)):
                return None if life.gone else life
        return None

    def _watch_counting(self) -> None:
        count = self.lead.parts.progress.count

        def watched(trailer: m.Trailer, now_ns: int, ahead: bool = False) -> None:
            self.counted.append((trailer.worker, trailer.incarnation, trailer.sequence))
            count(trailer, now_ns, ahead)

        self.lead.parts.progress.count = watched  # type: ignore[method-assign]

    # -- one step ---------------------------------------------------------------------------------

    def run(self, most: int = 20_000) -> "Ensemble":
        for _ in range(most):
            if self.end is not None:
                self.check_folds()
                return self
            if not self.step():
                if all(life.gone for life in self.lives) and not self.promised:
                    return self  # all workers died before round 1, and the lead waits for new ones
                self.check_folds()
                raise AssertionError(f"it hangs: {self.why()}")
        raise AssertionError(f"it does not end: {self.why()}")

    def why(self) -> list[str]:
        machines = [self.lead, *self.servers, *(life.machine for life in self.lives)]
        return [in_words(machine.why().reason) for machine in machines]

    def step(self) -> bool:
        self.now_ns += 1000
        # each entry can happen next: a queue delivers its next message, a worker (`Life`) does what
        # its user's code asks for, or a function is called
        ready: list[deque[tuple[Any, ...]] | Life | Callable[[], None]]
        deaf = {life.link for life in self.lives if life.asleep} if self._slept else ()
        if deaf or self.kept:
            ready = [
                queue
                for link, queue in self.links.items()
                if queue
                and not (isinstance(link, tuple) and (link[1] in deaf or link[0] in self.kept))
            ]
        else:
            ready = [queue for queue in self.links.values() if queue]
        ready += [
            life
            for life in self.lives
            if life.doing in ("attach", "compute") and not life.gone and not life.asleep
        ]
        if self.sleeps and self.rng.random() < 0.02:
            self._fall_asleep()
        if self._slept:
            evicted = [life for life in self.lives if life.asleep and self._is_evicted(life)]
            if evicted and (not ready or self.rng.random() < 0.05):
                ready = [lambda: self._wake_up(self.rng.choice(evicted))]
        wakes = self._wakes()
        if wakes and (not ready or self.rng.random() < self.timer_rate):
            ready = [lambda: self._tick(wakes)]
        if self.deaths and self.rng.random() < 0.01:
            self.deaths -= 1
            ready = [lambda: self._kill(self.rng.choice(self.lives))]
        if self.seeder_deaths and self.rng.random() < 0.1 and (seeding := self._seeding()):
            self.seeder_deaths -= 1
            ready = [lambda: self._kill(self.rng.choice(seeding))]
        if self.joins and self.rng.random() < 0.02:
            self.joins -= 1
            ready = [self._join]
        if not ready:
            return False
        chosen = self.rng.choice(ready)
        if isinstance(chosen, deque):
            self._deliver(chosen)
        elif isinstance(chosen, Life):
            self._user(chosen)
        else:
            chosen()
        return True

    # -- time ------------------------------------------------------------------------------------

    def _wakes(self) -> dict[Any, int]:
        """The times at which workers (by number) and the lead (None) want to be woken. The lead is
        not woken while a worker joins again, because joining takes no time here."""
        # skip wake-ups that lie further ahead: they only detect silence
        latest_ns = self.now_ns + 10**6 * SECOND_NS
        wakes: dict[Any, int] = {}
        for life in self.lives:
            if life.rejoined and self.alias[life.link] == life.link:
                break  # this worker joins again
        else:
            wake_ns = self.lead.wake_at()
            if wake_ns is not None and wake_ns <= latest_ns:
                wakes[None] = wake_ns
        if self.job.heartbeat_s < 1e6:
            for number, life in enumerate(self.lives):
                if not life.gone and not life.asleep:
                    wake_ns = life.machine.wake_at()
                    if wake_ns is not None and wake_ns <= latest_ns:
                        wakes[number] = wake_ns
        return wakes

    def _tick(self, wakes: dict[Any, int]) -> None:
        self.now_ns = max(self.now_ns, min(wakes.values()))
        due = [node for node, wake_ns in wakes.items() if wake_ns <= self.now_ns]
        node = self.rng.choice(due)
        if node is None:
            self._lead(ev.Tick())
        else:
            self._worker(self.lives[node], ev.Tick())

    def _fall_asleep(self) -> None:
        begun = [life for life in self.lives if life.resumed and not life.gone and not life.asleep]
        if begun and self.end is None:
            self.sleeps -= 1
            life = self.rng.choice(begun)
            life.asleep = self._slept = True
            if self.rng.random() < 0.5:
                self.kept.add(life.link)

    def _is_evicted(self, life: Life) -> bool:
        machine = life.machine
        return self.lead.view.get(machine.worker, machine.incarnation) is None

    def _wake_up(self, life: Life) -> None:
        life.asleep = False
        self.kept.discard(life.link)

    # -- joining and leaving ----------------------------------------------------------------------

    def _join(self) -> None:
        """Start a new worker, or one that was a member before."""
        busy = {link[0] for link, queue in self.links.items() if queue}
        linked = {life.name for life in self.lives if not life.gone or life.link in busy}
        again = sorted({life.name for life in self.lives} - linked)
        fresh = f"worker-{len(self.lives)}"
        self._start_worker(self.rng.choice([*again, fresh]))

    def _seeding(self) -> list[Life]:
        """The workers whose seeds are in flight."""
        links = {
            link[0] for link, queue in self.links.items() if any(w[0] == "seed" for w in queue)
        }
        return [life for life in self.lives if life.link in links and not life.gone]

    def _kill(self, life: Life) -> None:
        """Kill a worker. Each of its links still delivers some of the sent messages before it
        ends."""
        if life.gone:
            return
        self._close(life, lose=True, reason="it was killed")

    def _close(self, life: Life, *, lose: bool, reason: str) -> None:
        life.gone, life.doing, life.asleep = True, "gone", False
        self.kept.discard(life.link)
        for link, queue in self.links.items():
            if isinstance(link, tuple) and link[0] == life.link and lose:
                for _ in range(self.rng.randint(0, len(queue))):
                    queue.pop()
        self._hang_up(life, reason)

    def _hang_up(self, life: Life, reason: str) -> None:
        """End the links of a worker. Messages from the worker still arrive, and messages to it are
        lost."""
        for where in (LEAD, *range(self.job.servers)):
            self.put((life.link, where), "closed", where, life.link, reason)
            self.links.pop((where, life.link), None)

    def _rejoin(self, life: Life, reason: str) -> None:
        """Let a worker join again over new links. Its peers may notice the end of the old links
        before or after that."""
        life.rejoined += 1
        life.sent, life.last = set(), None
        life.tickets.clear()
        received = self._received(life)
        self._hang_up(life, reason)
        life.link = f"link-{len(self.alias) + 1}"
        self._handshake(life)
        for event in received:
            self._worker(life, event)

    def _received(self, life: Life) -> list[Any]:
        """Messages that the process had read from its old links. It handles them even after it has
        joined again, but ignores the end of an old link."""
        found = []
        for where in (LEAD, *range(self.job.servers)):
            queue = self.links.get((where, life.link), ())
            for item in list(queue)[: self.rng.randint(0, 3)]:
                if item[0] == "worker" and not isinstance(item[2], ev.LinkClosed):
                    found.append(item[2])
                elif item[0] == "latest" and self.by_reference:
                    _, _, server, effect, _ = item
                    every, ticket = m.EVERY_SLICE, effect.ticket
                    landed = ev.Landed(server, every, ticket, effect.sequence, effect.routing)
                    found.append(landed)
        return found

    def _deliver(self, queue: deque[tuple[Any, ...]]) -> None:
        kind, *what = queue.popleft()
        getattr(self, f"_take_{kind}")(queue, *what)

    # -- deliveries -------------------------------------------------------------------------------

    def _take_lead(self, queue: Any, event: Any) -> None:
        self._lead(event)

    def _take_server(self, queue: Any, server: int, event: Any) -> None:
        self._server(server, event)

    def _take_worker(self, queue: Any, life: Life, event: Any) -> None:
        if not life.gone:
            self._worker(life, event)

    def _take_linked(self, queue: Any, server: int, link: str) -> None:
        """A worker has linked to a server. An older link of the same worker ends."""
        peer = self.alias[link]
        if self.holds.get((server, peer), link) != link:
            self._server(server, ev.LinkClosed(peer, "it came back"))
        self.holds[server, peer] = link

    def _take_closed(self, queue: Any, where: Any, link: str, reason: str) -> None:
        peer = self.alias.get(link, link)
        # the peer may have come back before the lead notices the end of its old link
        if where == LEAD:
            self._lead(ev.LinkClosed(peer, reason, self.incarnations.get(link, 0)))
        elif self.holds.get((where, peer), link) == link:
            self.holds.pop((where, peer), None)
            self._server(where, ev.LinkClosed(peer, reason))

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
        if isinstance(store, Flow) and store.frozen:
            return
        verdict = store.rules.judge(part)
        if verdict is Verdict.STRANGER:
            alive = any(
                not life.gone and (life.machine.worker, life.machine.incarnation) == given[:2]
                for life in self.lives
            )
            member = self.lead.view.get(*given[:2]) is not None
            assert not alive or not member, f"s{server} takes w{part.worker} for a stranger"
        elif verdict is Verdict.REPEATED:
            queue.appendleft(("server", server, ev.Repeated(*given)))
        else:
            store.add(part.slice, given)
            if (event := store.rules.add(part)) is not None:
                queue.appendleft(("server", server, event))

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
        """The head has arrived, and the worker decides whether to read the slices. The bytes may
        arrive later."""
        expected = not life.gone and life.expected is not None and effect.round >= life.expected
        queue.appendleft(("bytes", life, server, effect, slices, expected))
        if self.by_reference:  # a reader that gets a reference copies all slices at once
            self._deliver(queue)

    def _take_bytes(
        self,
        queue: deque[Any],
        life: Life,
        server: int,
        effect: fx.Publish,
        slices: tuple[int, ...],
        expected: bool,
    ) -> None:
        """Read the slot now. A worker that reads memory directly copies the slices at this moment.
        Over a stream, the server sends the bytes at this moment."""
        every = self.by_reference
        if expected and not life.gone:
            for slice_ in slices:
                life.buffer[slice_] = self.stores[server].slots[effect.slot][slice_]
                life.reads[slice_] = (server, effect.slot)
            slice_ = m.EVERY_SLICE if every else slices[0]
            landed = ev.Landed(server, slice_, effect.round, effect.sequence, effect.routing)
            queue.appendleft(("worker", life, landed))
        if not every and slices[-1] == self.stores[server].slices[-1]:
            self.put(("sent", server), "server", server, ev.Sent((effect.worker,), effect.round))

    def _take_latest(
        self, queue: deque[Any], life: Life, server: int, effect: fx.PublishLatest, leased: Any
    ) -> None:
        """The head has arrived. The slices are read one by one, at any later time."""
        slice_, slot, cell = leased[0]
        expected = not life.gone and life.expected is not None and effect.ticket >= life.expected
        if not (expected or life.gone) and effect.ticket == life.keeps:
            queue.appendleft(("latest", life, server, effect, leased))
            return
        if expected:
            found = self.stores[server].slots.get(slot, {}).get(slice_)
            assert found == cell, (
                f"{life.name} was sent slice {slice_} as {cell}, but finds {found}: it was overwritten"
            )
            life.buffer[slice_], life.tickets[slice_] = cell, effect.ticket
        rest = leased[1:]
        if rest:
            queue.appendleft(("latest", life, server, effect, rest))
        if expected and not (rest and self.by_reference):
            which = m.EVERY_SLICE if self.by_reference else slice_
            landed = ev.Landed(server, which, effect.ticket, effect.sequence, effect.routing)
            queue.appendleft(("worker", life, landed))
        if not rest and not self.by_reference:
            self.put(("sent", server), "server", server, ev.Sent((effect.worker,), effect.ticket))

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
                    if isinstance(message, m.Fold) and to == "s0" and self.rounds:
                        self._note_promises(message)
                    self.evictions += isinstance(message, m.Evicted)
                    self._lead_sends(to, message)
                case fx.Bind(link, peer, incarnation):
                    self.alias[link] = peer
                    self.incarnations[link] = incarnation
                case fx.Drop(peer, reason):
                    life = self._life_at(peer)
                    if life is not None:
                        closed = ev.LinkClosed("s0", in_words(reason))
                        self.put((LEAD, life.link), "worker", life, closed)
                case fx.End():
                    self.end = effect

    def _note_promises(self, fold: m.Fold) -> None:
        """Note the contributions that are complete now: this fold must contain each of them in all
        slices."""
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
            self.put((LEAD, life.link), "worker", life, message)

    # -- servers ---------------------------------------------------------------------------------

    def _server(self, server: int, event: Any) -> None:
        for effect in self._handle(self.servers[server], f"s{server}", event):
            match effect:
                case fx.Send(to, message) if to == LEAD:
                    self.put((server, LEAD), "lead", message)
                case fx.Send(to, message):
                    life = self._life_at(to)
                    if life is not None:
                        self.put((server, life.link), "worker", life, message)
                case fx.Build(_, routes, routing):
                    grows = self.rounds and self.job.updater == "addition"
                    kind = Store if self.rounds else Flow
                    self.stores[server] = kind(server, routes, routing, grows)
                case fx.Enlist(members):
                    self.stores[server].rules.enlist(members)
                case fx.StartFold():
                    self.put(("fold", server), "fold", server, effect)
                case fx.Publish(worker):
                    self._publish(server, worker, effect)
                case fx.PublishLatest(worker):
                    self._publish_latest(server, worker, effect)
                case fx.Unlease(worker, ticket) if server in self.stores:
                    self._flow(server).unlease(worker, ticket)
                case fx.Freeze():
                    self._flow(server).freeze()

    def _flow(self, server: int) -> Flow:
        store = self.stores[server]
        assert isinstance(store, Flow)
        return store

    def _publish_latest(self, server: int, worker: int, effect: fx.PublishLatest) -> None:
        life = self._life_at(worker_name(worker))
        if life is None:
            return
        store = self._flow(server)
        slots = store.latest.lease(worker, effect.ticket)
        leased = [
            (slice_, slot, store.slots[slot][slice_])
            for slice_, slot in zip(store.slices, slots, strict=True)
        ]
        self.put((server, life.link), "latest", life, server, effect, leased)

    def _publish(self, server: int, worker: int, effect: fx.Publish) -> None:
        life = self._life_at(worker_name(worker))
        if life is None:
            return
        store = self.stores[server]
        store.history.setdefault(0, store.slots[0])
        parts = [store.slices] if self.by_reference else [(slice_,) for slice_ in store.slices]
        for part in parts:
            self.put((server, life.link), "parameters", life, server, effect, part)

    # -- workers ---------------------------------------------------------------------------------

    def _worker(self, life: Life, event: Any) -> None:
        for effect in self._handle(life.machine, life.name, event):
            match effect:
                case fx.Send(to, message) if to == LEAD:
                    self.put((life.link, LEAD), "lead", message)
                # deliver heartbeats without a delay, so that only a paused worker is silent
                case fx.Beat(message):
                    self._lead(message)
                case fx.Send(to, message):
                    self.put((life.link, int(to[1:])), "server", int(to[1:]), message)
                case fx.Dial(servers):
                    for spec in servers:
                        linked = ev.Linked(spec.server, spec.incarnation)
                        self.put((life.link, spec.server), "linked", spec.server, life.link)
                        self.put((life.link, "dial"), "worker", life, linked)
                    if not life.rejoined:  # a worker that rejoins has attached its model before
                        life.doing = "attach"
                case fx.Rejoin(reason):
                    self._rejoin(life, in_words(reason))
                case fx.TakeChunks(lease):
                    life.lease = lease
                case fx.SeedSlices(server, slices, routing):
                    for slice_ in slices:
                        seed = m.Seed(**_identity(life), slice=slice_, routing=routing)
                        self.put((life.link, server), "seed", server, seed)
                case fx.PushSlices():
                    self._push(life, effect)
                case fx.Expect(round_, keep):
                    life.expected, life.keeps = round_, keep
                case fx.Resume(round_, stop):
                    self._resume(life, round_, stop)
                case fx.Fail(reason):
                    life.failed = in_words(reason)
                    self._close(life, lose=False, reason=f"it failed: {in_words(reason)}")
                case fx.End():
                    self._close(life, lose=False, reason="it left")
        self._check_acknowledged(life)
        if life.doing == "enrolling" and life.lease is not None:
            life.doing = "compute" if life.machine.state is Phase.COMPUTING else "enrolling"

    def _push(self, life: Life, effect: fx.PushSlices) -> None:
        given = (life.machine.worker, life.machine.incarnation, effect.sequence)
        if given != life.last:
            life.last = given
            life.incarnations.add(given[1])
            life.sent.add(given)
            self.visits[given], life.batch = life.batch, ()
        order = list(effect.slices)
        self.rng.shuffle(order)
        for slice_ in order:
            part = m.Contribution(
                **_identity(life),
                sequence=effect.sequence,
                round=effect.round,
                slice=slice_,
                weight=effect.weight,
                slices=len(order),
                pull=effect.pull,
                pulled=effect.pulled,
            )
            self.put((life.link, effect.server), "contribution", effect.server, part)

    def _resume(self, life: Life, round_: int, stop: bool) -> None:
        versions = self._versions(life)
        assert versions == {round_}, f"{life.name} goes on with {round_}, but reads {versions}"
        if stop and not self.rounds:
            self._check_final(life)
        elif life.last is not None and not self.rounds and not self.job.read_ahead:
            # a server that folds nothing any more may have refused the contribution
            for store in self.stores.values():
                for slice_ in () if self._flow(store.server).frozen else store.slices:
                    assert life.last in life.buffer[slice_].given, (
                        f"{life.name} goes on without its last contribution in slice {slice_}"
                    )
        life.resumed.append(round_)
        life.doing = "compute"
        if stop:
            self._worker(life, ev.Leaving(DONE))

    def _user(self, life: Life) -> None:
        if life.doing == "attach":
            life.doing = "waiting"
            self._worker(life, ev.Attaching(SPEC))
            return
        life.doing = "waiting"
        if self.points and life.lease is None:
            life.doing = "enrolling"
            self._worker(life, ev.Enrolling(self.points))
            return
        # with `in_place` the worker computes on the server's slot itself, without a copy
        if self.job.in_place:
            for slice_, (server, slot) in life.reads.items():
                life.buffer[slice_] = self.stores[server].slots[slot][slice_]
        versions = self._versions(life)
        assert versions == {life.resumed[-1]}, f"{life.name}'s parameters changed as it computed"
        life.steps += 1
        lease, progress = 0, ()
        if life.lease is not None:
            life.points = life.points or Points(life.lease)
            life.points.take(life.lease)
            indices, progress = life.points.next(BATCH)
            lease, life.batch = life.lease.number, tuple(int(index) for index in indices)
        if self.rng.random() < self.abstains or (life.lease is not None and not life.batch):
            self._worker(life, ev.Exhausted(lease))
        else:
            buffer = life.steps % 2
            report = m.ContributionReport(weight=1.0, progress=progress, lease=lease)
            self._worker(life, ev.Computed(buffer, (0.1,), report))

    def _versions(self, life: Life) -> set[Any]:
        if self.rounds:
            return {cell.version for cell in life.buffer.values()}
        return set(life.tickets.values())

    # -- checks ----------------------------------------------------------------------------------

    def _handle(self, machine: Any, name: str, event: Any) -> list[Effect]:
        effects = list(machine.handle(event, self.now_ns))
        machine.check()
        return effects

    def _check_seeds(self) -> None:
        """Before round 1 opens, all slices have been seeded by the same worker."""
        for server, store in self.stores.items():
            missing = set(store.slices) - set(store.seeders)
            assert not missing, f"s{server}: round 1 opens, but {missing} were not seeded"
        seeders = {seeder for store in self.stores.values() for seeder in store.seeders.values()}
        assert len(seeders) == 1, f"round 1 opens on a mixture of the parameters of {seeders}"

    def _check_acknowledged(self, life: Life) -> None:
        """A contribution that every server acknowledged is in every slice exactly once."""
        for given in sorted(life.sent):
            if given[2] <= life.machine.acknowledged:
                life.sent.remove(given)
                self._check_in_once(given, "was acknowledged")

    def _check_in_once(self, given: Given, what: str) -> None:
        for server, store in self.stores.items():
            for slice_, cell in store.cells.items():
                count = cell.given.count(given)
                times = {0: "missing", 1: "in", 2: "twice"}.get(count, "more than twice")
                assert count == 1, f"{given} {what}, but {times} in slice {slice_} of s{server}"

    def _check_final(self, life: Life) -> None:
        for server, store in self.stores.items():
            for slice_, cell in store.cells.items():
                assert life.buffer[slice_] == cell, (
                    f"{life.name}'s final slice {slice_} is {life.buffer[slice_]},"
                    f" but s{server} has {cell}"
                )

    def check_flow(self) -> None:
        """Without rounds: each counted contribution is in every slice once, and none is in a slice
        twice."""
        for server, store in self.stores.items():
            for slice_, cell in store.cells.items():
                twice = [given for given, n in Counter(cell.given).items() if n > 1]
                assert not twice, f"s{server}: {twice} in slice {slice_} twice"
        assert len(self.counted) == len(set(self.counted)), "a contribution was counted twice"
        for given in self.counted:
            self._check_in_once(given, "was counted")
        goal = self.end is not None and not self.end.failed
        if self.points and self.job.epochs is not None and goal:
            times = Counter(point for given in self.counted for point in self.visits[given])
            assert times == dict.fromkeys(range(self.points), self.job.epochs), (
                "a point was not visited"
            )

    def check_folds(self) -> None:
        if not self.rounds:
            self.check_flow()
            return
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


def _identity(life: Life) -> dict[str, int]:
    return {"worker": life.machine.worker, "incarnation": life.machine.incarnation}

"""Runs whose parameters can be checked against books of all contributions.

Contribution n of worker w adds 1 to element (w, n mod K) of a block that every slice holds. *At the
end no element is larger than the number of contributions sent for it, and every contribution that
was acknowledged or counted is in every slice exactly once. Every version that a reader gets is one
version, not a mixture of two.*

A seed gives a scenario of crashes, stops, joins and leaves. From time to time a contribution is
sent twice, as a worker does if it has not received the acknowledgement. With replicas, servers fail
too,
and *every slice* means the slice on its primary and on every replica.
"""

import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.rounds.contributions import Complete, Contributions
from polyrhythm.core.lead.rounds.counting import Counting
from polyrhythm.core.server.slices import Verdict
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.pushes import Outstanding
from polyrhythm.core.worker.training import Training
from polyrhythm.sim.model.link import Channel
from polyrhythm.sim.server.slice_store import (
    Given,
    Place,
    SimOnArrivalSliceStore,
    SimRoundsSliceStore,
    SimSliceStore,
)
from polyrhythm.wire.messages import Contribution, Message, Route, Row, SliceStep
from tests.sim.staged_run import Run

_K = 211
_REPEATED = 0.05
_SERVERS_CHANGED = ("server-joined", "server-lost")
_RESTORED_S = 0.5
"""The time after which lost copies must be restored: about five times as long as copying takes
here."""
_CALM_S = 0.7
"""How long a run with failing servers continues after its last event. If a server joins with the
last event, it must have its copies before the end of the run."""
_LONG_CALM_S = 1.3
"""The same for seeds that have found a fault, and with POLYRHYTHM_TORTURE=N."""
_SEARCHES = os.environ.get("POLYRHYTHM_TORTURE", "1") != "1"
"""Whether the tests search for faults with many seeds."""
Block = Counter[tuple[int, int]]
"""Per element, the sum that was added to it."""


@dataclass
class Books:
    """The contributions that were sent and acknowledged according to the workers, and counted
    according to the lead."""

    sent: dict[Given, tuple[int, int]] = field(default_factory=dict)
    """The element that each contribution adds 1 to."""
    acknowledged: set[Given] = field(default_factory=set)
    counted: dict[Given, int] = field(default_factory=dict)
    """The round in which the lead counted each contribution."""
    excused: set[Given] = field(default_factory=set)
    """Contributions that may be missing at the end. A server that had them died before the fold of the
    round that counts them, and their worker died too, so it could not send them again."""
    memories: dict[int, "Blocks"] = field(default_factory=dict)
    """The memory of each server. A server that was started again has a new memory."""
    senders: dict[Outstanding, tuple[int, int]] = field(default_factory=dict)
    """The worker and the incarnation of each object that keeps track of outstanding
    contributions."""
    needless: int = 0
    """The number of slices that were sent again though they were acknowledged or in flight."""
    _numbers: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def send(self, given: Given) -> None:
        worker = given[0]
        self.sent[given] = (worker, self._numbers[worker] % _K)
        self._numbers[worker] += 1

    def settle(self, rounds: int | None, routes: Sequence[Route]) -> None:
        """Check the servers' memories at the end of a run. `rounds`: the number of folded rounds,
        or None if contributions are folded on arrival. `routes`: the routes at the end."""
        assert not self.needless, f"{self.needless} slices were sent again without need"
        most = Counter(self.sent.values())
        due = [
            given
            for given, round_ in self.counted.items()
            if given not in self.excused and (rounds is None or round_ <= rounds)
        ]
        least = Counter(self.sent[given] for given in {*self.acknowledged, *due})
        for slice_, route in enumerate(routes):
            for server in (route.primary, *route.replicas):
                block = self.memories[server].current()[slice_]
                where = f"slice {slice_} of s{server}"
                above, missing = block - most, least - block
                assert not above, f"{where} has more than was sent: {dict(above)}"
                assert not missing, f"{where} lacks what was counted: {dict(missing)}"


class Blocks(SimSliceStore):
    """The memory of a server, with a block in every slot. It checks nothing. The block of a fetched
    slice has the contents of the message that brought it, so an error in a copy stays visible in
    that copy."""

    books: Books

    def __init__(self, *args: Any, **options: Any) -> None:
        self._blocks: dict[Place, Block] = {}
        self._at: dict[int, int] = {}
        super().__init__(*args, **{**options, "keep": True})
        self.books.memories[self._server] = self

    def _fold_slice(self, slice_: int, slot: int, step: SliceStep) -> None:
        block = Counter(self._blocks.get(self.place(slice_, self._at.get(slice_, 0)), ()))
        block.update(self.books.sent[given] for given in self._added[slice_])
        self._blocks[self.place(slice_, slot)] = block
        self._at[slice_] = slot
        self.contents[slice_].update(self._added[slice_])
        self._added[slice_].clear()
        self.weights[slice_] += step.weight
        self._aggregate[slice_] = 0.0

    def fold(self, round_: int, slot: int, share: float = 1.0, rows: tuple[Row, ...] = ()) -> float:
        weight = super().fold(round_, slot, share, rows)
        # also slices of which this server was not the primary when the round was folded
        for slice_ in self.slices:
            before = self._at.get(slice_, slot)
            if before != slot:
                earlier = self._blocks[self.place(slice_, before)]
                self._blocks[self.place(slice_, slot)] = Counter(earlier)
                self._at[slice_] = slot
        return weight

    def adopt(self, message: Any) -> Any:
        expected = self.rules.judge_state(message) is Verdict.NEW
        event = super().adopt(message)
        if message.parts and expected:
            elements = Counter(self.books.sent[given] for given in message.cargo)
            self._blocks[self.place(message.slice, 0)] = elements
            self._at[message.slice] = 0
        return event

    def reroute(self, routes: Sequence[Route], routing: int) -> Any:
        before = {slice_: self.place(slice_, slot) for slice_, slot in self._at.items()}
        event = super().reroute(routes, routing)
        for slice_, place in before.items():
            # the server has another role for this slice now, so the slice is in other memory
            if self.place(slice_, place[2]) != place:
                self._at[slice_] = self._first if slice_ in self.slices else 0
                block = Counter(self._blocks.get(place, ()))
                self._blocks[self.place(slice_, self._at[slice_])] = block
        return event

    def current(self) -> dict[int, Block]:
        """The block of every slice that this server holds, as its primary or as a replica."""
        return {
            slice_: self._blocks.get(self.place(slice_, self._at.get(slice_, 0)), Counter())
            for slice_ in self.contents
        }

    def stamps(self, places: Sequence[Place]) -> list[Any]:
        """The blocks at these places, as plain dicts."""
        return [dict(self._blocks.get(place, ())) for place in places]


@contextmanager
def bookkeeping(seed: int, *, repeated: float = _REPEATED) -> Iterator[Books]:
    """Record all runs in this context in the books. `repeated`: the probability that a slice of a
    contribution is sent twice."""
    books, rng = Books(), random.Random(seed)
    contribute, acknowledge = Training._contribute, Outstanding.acknowledge
    reroute, secure = Outstanding.reroute, Outstanding.secure
    count, excuse, send = Counting.count, Contributions.excuse, Channel.send

    def contribute_booked(training: Training, event: Any, now_ns: int) -> None:
        outbox, pushes = training._state.outbox, training._state.pushes
        books.send((outbox.worker, outbox.incarnation, pushes.sequence + 1))
        books.senders[pushes.outstanding] = (outbox.worker, outbox.incarnation)
        contribute(training, event, now_ns)

    def reroute_booked(
        outstanding: Outstanding, routes: tuple[Route, ...], relinked: Collection[int]
    ) -> list[Any]:
        owed = {
            (sent.sequence, slice_): (server, since)
            for sent in outstanding.sent
            for server, parts in sent.owed.items()
            for since, slices in parts.items()
            for slice_ in slices
        }
        again = reroute(outstanding, routes, relinked)
        for sent, moved in again:
            for slice_ in (slice_ for slices in moved.values() for slice_ in slices):
                route, before = routes[slice_], owed.get((sent.sequence, slice_))
                stays = before == (route.primary, route.since) and before[0] not in relinked
                books.needless += stays or before is None
        return again

    def acknowledge_booked(outstanding: Outstanding, *of: int) -> None:
        before = {sent.sequence for sent in outstanding.sent}
        acknowledge(outstanding, *of)
        gone = before - {sent.sequence for sent in outstanding.sent}
        books.acknowledged |= {(*books.senders[outstanding], mine) for mine in gone}

    def secure_booked(outstanding: Outstanding, sequence: int) -> None:
        before = {sent.sequence for sent in outstanding.sent}
        secure(outstanding, sequence)
        gone = before - {sent.sequence for sent in outstanding.sent}
        books.acknowledged |= {(*books.senders[outstanding], mine) for mine in gone}

    def count_booked(
        counting: Counting, complete: Complete, member: Member | None, now_ns: int
    ) -> None:
        trailer = complete.trailer
        books.counted[trailer.worker, trailer.incarnation, trailer.sequence] = complete.round
        count(counting, complete, member, now_ns)

    def excuse_booked(arrivals: Contributions, worker: int, incarnation: int) -> None:
        books.excused |= {given for given in arrivals.owed if given[:2] == (worker, incarnation)}
        excuse(arrivals, worker, incarnation)

    def send_again(way: Channel, message: Message, nbytes: int = 0) -> int:
        left_ns = send(way, message, nbytes)
        if isinstance(message, Contribution) and rng.random() < repeated:
            left_ns = send(way, message, nbytes)
        return left_ns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "_contribute", contribute_booked)
        patch.setattr(Outstanding, "acknowledge", acknowledge_booked)
        patch.setattr(Outstanding, "reroute", reroute_booked)
        patch.setattr(Outstanding, "secure", secure_booked)
        patch.setattr(Counting, "count", count_booked)
        patch.setattr(Contributions, "excuse", excuse_booked)
        patch.setattr(Channel, "send", send_again)
        for store in (SimRoundsSliceStore, SimOnArrivalSliceStore):
            booked = type("Booked", (Blocks, store), {"books": books})
            patch.setattr(f"polyrhythm.sim.server.slice_store.{store.__name__}", booked)
        yield books


def scenario(sync: str, seed: int, limit: str = "1h", kind: str = "local") -> str:
    """A job in which many workers fail. The first worker does not fail, so that the job can end."""
    rng = random.Random(f"{sync} {seed}")
    workers = rng.randint(3, 5)
    sync, _, patience = sync.partition(" abandon ")
    # under these policies other workers continue while a slow worker reads a version; under all
    # other policies they wait for the slow worker
    slow_link = "5Mbit" if sync.startswith(("asp", "psp", "ssp")) else "20Mbit"
    text = f"""
        [job]
        sync = "{sync}"
        kind = "{"gradient" if patience else kind}"
        abandon = "{patience or "off"}"
        interval = "{rng.choice(["auto", "20ms", "60ms"])}"
        coordination = "{rng.choice(["semi", "central"])}"
        timer = "{rng.choice(["off", "60ms", "auto"])}"
        epochs = 2
        points = {rng.randint(500, 900)}
        batch = {rng.choice([5, 8, 16])}
        servers = {rng.randint(1, 3)}
        model = "200kB"
        slice = "{rng.choice(["40kB", "60kB"])}"
        heartbeat = "50ms"
        limit = "{limit}"
        [link]
        delay = "1ms"
        bandwidth = "200Mbit"
        loss = {rng.choice([0.0, 0.02])}
        timeout = "30ms"
        [[workers]]
        count = {workers - 1}
        step = "8ms"
        step_noise = 0.4
        [[workers]]
        step = "{rng.choice(["3ms", "30ms"])}"
        step_pareto = 2.0
        join = "{rng.choice([0, 120])}ms"
        link = {{ delay = "2ms", bandwidth = "{rng.choice([slow_link, "200Mbit"])}" }}
    """
    for _ in range(rng.randint(2, 5)):
        worker = rng.randint(1, workers - 1)
        at_ms = rng.uniform(20, 900)
        match rng.choice(["crash", "stop", "leave", "slow", "join"]):
            case "crash":
                text += _event(at_ms, "crash", worker)
                text += _event(at_ms + rng.uniform(20, 300), "join", worker)
            case "stop":
                text += _event(at_ms, "stop", worker)
                text += _event(at_ms + rng.choice([50, 1500]), "continue", worker)
            case "slow":
                text += _event(at_ms, "slow", worker) + f"factor = {rng.choice([0.3, 6.0])}\n"
            case what:
                text += _event(at_ms, what, worker)
    return text


def _event(at_ms: float, what: str, worker: int | None = None, server: int | None = None) -> str:
    text = f'[[events]]\nat = "{max(1.0, at_ms):.3f}ms"\nwhat = "{what}"\n'
    text += "" if worker is None else f'worker = "worker-{worker}"\n'
    return text + ("" if server is None else f"server = {server}\n")


def storm(sync: str, seed: int, kind: str = "local", *, found: bool = False) -> str:
    """A job in which servers fail too: at most as many at once as a slice has replicas. There is
    enough time between two failures to restore the copies. The lead's server and the first worker
    do not fail. `found`: the seed has found a fault in a run that was longer than most."""
    rng = random.Random(f"servers {sync} {seed}")
    replicas = rng.choice([1, 1, 2])
    servers = replicas + rng.randint(2, 3)
    timer, longest_s = rng.choice(["off", "300ms"]), rng.choice([2, 4])
    text = f"""
        [job]
        sync = "{sync}"
        kind = "{kind}"
        interval = "40ms"
        timer = "{timer}"
        max_time = "MAX_TIME"
        points = 4000
        batch = 8
        servers = {servers}
        replicas = {replicas}
        model = "60kB"
        slice = "{rng.choice(["8kB", "15kB"])}"
        heartbeat = "50ms"
        limit = "60s"
        [link]
        delay = "1ms"
        bandwidth = "{rng.choice(["20Mbit", "200Mbit"])}"
        loss = {rng.choice([0.0, 0.01])}
        timeout = "30ms"
        [[workers]]
        count = 3
        step = "{rng.choice([15, 25])}ms"
        step_noise = 0.4
    """
    at_ms = rng.uniform(20, 300)
    for _ in range(rng.randint(1, 3)):
        restored_ms = at_ms
        for server in rng.sample(range(1, servers), rng.randint(1, replicas)):
            events, until_ms = _server_fault(rng, at_ms + rng.uniform(0, 40), server)
            text += events
            restored_ms = max(restored_ms, until_ms)
        if rng.random() < 0.5:
            text += _worker_fault(rng, at_ms + rng.uniform(-10, 40))
        at_ms = restored_ms + rng.uniform(400, 700)
    last_s = max(at_s for at_s in _times_s(text) if at_s < longest_s)
    calm_s = _LONG_CALM_S if found or _SEARCHES else _CALM_S
    return text.replace("MAX_TIME", f"{min(longest_s, last_s + calm_s):.3f}s")


def stir(sync: str, seed: int, kind: str = "local") -> str:
    """A job that servers join and leave while it trains, several at a time, and now and then one
    dies. Without replicas only a server dies that has just joined, so that it is usually still
    copying. The lead's server stays."""
    rng = random.Random(f"moves {sync} {seed}")
    replicas = rng.choice([0, 0, 1])
    servers = replicas + rng.randint(1, 3)
    text = f"""
        [job]
        sync = "{sync}"
        kind = "{kind}"
        interval = "40ms"
        timer = "{rng.choice(["off", "300ms"])}"
        max_time = "2.5s"
        points = 4000
        batch = 8
        servers = {servers}
        replicas = {replicas}
        model = "60kB"
        slice = "{rng.choice(["6kB", "15kB"])}"
        heartbeat = "50ms"
        limit = "60s"
        [link]
        delay = "{rng.choice([1, 4])}ms"
        bandwidth = "{rng.choice(["5Mbit", "20Mbit", "200Mbit"])}"
        loss = {rng.choice([0.0, 0.01])}
        timeout = "30ms"
        [[workers]]
        count = 3
        step = "{rng.choice([8, 25])}ms"
        step_noise = 0.4
    """
    known, here = servers, set(range(servers))
    at_ms, calm_ms = rng.uniform(100, 200), 0.0
    while at_ms < 1500:
        match rng.choice(["join", "drain", "drain", "back", "crash", "worker"]):
            case "join" if known < servers + 4:
                text += _event(at_ms, "join", server=known)
                here.add(known)
                if not replicas and rng.random() < 0.3:
                    text += _event(at_ms + rng.uniform(2, 40), "crash", server=known)
                    here.remove(known)
                known += 1
            case "drain" if len(here) > 1:
                server = rng.choice(sorted(here - {0}))
                text += _event(at_ms, "drain", server=server)
                text += 'operator = "anna@host"\n' if rng.random() < 0.3 else ""
                here.remove(server)
            case "back" if len(here) < known:
                server = rng.choice([each for each in range(1, known) if each not in here])
                text += _event(at_ms, "join", server=server)
                here.add(server)
            case "crash" if replicas and len(here) > 2 and at_ms > calm_ms:
                server = rng.choice(sorted(here - {0}))
                text += _event(at_ms, "crash", server=server)
                here.remove(server)
                calm_ms = at_ms + 700
            case "worker":
                text += _worker_fault(rng, at_ms)
        at_ms += rng.choice([1, rng.uniform(0, 40), rng.uniform(0, 300)])
    return text


def _times_s(text: str) -> list[float]:
    """The times of the events of a scenario."""
    return [float(at_ms) / 1e3 for at_ms in re.findall(r'at = "([\d.]+)ms"', text)]


def _server_fault(rng: random.Random, at_ms: float, server: int) -> tuple[str, float]:
    """The events of a random fault, and the time of the last event in milliseconds."""
    match rng.choice(["crash", "respawn", "stop", "blink", "cut off", "cut from a worker"]):
        case "crash":
            back_ms = at_ms + rng.uniform(50, 400)
        case "respawn":
            back_ms = at_ms + 3
        case "stop":  # the lead declares the stopped server lost, and refuses it when it goes on
            goes_on_ms = at_ms + rng.uniform(750, 1500)
            events = _event(at_ms, "stop", server=server)
            events += _event(goes_on_ms, "continue", server=server)
            return events + _event(goes_on_ms + 100, "join", server=server), goes_on_ms + 100
        case "blink":
            events = _event(at_ms, "stop", server=server)
            return events + _event(at_ms + 40, "continue", server=server), at_ms + 40
        case "cut off":  # the link to the lead is cut, so the lead removes the server
            events = _event(at_ms, "cut", server=server) + "peer = 0\n"
            return events + _event(at_ms + 200, "join", server=server), at_ms + 200
        case _:
            worker = rng.randint(0, 2)
            return _event(at_ms, "cut", worker, server), at_ms
    return _event(at_ms, "crash", server=server) + _event(back_ms, "join", server=server), back_ms


def _worker_fault(rng: random.Random, at_ms: float) -> str:
    worker = rng.randint(1, 2)
    match rng.choice(["crash", "stop", "leave"]):
        case "stop":
            return _event(at_ms, "stop", worker) + _event(at_ms + 900, "continue", worker)
        case what:
            return _event(at_ms, what, worker) + _event(at_ms + 400, "join", worker)


def keep_books(
    sync: str,
    seed: int,
    *,
    check: bool = True,
    servers: bool = False,
    limit: str = "1h",
    found: bool = False,
) -> Run:
    """Run one scenario and check its books at the end. `check`: also check machines and servers
    after every event. `servers`: servers fail too. `limit`: the longest time that a run without
    failing servers may take. `found`: see `storm`."""
    text = storm(sync, seed, found=found) if servers else scenario(sync, seed, limit)
    run, books = run_booked(text, seed, check=check)
    assert books.counted
    assert (
        books.acknowledged or servers
    )  # with failing servers, an early cut of a link may keep a short run from folding any round
    return run


def run_booked(text: str, seed: int = 0, *, check: bool = True) -> tuple[Run, Books]:
    with bookkeeping(seed) as books:
        run = Run(text, seed=seed, check=check)
    settle(run, books)
    return run, books


def settle(run: Run, books: Books) -> None:
    lead = run.simulation.servers[0].machines["lead"]
    assert isinstance(lead, LeadMachine)
    rounds = lead.parts.rounds.round if traits_of(run.simulation.job.sync).rounds else None
    books.settle(rounds, lead.parts.routing.routes)
    lines = run.journal.lines
    befell_s = max(line["at_s"] for line in lines if line["what"] in _SERVERS_CHANGED)
    if lines[-1]["at_s"] > befell_s + _RESTORED_S:
        assert not lead.parts.routing.learning, (
            f"copies are not restored: {lead.parts.routing.routes}"
        )

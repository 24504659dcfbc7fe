"""A run with numbers: contribution n of worker w adds 1 to element (w, n mod K) of a block that every
slice holds. *At the end no element is above what was sent, and everything that was acknowledged or
counted is in every slice exactly once; and what a reader was sent is one version, not a mixture.*

A seed gives a scenario of crashes, stops, joins and leaves, and now and then a contribution comes a
second time, as from a worker that has not seen its acknowledgement.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from staged_run import Run

from polyrhythm.core.arrivals import Complete
from polyrhythm.core.lead import LeadMachine
from polyrhythm.core.sync.choose import has_rounds
from polyrhythm.core.worker import WorkerMachine
from polyrhythm.sim.link import Way
from polyrhythm.sim.memory import Given, Memory
from polyrhythm.wire.messages import Contribution, Message

_K = 211
_REPEATED = 0.05
Block = Counter[tuple[int, int]]
"""What was added to each element."""


@dataclass
class Books:
    """What was sent, acknowledged and counted, as those who did it saw it."""

    sent: dict[Given, tuple[int, int]] = field(default_factory=dict)
    """Per contribution, its element."""
    acknowledged: set[Given] = field(default_factory=set)
    counted: dict[Given, int] = field(default_factory=dict)
    """Per contribution, its round."""
    memories: list["Blocks"] = field(default_factory=list)
    _numbers: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def send(self, given: Given) -> None:
        worker = given[0]
        self.sent[given] = (worker, self._numbers[worker] % _K)
        self._numbers[worker] += 1

    def settle(self, rounds: int | None) -> None:
        """The run is over. `rounds`: as many were folded; None: contributions are folded one by
        one."""
        most = Counter(self.sent.values())
        due = [
            given for given, round_ in self.counted.items() if rounds is None or round_ <= rounds
        ]
        least = Counter(self.sent[given] for given in {*self.acknowledged, *due})
        for memory in self.memories:
            for slice_, block in memory.current().items():
                above = block - most
                missing = least - block
                assert not above, f"slice {slice_} has more than was sent: {dict(above)}"
                assert not missing, f"slice {slice_} lacks what was counted: {dict(missing)}"


class Blocks(Memory):
    """A server's slices with a block in every slot, and no opinion of what may be in it."""

    books: Books

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "keep": True})
        self._blocks: dict[tuple[int, int], Block] = {}
        self._at = dict.fromkeys(self.slices, 0)
        self.books.memories.append(self)

    def _fold_slice(self, slice_: int, slot: int) -> None:
        block = Counter(self._blocks.get((slice_, self._at[slice_]), ()))
        block.update(self.books.sent[given] for given in self._added[slice_])
        self._blocks[slice_, slot] = block
        self._at[slice_] = slot
        self.contents[slice_].update(self._added[slice_])
        self._added[slice_].clear()
        self.weights[slice_] += self._aggregate[slice_]
        self._aggregate[slice_] = 0.0

    def current(self) -> dict[int, Block]:
        places = self._at.items()
        return {slice_: self._blocks.get((slice_, slot), Counter()) for slice_, slot in places}

    def stamps(self, slots: Sequence[int]) -> list[Any]:
        """What lies there, number by number."""
        held = zip(self.slices, slots, strict=True)
        return [dict(self._blocks.get(place, ())) for place in held]


@contextmanager
def bookkeeping(seed: int) -> Iterator[Books]:
    """While this lasts, runs are written down in these books."""
    books, rng = Books(), random.Random(seed)
    contribute, acknowledge = WorkerMachine._contribute, WorkerMachine._acknowledge
    count, send = LeadMachine._count, Way.send

    def contribute_booked(machine: WorkerMachine, event: Any, now_ns: int) -> None:
        books.send((machine.worker, machine.incarnation, machine._sequence + 1))
        contribute(machine, event, now_ns)

    def acknowledge_booked(machine: WorkerMachine, server: int, sequence: int, now_ns: int) -> None:
        who, before = (machine.worker, machine.incarnation), set(machine._unacknowledged)
        acknowledge(machine, server, sequence, now_ns)
        books.acknowledged |= {(*who, mine) for mine in before - set(machine._unacknowledged)}

    def count_booked(lead: LeadMachine, complete: Complete | None, now_ns: int) -> None:
        if complete is not None:
            trailer = complete.trailer
            books.counted[trailer.worker, trailer.incarnation, trailer.sequence] = complete.round
        count(lead, complete, now_ns)

    def send_again(way: Way, message: Message, nbytes: int = 0) -> int:
        left_ns = send(way, message, nbytes)
        if isinstance(message, Contribution) and rng.random() < _REPEATED:
            left_ns = send(way, message, nbytes)
        return left_ns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerMachine, "_contribute", contribute_booked)
        patch.setattr(WorkerMachine, "_acknowledge", acknowledge_booked)
        patch.setattr(LeadMachine, "_count", count_booked)
        patch.setattr(Way, "send", send_again)
        patch.setattr("polyrhythm.sim.server.Memory", type("Booked", (Blocks,), {"books": books}))
        yield books


def scenario(sync: str, seed: int) -> str:
    """A job in which much goes wrong; the first worker is spared, so that it ends."""
    rng = random.Random(f"{sync} {seed}")
    workers = rng.randint(3, 5)
    sync, _, patience = sync.partition(" abandon ")
    text = f"""
        [job]
        sync = "{sync}"
        kind = "{"gradient" if patience else "local"}"
        abandon = "{patience or "off"}"
        interval = "{rng.choice(["auto", "20ms", "60ms"])}"
        coordination = "{rng.choice(["semi", "central"])}"
        timer = "{rng.choice(["off", "60ms", "auto"])}"
        epochs = 2
        points = {rng.randint(500, 900)}
        batch = {rng.choice([5, 8, 16])}
        servers = {rng.randint(1, 3)}
        model = "200kB"
        slice = "{rng.choice(["20kB", "60kB"])}"
        heartbeat = "50ms"
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
        link = {{ delay = "2ms", bandwidth = "{rng.choice(["5Mbit", "200Mbit"])}" }}
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


def _event(at_ms: float, what: str, worker: int) -> str:
    return f'[[events]]\nat = "{at_ms:.3f}ms"\nwhat = "{what}"\nworker = "worker-{worker}"\n'


def keep_books(sync: str, seed: int, *, check: bool = True) -> Run:
    """One run, whose books are settled at its end. `check`: machines and servers are looked at all
    the while, too."""
    with bookkeeping(seed) as books:
        run = Run(scenario(sync, seed), seed=seed, check=check)
    lead = run.simulation.servers[0].machines["lead"]
    assert isinstance(lead, LeadMachine)
    books.settle(lead._rounds.round if has_rounds(sync) else None)
    assert books.acknowledged and books.counted
    return run

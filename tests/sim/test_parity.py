"""One story, two interpreters: over the runtime's nodes and links, and in the simulator, the lead
decides the same.

In the runtime a conductor lets workers take their steps one after the other, and goes on when the lead
has counted each; nothing is timed but the barrier's timer. In the simulator the same order follows
from how long steps take.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from staged_run import Run

from polyrhythm.core import effects as fx
from polyrhythm.core.lead import LeadMachine
from polyrhythm.engines.inline import Hub
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.observe.words import link_ended
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server import ServerNode
from polyrhythm.runtime.worker import WorkerNode
from polyrhythm.wire import messages as m

POINTS, BATCH, ROUNDS, TIMER_S = 600, 10, 6, 2.0
PATIENCE_S = 60.0
SIMULATED = f"""
[job]
rounds = {ROUNDS}
points = {POINTS}
batch = {BATCH}
servers = 2
workers = 2
timer = "{TIMER_S}s"
heartbeat = "20s"
model = "4kB"
[link]
delay = "100us"
[[workers]]
step = "10ms"
[[workers]]
step = "20ms"
[[workers]]
step = "30ms"
join = "5ms"
[[events]]
at = "57ms"        # round 3: the first has contributed, the third has not
what = "crash"
worker = "worker-1"
[[events]]
at = "95ms"        # round 4: only the first contributes
what = "stop"
worker = "worker-2"
[[events]]
at = "2200ms"      # round 5: the first has contributed again
what = "continue"
worker = "worker-2"
"""


class Decisions:
    """What the lead decides, without times."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.heard: Counter[type] = Counter()
        self.counted = 0
        self._changed = threading.Condition()
        self._folded = -1

    def took(self, lead: LeadMachine, event: Any, effects: Any) -> None:
        self.heard[type(event)] += 1
        released: dict[str, m.Release] = {}
        for effect in effects:
            if isinstance(effect, fx.Note):
                self._note(effect)
            elif isinstance(effect, fx.Send) and isinstance(effect.message, m.Release):
                released[effect.to] = effect.message
            elif isinstance(effect, fx.Send) and isinstance(effect.message, m.Leased):
                lease = effect.message
                chunks = [chunk.chunk for chunk in lease.chunks]
                self.made.append(("leased", effect.to, lease.number, chunks))
            elif isinstance(effect, fx.Send) and isinstance(effect.message, m.Fold):
                self._fold(effect.message, lead._rounds.reason.code)
        if released:
            ways = {(message.round, message.stop) for message in released.values()}
            self.made.append(("released", *sorted(ways), *sorted(released)))
        with self._changed:
            self._changed.notify_all()

    def _note(self, note: fx.Note) -> None:
        match note.what:
            case "joined" | "rejoined" | "refused":
                self.made.append((note.what, note.fields.get("name")))
            case "left":
                how = "died" if link_ended(note.fields["reason"]) else note.fields["reason"]
                self.made.append(("left", note.fields["name"], how))
            case "ended":
                self.made.append(("ended", note.fields["reason"], note.fields["rounds"]))

    def _fold(self, fold: m.Fold, reason: str) -> None:
        if fold.round > self._folded:  # the same for every server
            self._folded = fold.round
            members = [member.name for member in fold.members]
            self.made.append(("fold", fold.round, reason, members, fold.readers))

    def count(self) -> None:
        self.counted += 1

    def take(self) -> list[tuple[Any, ...]]:
        """What was decided in a run that is over; what comes now is another."""
        made, self.made, self._folded = self.made, [], -1
        self.heard.clear()
        return made

    def wait_for(self, done: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(done, PATIENCE_S), f"{what}: {self.made}"

    def has(self, *beginning: Any) -> bool:
        return any(made[: len(beginning)] == beginning for made in self.made)


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    found = Decisions()
    handle, count = LeadMachine.handle, LeadMachine._count

    def handle_watched(lead: LeadMachine, event: Any, now_ns: int) -> Any:
        effects = handle(lead, event, now_ns)
        found.took(lead, event, effects)
        return effects

    def count_watched(lead: LeadMachine, complete: Any, now_ns: int) -> None:
        if complete is not None:
            found.count()
        count(lead, complete, now_ns)

    monkeypatch.setattr(LeadMachine, "handle", handle_watched)
    monkeypatch.setattr(LeadMachine, "_count", count_watched)
    return found


class Crashed(Exception):
    """This worker is no more."""


class Conducted:
    """A worker's node and its user's thread, which goes on only when it is told to."""

    def __init__(self, name: str, hub: Hub, decisions: Decisions) -> None:
        self._decisions = decisions
        self._turns = threading.Semaphore(0)
        self._dead = False
        self._hub = hub
        self.node = WorkerNode(name, "", hub, NodeOptions(check=True))
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            self._main(Worker(self.node, self.node.join(self._hub.address(0))))
            self._await_turn()
            self.node.leave("")
        except Crashed:
            pass
        self.node.close()

    def _main(self, worker: Worker) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(100, 10)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self._await_turn()
        for (points,) in worker.batches((torch.ones(POINTS, 100),), batch_size=BATCH):
            self._await_turn()
            model(points).sum().backward()
            optimizer.step()

    def _await_turn(self) -> None:
        assert self._turns.acquire(timeout=PATIENCE_S)
        if self._dead:
            raise Crashed

    def go_on(self, done: Callable[[], bool], what: str) -> None:
        """Let it go on, and wait for what comes of it."""
        self._turns.release()
        self._decisions.wait_for(done, what)

    def enrol(self, peer: str) -> None:
        self.go_on(lambda: self._decisions.has("leased", peer), f"{peer} has no lease")

    def step(self) -> None:
        """Its contribution is counted."""
        counted = self._decisions.counted
        self.go_on(lambda: self._decisions.counted > counted, "it is not counted")

    def leave(self, name: str) -> None:
        self.go_on(lambda: self._decisions.has("left", name), f"{name} does not leave")

    def crash(self) -> None:
        """Its links end, and it says nothing."""
        self._dead = True
        self.node.close()
        self._turns.release()


def conduct(decisions: Decisions) -> None:
    job = m.JobSpec(
        job="",
        workers=2,
        servers=2,
        rounds=ROUNDS,
        timer=f"{TIMER_S}s",
        heartbeat_s=20.0,
    )
    hub, journal = Hub(), MemoryJournal()
    options = NodeOptions(check=True)
    for server in range(job.servers):
        lead = server == 0
        address = hub.address(server)
        hub.servers.append(
            ServerNode(
                server,
                job,
                address,
                lead=lead,
                options=options,
                journal=journal if lead else None,
                shared=False,
            )
        )
    hub.servers[1].reach_lead(hub, hub.address(0))

    def join(name: str) -> Conducted:
        heard = decisions.heard[m.Attach]
        worker = Conducted(name, hub, decisions)
        decisions.wait_for(lambda: decisions.heard[m.Attach] > heard, f"{name} is not in")
        return worker

    def folded(round_: int, *, stop: bool = False) -> None:
        decisions.wait_for(lambda: decisions.has("released", (round_, stop)), f"round {round_}")

    try:
        first = join("worker-0")
        second = join("worker-1")
        folded(0)
        first.enrol("w0")
        second.enrol("w1")
        third = join("worker-2")
        first.step()
        second.step()
        folded(1)
        third.enrol("w2")
        decisions.wait_for(lambda: decisions.heard[m.Abstained] > 0, "it has nothing to do yet")
        first.step()
        second.step()
        folded(2)
        first.step()
        second.crash()
        decisions.wait_for(lambda: decisions.has("left", "worker-1"), "it has not died")
        third.step()
        folded(3)
        first.step()
        folded(4)  # by the timer
        first.step()
        third.step()
        folded(5)
        first.step()
        third.step()
        folded(ROUNDS, stop=True)
        first.leave("worker-0")
        third.leave("worker-2")
        assert hub.servers[0].ended.wait(PATIENCE_S)
        for worker in (first, second, third):
            worker.thread.join(PATIENCE_S)
    finally:
        for node in hub.servers:
            node.close()


def test_the_lead_decides_the_same_in_the_runtime_and_in_the_simulator(
    decisions: Decisions,
) -> None:
    Run(SIMULATED)
    simulated = decisions.take()
    conduct(decisions)
    assert decisions.take() == simulated
    codes = [made[2] for made in simulated if made[0] == "fold"]
    assert codes == ["opened", *["all-arrived"] * 3, "timer", *["all-arrived"] * 2]
    assert ("left", "worker-1", "died") in simulated
    assert ("joined", "worker-2") in simulated

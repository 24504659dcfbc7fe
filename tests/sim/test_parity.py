"""One story, two interpreters: over the runtime's nodes and links, and in the simulator, the lead
decides the same.

In the simulator the story follows from how long steps take. What workers did there, and how much had
been decided by then, is the score: in the runtime a conductor lets workers do the same one after the
other, each when as much has been decided. Nothing is timed there but the barrier's timer.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.engines.inline import Hub
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.observe.words import link_ended
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire import messages as m
from tests.sim.staged_run import Run

POINTS, BATCH, TIMER_S = 600, 10, 8.0
OUTPUTS = 8000
"""The model is too large for a worker to go on before it has its answer, as it may under asp: its next
step would begin while the lead counts this one, and which lease it goes by would be a race."""
PATIENCE_S = 30.0
JOB = f"""
[job]
sync = "{{sync}}"
rounds = {{rounds}}
points = {POINTS}
batch = {BATCH}
servers = 2
workers = 2
timer = "{TIMER_S}s"
heartbeat = "20s"
model = "3MB"
[link]
delay = "100us"
bandwidth = "100GB"
[[workers]]
step = "10ms"
[[workers]]
step = "{{second}}"
[[workers]]
step = "{{third}}"
join = "5ms"
"""
WITH_A_TIMER = """
[[events]]
at = "57ms"        # round 3: the first has contributed, the third has not
what = "crash"
worker = "worker-1"
[[events]]
at = "95ms"        # round 4: only the first contributes
what = "stop"
worker = "worker-2"
[[events]]
at = "8200ms"      # round 5: the first has contributed again
what = "continue"
worker = "worker-2"
"""


WITHOUT = """
[[events]]
at = "57ms"        # the third has begun, and the second is in a step
what = "crash"
worker = "worker-1"
"""


def bsp() -> str:
    return JOB.format(sync="bsp", rounds=6, second="20ms", third="30ms") + WITH_A_TIMER


def without_rounds(sync: str) -> str:
    """Steps that do not end together, so that there is one order of events."""
    return JOB.format(sync=sync, rounds=8, second="23ms", third="37ms") + WITHOUT


class Decisions:
    """What the lead decides, without times, and what workers did for it: the score."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.score: list[tuple[str, int, int]] = []
        """What, who, and how many decisions were made before."""
        self.done: Counter[tuple[str, int]] = Counter()
        self._changed = threading.Condition()
        self._folded = -1

    def takes(self, lead: LeadMachine, event: Any) -> None:
        """Before the lead has handled it."""
        match event:
            case ev.WorkerHelloReceived(hello=hello):
                number = int(hello.name.removeprefix("worker-"))
                self.score.append(("join", number, len(self.made)))
            case m.Attach(worker=worker):  # then it has joined, and the next may come
                self.done["join", worker] += 1
            case m.Enrol(worker=worker):
                self._did("enrol", worker)
            case m.Abstained(worker=worker):
                self._did("abstain", worker)
            case m.Leave(worker=worker):
                self._did("leave", worker)
            case ev.LinkClosed(peer=peer):
                worker = fx.worker_number(peer)
                if worker is not None and lead.view.at(worker) is not None:
                    self._did("crash", worker)

    def _did(self, what: str, worker: int) -> None:
        self.score.append((what, worker, len(self.made)))
        self.done[what, worker] += 1

    def took(self, lead: LeadMachine, event: Any, effects: Any) -> None:
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

    def count(self, worker: int) -> None:
        self._did("step", worker)

    def take(self) -> tuple[list[tuple[Any, ...]], list[tuple[str, int, int]]]:
        """What was decided and done in a run that is over; what comes now is another."""
        made, score = self.made, self.score
        self.made, self.score, self._folded = [], [], -1
        self.done.clear()
        return made, score

    def wait_for(self, done: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(done, PATIENCE_S), f"{what}: {self.made}"


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    found = Decisions()
    handle, count = LeadMachine.handle, LeadMachine._count

    def handle_watched(lead: LeadMachine, event: Any, now_ns: int) -> Any:
        found.takes(lead, event)
        effects = handle(lead, event, now_ns)
        found.took(lead, event, effects)
        return effects

    def count_watched(lead: LeadMachine, complete: Any, *more: Any) -> None:
        found.count(complete.trailer.worker)
        count(lead, complete, *more)

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
        except Exception:
            if not self._dead:
                raise
            return  # whatever it was doing when its links ended
        self.node.close()

    def _main(self, worker: Worker) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(100, OUTPUTS)
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

    def go_on(self, turns: int = 1) -> None:
        self._turns.release(turns)

    def crash(self) -> None:
        """Its links end, and it says nothing."""
        self._dead = True
        self.node.close()
        self._turns.release()


class Conductor:
    """Lets workers do what the score says, each when as much has been decided as there."""

    def __init__(self, hub: Hub, decisions: Decisions) -> None:
        self._hub, self._decisions = hub, decisions
        self.workers: list[Conducted] = []

    def play(self, score: list[tuple[str, int, int]]) -> None:
        wanted: Counter[tuple[str, int]] = Counter()
        for what, worker, decided in score:
            wanted[what, worker] += 1
            self._await_decisions(decided, f"{what} of worker-{worker} is not due")
            self._let(what, worker)
            self._await_deed(what, worker, wanted[what, worker])

    def _await_decisions(self, count: int, what: str) -> None:
        self._decisions.wait_for(lambda: len(self._decisions.made) >= count, what)

    def _await_deed(self, what: str, worker: int, times: int) -> None:
        self._decisions.wait_for(
            lambda: self._decisions.done[what, worker] >= times,
            f"{what} of worker-{worker} does not come",
        )

    def _let(self, what: str, worker: int) -> None:
        match what:
            case "join":
                self.workers.append(Conducted(f"worker-{worker}", self._hub, self._decisions))
            case "enrol" | "step":
                self.workers[worker].go_on()
            case "leave":  # it may be in a step that came too late
                self.workers[worker].go_on(turns=2)
            case "crash":
                self.workers[worker].crash()
            case "abstain":
                pass  # nobody tells it to


def conduct(sync: str, rounds: int, score: list[tuple[str, int, int]], found: Decisions) -> None:
    job = m.JobSpec(
        job="",
        workers=2,
        servers=2,
        sync=sync,
        rounds=rounds,
        timer=f"{TIMER_S}s",
        heartbeat_s=20.0,
    )
    hub, journal = Hub(), MemoryJournal()
    options = NodeOptions(check=True)
    for server in range(job.servers):
        lead = server == 0
        hub.servers.append(
            ServerNode(
                server,
                job,
                hub.address(server),
                lead=lead,
                options=options,
                journal=journal if lead else None,
                shared=False,
            )
        )
    hub.servers[1].reach_lead(hub, hub.address(0))
    conductor = Conductor(hub, found)
    try:
        conductor.play(score)
        assert hub.servers[0].ended.wait(PATIENCE_S)
        for worker in conductor.workers:
            worker.thread.join(PATIENCE_S)
    finally:
        for node in hub.servers:
            node.close()


@pytest.mark.parametrize(
    ("sync", "scenario", "rounds"),
    [
        ("bsp", bsp(), 6),
        ("asp", without_rounds("asp"), 8),
        ("ssp:1", without_rounds("ssp:1"), 8),
        ("ssp-restart:2", without_rounds("ssp-restart:2"), 8),
    ],
    ids=["bsp", "asp", "ssp", "ssp-restart"],
)
def test_the_lead_decides_the_same_in_the_runtime_and_in_the_simulator(
    decisions: Decisions, sync: str, scenario: str, rounds: int
) -> None:
    Run(scenario)
    simulated, score = decisions.take()
    conduct(sync, rounds, score, decisions)
    conducted, _ = decisions.take()
    assert conducted == simulated
    assert ("left", "worker-1", "died") in simulated
    assert ("joined", "worker-2") in simulated
    assert simulated[-1] == ("ended", f"the job reached its goal: {rounds} rounds", rounds)
    codes = [made[2] for made in simulated if made[0] == "fold"]
    if sync == "bsp":
        assert codes == ["opened", *["all-arrived"] * 3, "timer", *["all-arrived"] * 2]
    else:
        assert codes == ["opened", "turn", "turn", "goal"]
        assert {worker for what, worker, _ in score if what == "step"} == {0, 1, 2}

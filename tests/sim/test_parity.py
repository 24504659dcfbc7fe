"""The lead makes the same decisions in the runtime and in the simulator, under every policy.

In the simulator the order of events follows from the durations of steps. The score lists what the
workers did there, each action with the number of decisions that the lead had made before it. In the
runtime a conductor lets the workers repeat these actions one after the other, each as soon as that
number of decisions has been made. Only the barrier's timer and fsp's interval depend on time in the
runtime.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.lead.rounds.counting import Counting
from polyrhythm.core.names import worker_number
from polyrhythm.core.sync.policy import split_sync
from polyrhythm.core.sync.registry import POLICIES, traits_of
from polyrhythm.engines.inline import Hub
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE
from tests.sim.staged_run import Run

POINTS, BATCH, TIMER_S = 600, 10, 8.0
OUTPUTS = 8000
"""The model is so large that workers do not read ahead under asp. Otherwise a step could begin
while the lead still counts the previous contribution, and timing would decide which lease the step
uses."""
PATIENCE_S = 30.0
JOB = f"""
[job]
sync = "{{sync}}"
kind = "{{kind}}"
local_steps = {{local_steps}}
outer = "{{outer}}"
weights = "{{weights}}"
coordination = "{{coordination}}"
interval = "{{interval}}"
rounds = {{rounds}}
min_batch = 1
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


ONE_CRASH = """
[[events]]
at = "{crash}"     # the third worker has begun, and the second is in a step
what = "crash"
worker = "worker-1"
"""


class Case(msgspec.Struct, frozen=True):
    sync: str
    kind: str = "gradient"
    local_steps: int = 1
    coordination: str = "central"
    interval: str = "20ms"
    """The interval of fsp: a fixed one, or `auto`."""
    rounds: int = 6
    second: str = "23ms"
    """How long a step of worker-1 takes."""
    third: str = "37ms"
    crash: str = "57ms"
    events: str = ONE_CRASH
    outer: str = "off"
    weights: str = "points"

    def __str__(self) -> str:
        fsp = (self.coordination, self.interval) if self.sync == "fsp" else ()
        outer = (self.outer,) if self.outer != "off" else ()
        return "-".join((self.sync, self.kind, *fsp, *outer))

    @property
    def by_time(self) -> bool:
        """Whether the number of points of a contribution depends on measured times."""
        return self.sync in ("fsp", "psp", "bspv")

    def scenario(self) -> str:
        """No two steps end at the same time, so that there is only one order of events."""
        return (JOB + self.events).format(**msgspec.structs.asdict(self))

    def job(self) -> m.JobSpec:
        return m.JobSpec(
            job="",
            workers=2,
            servers=2,
            sync=self.sync,
            kind=self.kind,
            local_steps=self.local_steps,
            outer=self.outer,
            weights=self.weights,
            coordination=self.coordination,
            interval=self.interval,
            migrate="auto",
            rounds=self.rounds,
            min_batch=1,
            timer=f"{TIMER_S}s",
            heartbeat_s=20.0,
        )


CASES = [
    Case("bsp", second="20ms", third="30ms", events=WITH_A_TIMER),
    Case("bsp", "local", local_steps=2),
    Case("bsp", "local", local_steps=2, outer="nesterov", weights="workers"),
    Case("bspb", crash="900ms"),
    Case("bspv", crash="300ms"),
    Case("bspg:24"),
    Case("psp", "local"),
    *(
        Case("fsp", kind, coordination=coordination, interval=interval)
        for kind in ("gradient", "local")
        for coordination in ("central", "semi")
        for interval in ("20ms", "auto")
    ),
    *(
        Case(sync, kind, local_steps=steps, rounds=8)
        for sync in ("asp", "ssp:1", "ssp-restart:2")
        for kind, steps in (("gradient", 1), ("local", 2))
    ),
]


class Decisions:
    """The decisions of the lead, without times, and the score: the actions of the workers."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.score: list[tuple[str, int, int]] = []
        """Per action: its name, the worker, and the number of decisions made before it."""
        self.done: Counter[tuple[str, int]] = Counter()
        self.contributed: list[m.Trailer] = []
        self._terms: dict[int, m.Release] = {}
        """The last release that each worker got."""
        self.goes_on: Callable[[int], bool] = lambda worker: True
        """Whether a worker has begun its next batch after a contribution."""
        self._changed = threading.Condition()
        self._folded = -1

    def takes(self, lead: LeadMachine, event: Any) -> None:
        """Note the action of a worker before the lead handles its event."""
        match event:
            case ev.WorkerHelloReceived(hello=hello):
                number = int(hello.name.removeprefix("worker-"))
                self.score.append(("join", number, len(self.made)))
            case m.Attach(worker=worker):  # only when a worker has attached may the next one join
                self.done["join", worker] += 1
            case m.Enrol(worker=worker):
                self._did("enrol", worker)
            case m.Abstained(worker=worker):
                self._did("abstain", worker)
            case m.Leave(worker=worker):
                self._did("leave", worker)
            case ev.LinkClosed(peer=peer):
                worker = worker_number(peer)
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
                self._terms[worker_number(effect.to)] = effect.message
            elif isinstance(effect, fx.Send) and isinstance(effect.message, m.Leased):
                lease = effect.message
                chunks = [chunk.chunk for chunk in lease.chunks]
                self.made.append(("leased", effect.to, lease.number, chunks))
            elif isinstance(effect, fx.Send) and isinstance(effect.message, m.Fold):
                self._fold(effect.message, lead.parts.rounds.reason.code)
        if released:
            ways = {(message.round, message.stop) for message in released.values()}
            self.made.append(("released", *sorted(ways), *sorted(released)))
        self.changed()

    def _note(self, note: fx.Note) -> None:
        match note.what:
            case "joined" | "rejoined" | "refused":
                self.made.append((note.what, note.fields.get("name")))
            case "left":
                self.made.append(("left", note.fields["name"], note.fields["reason"]))
            case "ended":
                why = (note.fields["reason"], note.fields["fields"])
                self.made.append(("ended", *why, note.fields["rounds"]))

    def _fold(self, fold: m.Fold, reason: str) -> None:
        # the lead sends the order to every server, and it is recorded once
        if fold.round > self._folded:
            self._folded = fold.round
            members = [member.name for member in fold.members]
            self.made.append(("fold", fold.round, reason, members, fold.readers))

    def count(self, trailer: m.Trailer) -> None:
        self.contributed.append(trailer)
        terms = self._terms[trailer.worker]
        assert trailer.report.steps >= terms.steps, "psp"
        assert terms.points <= 0 or trailer.report.weight <= terms.points, "bspv"
        what = f"worker-{trailer.worker} does not train on"
        self.wait_for(lambda: self.goes_on(trailer.worker), what)
        self._did("step", trailer.worker)

    def changed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def begin_run(self) -> None:
        """Forget the run before this one."""
        self.made, self.score, self.contributed, self._folded = [], [], [], -1
        self.done.clear()
        self._terms.clear()

    def wait_for(self, done: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(done, PATIENCE_S), f"{what}: {self.made}"


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    found = Decisions()
    handle, count = LeadMachine.handle, Counting.count

    def handle_watched(lead: LeadMachine, event: Any, now_ns: int) -> Any:
        found.takes(lead, event)
        effects = handle(lead, event, now_ns)
        found.took(lead, event, effects)
        return effects

    def count_watched(counting: Counting, complete: Any, *more: Any) -> None:
        found.count(complete.trailer)
        count(counting, complete, *more)

    monkeypatch.setattr(LeadMachine, "handle", handle_watched)
    monkeypatch.setattr(Counting, "count", count_watched)
    return found


class Crashed(Exception):
    """Raised in the thread of a worker that has crashed."""


class Conducted:
    """A worker's node, and the thread of its user's code, which waits for its turn."""

    def __init__(self, name: str, hub: Hub, decisions: Decisions) -> None:
        self._decisions = decisions
        self._turns = threading.Semaphore(0)
        self._given = self._wanted = 0
        self._dead = False
        self._hub = hub
        self.node = WorkerNode(name, "", hub, NodeOptions(check=True))
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            self._main(Worker(self.node, self.node.join(self._hub.address(0))))
            self._await_turn()
            self.node.leave(DONE)
        except Exception:
            if not self._dead:
                raise
            # the worker has crashed on purpose, and the end of its links may raise any exception
            return
        self.node.close()

    def _main(self, worker: Worker) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(100, OUTPUTS)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self._await_turn()
        for (points,) in worker.batches((torch.ones(POINTS, 100),), batch_size=BATCH):
            if not optimizer.pending:  # a turn is one contribution, of one batch or several
                self._await_turn()
            model(points).sum().backward()
            optimizer.step()

    def _await_turn(self) -> None:
        self._wanted += 1
        self._decisions.changed()
        assert self._turns.acquire(timeout=PATIENCE_S)
        if self._dead:
            raise Crashed

    @property
    def waits(self) -> bool:
        """Whether the worker has a batch and waits for its turn, or has crashed."""
        return self._wanted > self._given or self._dead

    def go_on(self, turns: int = 1) -> None:
        self._given += turns
        self._turns.release(turns)

    def crash(self) -> None:
        """End the worker's links without a message."""
        self._dead = True
        self.node.close()
        self._turns.release()


class Conductor:
    """Lets workers repeat the actions of a score. Each action is repeated when the lead has made as
    many decisions as the score says."""

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
            # if the step of a worker comes too late for its round, the worker needs one more turn
            case "leave":
                self.workers[worker].go_on(turns=2)
            case "crash":
                self.workers[worker].crash()
            case "abstain":
                pass  # a worker abstains without being told to


def conduct(job: m.JobSpec, score: list[tuple[str, int, int]], found: Decisions) -> None:
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
    if traits_of(job.sync).trains_through:
        # A worker that trains through the barrier begins its next batch with its current lease. In
        # the simulator the lead's answer always comes later; here the lead must wait for that
        # batch.
        found.goes_on = lambda worker: conductor.workers[worker].waits
    try:
        conductor.play(score)
        assert hub.servers[0].ended.wait(PATIENCE_S)
        for worker in conductor.workers:
            worker.thread.join(PATIENCE_S)
    finally:
        for node in hub.servers:
            node.close()


def test_every_policy_has_a_case() -> None:
    assert {split_sync(case.sync)[0] for case in CASES} == set(POLICIES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_lead_decides_the_same_in_the_runtime_and_in_the_simulator(
    decisions: Decisions, case: Case
) -> None:
    Run(case.scenario())
    simulated, score, contributed = decisions.made, decisions.score, decisions.contributed
    decisions.begin_run()
    conduct(case.job(), score, decisions)
    assert decisions.made == simulated
    assert [t.worker for t in decisions.contributed] == [t.worker for t in contributed]
    if not case.by_time:
        assert [(t.report.steps, t.report.weight) for t in decisions.contributed] == [
            (t.report.steps, t.report.weight) for t in contributed
        ]
    assert ("left", "worker-1", "link-ended") in simulated
    assert ("joined", "worker-2") in simulated
    goal = {"goal": "rounds", "rounds": case.rounds}
    assert simulated[-1] == ("ended", "goal", goal, case.rounds)
    codes = [made[2] for made in simulated if made[0] == "fold"]
    if case.events == WITH_A_TIMER:
        assert codes == ["opened", *["all-arrived"] * 3, "timer", *["all-arrived"] * 2]
    elif traits_of(case.sync).rounds:
        assert codes == ["opened", *["all-arrived"] * case.rounds]
    else:
        assert codes == ["opened", "turn", "turn", "goal"]
    assert {worker for what, worker, _ in score if what == "step"} == {0, 1, 2}

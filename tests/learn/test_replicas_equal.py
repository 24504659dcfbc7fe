"""*Equal stamps mean equal copies*: after every step of every slice, a replica has the same
parameters and the same optimizer state as its primary, bit for bit.

The tests use real server and worker nodes over memory links. While they train, workers join and
leave, one server is lost and comes back, and then another server is lost.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.core.server.slices import OnArrivalSlices, RoundsSlices
from polyrhythm.engines import inline
from polyrhythm.io.link import Link
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.runtime.server.primary import OnArrivalPrimary, RoundsPrimary
from polyrhythm.runtime.server.replica_memory import ReplicaMemory
from polyrhythm.runtime.slice_state import SliceState
from polyrhythm.wire.messages import Contribution, Copy, JobSpec, SliceStep, Stamp, Target
from tests.learn import twin_job as tj

Lines = list[dict[str, Any]]
ENDED = object()
REST_S = 0.02


class Gone:
    """A stand-in for a closed server: every link to it ends at once."""

    def welcome(self, link: Link) -> None:
        link.close()

    def close(self) -> None: ...


class Hub(inline.Hub):
    """The links of the job. The first worker uses this object to stop and start servers."""

    now: "Hub"

    def __init__(self) -> None:
        super().__init__()
        Hub.now = self

    @property
    def lines(self) -> Lines:
        return self.servers[0]._journal.lines  # type: ignore[union-attr]

    def lose(self, server: int) -> None:
        node: Any = self.servers[server]
        self.servers[server] = Gone()  # type: ignore[call-overload]
        node.close()

    def start(self, server: int, job: JobSpec) -> None:
        options = NodeOptions(check=True)
        node = ServerNode(
            server, job, self.address(server), lead=False, options=options, shared=False
        )
        self.servers[server] = node
        node.reach_lead(self, self.address(0))


class Witness:
    """Compares the slices of primary and replica after each step. A stamp identifies the step."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._lock = threading.Lock()
        self._made = threading.local()
        """For each slice, the stamp of the step that this thread is about to make."""
        self._seen: dict[Stamp, dict[str, bytes]] = {}
        self.tensors: set[str] = set()
        self.compared = 0
        self.different: list[str] = []
        self._watch_rules(patch)
        self._watch_primaries(patch)
        self._watch_copies(patch)

    def see(self, stamp: Stamp, state: SliceState) -> None:
        bits = {
            name: bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
            for name, tensor in state.items()
        }
        with self._lock:
            self.tensors |= bits.keys()
            other = self._seen.setdefault(stamp, bits)
            if other is not bits:
                self.compared += 1
                names = bits.keys() | other.keys()
                wrong = [name for name in names if bits.get(name) != other.get(name)]
                if wrong:
                    self.different.append(f"{stamp}: {', '.join(sorted(wrong))}")

    def _watch_rules(self, patch: pytest.MonkeyPatch) -> None:
        fold, step_of = RoundsSlices.fold, OnArrivalSlices.step_of

        def fold_noted(rules: RoundsSlices, *rest: Any) -> tuple[int, ...]:
            due = fold(rules, *rest)
            for slice_ in due:
                self._made.__dict__[str(slice_)] = rules.stamp(slice_)
            return due

        def step_of_noted(rules: OnArrivalSlices, message: Contribution, step: SliceStep) -> Any:
            sent_on = step_of(rules, message, step)
            self._made.__dict__[str(message.slice)] = rules.stamp(message.slice)
            return sent_on

        patch.setattr(RoundsSlices, "fold", fold_noted)
        patch.setattr(OnArrivalSlices, "step_of", step_of_noted)

    def _watch_primaries(self, patch: pytest.MonkeyPatch) -> None:
        fold, fold_slice = RoundsPrimary.fold, OnArrivalPrimary.fold_slice

        def fold_seen(primary: RoundsPrimary, target: Any, fill: int, steps: Any) -> None:
            fold(primary, target, fill, steps)
            for slice_ in steps:
                self.see(self._made.__dict__[str(slice_)], primary.export(slice_))

        def fold_slice_seen(primary: OnArrivalPrimary, part: Any, *rest: Any) -> None:
            fold_slice(primary, part, *rest)
            slice_ = part.held.slice.id
            self.see(self._made.__dict__[str(slice_)], primary.export(slice_))

        patch.setattr(RoundsPrimary, "fold", fold_seen)
        patch.setattr(OnArrivalPrimary, "fold_slice", fold_slice_seen)

    def _watch_copies(self, patch: pytest.MonkeyPatch) -> None:
        step = ReplicaMemory.step

        def step_seen(copies: ReplicaMemory, message: Copy, data: Any) -> None:
            step(copies, message, data)
            self.see(message.stamp, copies.export(message.slice))

        patch.setattr(ReplicaMemory, "step", step_seen)


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    monkeypatch.setattr(inline, "Hub", Hub)
    return Witness(monkeypatch)


def restored(since: str, server: int) -> bool:
    """Return whether every slice has all its copies again, after the last journal line of this kind
    about this server."""
    lines = Hub.now.lines
    found = [
        at
        for at, line in enumerate(lines)
        if line["what"] == since and line.get("server") == server
    ]
    return bool(found) and any(
        line["what"] == "copied" and line["learning"] == 0 for line in lines[found[-1] :]
    )


def train(worker: Worker, optimizer: str) -> Iterator[int]:
    """Train, and yield the number of steps after each step. The worker sleeps after each step, so that
    other threads can do what the test waits for."""
    number = int(worker.name.rpartition("-")[2])
    model = tj.build()
    optimizer_ = worker.attach(model, tj.OPTIMIZERS[optimizer](model))
    scheduler = tj.schedule(optimizer_)
    step = 0
    while not worker.stopped:
        points, labels = tj.batch(number, step)
        tj.loss_of(model, points, labels).backward()
        optimizer_.step(points=len(labels))
        scheduler.step()
        step += 1
        time.sleep(REST_S)
        yield step


@pytest.mark.guarantee("replica-equals-primary", k=(1,))
@pytest.mark.parametrize(
    ("sync", "optimizer", "outer"),
    [
        *((sync, "momentum", "off") for sync in ("bsp", "ssp:2", "asp")),
        *((sync, "adam", "off") for sync in ("bsp", "ssp:2", "asp")),
        ("bsp", "momentum", "nesterov:lr=0.7,momentum=0.9"),
    ],
)
def test_replicas_equal_their_primaries_after_every_step(
    witness: Witness, sync: str, optimizer: str, outer: str
) -> None:
    """With an outer optimizer, workers make the steps of their own optimizer, and servers those of
    the outer optimizer."""
    job = JobSpec(
        job="twin",
        sync=sync,
        kind="gradient" if outer == "off" else "local",
        outer=outer,
        workers=2,
        servers=3,
        replicas=1,
        slice_nbytes=256,
        heartbeat_s=20.0,
        targets=(Target("accuracy", 1.0, True),),
    )
    run = inline.InlineRun(None, [])
    guests: list[threading.Thread] = []
    done: list[str] = []

    def join(name: str) -> None:
        options = NodeOptions(check=True)
        args = (name, job, Hub.now, main, options, run)
        guests.append(threading.Thread(target=inline._work, args=args, daemon=True))
        guests[-1].start()

    def story() -> Iterator[None]:
        """The faults of the job, one after the other. After each of its steps, the first worker
        continues this generator."""
        join("guest-3")
        while "guest-3" not in done:
            yield
        Hub.now.lose(1)
        join("guest-4")
        while not (restored("server-lost", 1) and "guest-4" in done):
            yield
        Hub.now.start(1, job)
        while not restored("server-joined", 1):
            yield
        join("guest-5")
        Hub.now.lose(2)
        while not (restored("server-lost", 2) and "guest-5" in done):
            yield

    def main(worker: Worker) -> None:
        if worker.name.startswith("guest"):
            for step in train(worker, optimizer):
                if step == 5:
                    break
            done.append(worker.name)
            return
        events = story()
        for _ in train(worker, optimizer):
            if worker.name == "worker-0" and next(events, ENDED) is ENDED:
                worker.report(accuracy=1.0)

    inline.run_inline(job, main, timeout_s=60)
    for guest in guests:
        guest.join(10)
    assert not run.errors
    assert not witness.different, witness.different[:5]
    assert [line["server"] for line in Hub.now.lines if line["what"] == "server-lost"] == [1, 2]
    assert witness.compared > 200
    state = {"momentum_buffer"} if optimizer == "momentum" else {"exp_avg", "exp_avg_sq", "step"}
    assert witness.tensors >= {"parameters", *state}

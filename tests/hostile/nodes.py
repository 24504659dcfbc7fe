"""A job in this process with honest workers, and hostile links to its servers."""

import random
import threading
from typing import Any

import torch

from polyrhythm.core.placement.slices import Layout
from polyrhythm.engines.inline import Hub
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE
from polyrhythm.wire.proof import Hello
from tests.hostile.client import Wire, dial_node, hello_of, operator_hello, server_hello
from tests.hostile.inputs import KINDS, Inputs

_PER_LINK = 12
_PACE_S = 0.005


class Site:
    """The nodes of the job. `failures`: the exceptions that ended threads of the nodes. This list must
    stay empty."""

    def __init__(
        self,
        sync: str = "asp",
        servers: int = 2,
        replicas: int = 1,
        *,
        rows: bool = False,
        push: str = "exact",
    ) -> None:
        """`rows`: the model also has a table whose gradients are sparse."""
        self.job = m.JobSpec(
            job="fuzzed", sync=sync, servers=servers, workers=1, replicas=replicas, timer="off",
            slice_nbytes=256, rounds=10**9, heartbeat_s=0.2, push=push,
        )  # fmt: skip
        self.journal = MemoryJournal()
        self.failures: list[str] = []
        self.steps = 0
        self.layout: Layout | None = None
        self._rows = rows
        self._before, threading.excepthook = threading.excepthook, self._failed
        self._stop = threading.Event()
        self._hub = Hub()
        for server in range(servers):
            node = ServerNode(
                server,
                self.job,
                self._hub.address(server),
                lead=server == 0,
                options=NodeOptions(check=True),
                journal=self.journal if server == 0 else None,
                shared=False,
            )
            self._hub.servers.append(node)
        for node in self._hub.servers[1:]:
            node.reach_lead(self._hub, self._hub.address(0))
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()

    @property
    def servers(self) -> list[ServerNode]:
        return self._hub.servers

    def _failed(self, args: threading.ExceptHookArgs) -> None:
        self.failures.append(f"{args.exc_type.__name__}: {args.exc_value}")
        self._before(args)

    def _work(self) -> None:
        node = WorkerNode("honest", self.job.job, self._hub, NodeOptions(check=True))
        try:
            worker = Worker(node, node.join(self._hub.address(0)))
            table = torch.nn.Embedding(32, 8, sparse=True) if self._rows else torch.nn.Identity()
            model = torch.nn.Sequential(table, torch.nn.Linear(8, 16))
            inputs = torch.tensor([1, 30]) if self._rows else torch.ones(2, 8)
            optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
            self.layout = worker._exchange._flat.layout
            while not self._stop.is_set():
                model(inputs).square().mean().backward()
                optimizer.step(points=2)
                self.steps += 1
                self._stop.wait(_PACE_S)
            worker.finish()
        finally:
            node.leave(DONE)
            node.close()

    def trains_on(self) -> None:
        """Let the honest worker make some steps. Fail if the job has stopped."""
        wanted, tries = self.steps + 3, 0
        while self.steps < wanted:
            tries += 1
            assert not self.failures, self.failures
            assert tries < 6_000 and self._worker.is_alive(), "the honest worker makes no steps"
            self._stop.wait(0.01)

    def close(self) -> None:
        self._stop.set()
        self._worker.join(30)
        self.servers[0].stop()
        for node in self.servers:
            node.close()
        threading.excepthook = self._before


class Session:
    """One hostile link. Its peer may join as a worker, a server or an operator, and then sends
    arbitrary inputs."""

    def __init__(self, site: Site, rng: random.Random, number: int) -> None:
        self.site, self.rng, self.inputs = site, rng, Inputs(rng)
        self.server = rng.randrange(len(site.servers))
        self.wire: Wire = dial_node(site.servers[self.server].welcome)
        self.role = rng.choice(("stranger", "member", "member", "member", "server", "operator"))
        self.me: dict[str, Any] = {}
        self.greeted = False
        self._lead: Wire | None = None
        """The link of a hostile member to the lead. It stays open while the member sends to another
        server."""
        self.sent: list[bytes] = []
        self.number = number

    def run(self, most: int) -> int:
        """Send at most this many inputs, and return how many were sent."""
        if self.role != "stranger":
            self._enter()
        for _ in range(self.rng.randrange(1, min(most, _PER_LINK) + 1)):
            data = self.data()
            self.sent.append(data)
            if not self.wire.send(data):
                break
        self.wire.await_end()
        self.wire.close()
        if self._lead is not None:
            self._lead.await_end()
            self._lead.close()
        return len(self.sent)

    def _enter(self) -> None:
        rng, job = self.rng, self.site.job.job
        hello: Hello
        if self.role == "server":
            number = rng.choice((-1, 0, 1, 2, 7))
            hello = server_hello(number, rng.choice((0, 1, 2, 9)), job)
            self.me = {"server": number}
        elif self.role == "operator":
            hello = operator_hello(rng.choice((job, job, "")))
        else:
            worker, incarnation = rng.choice((0, 1, 2, 7, 50)), rng.choice((0, 1, 2, 3))
            name = f"mallory-{self.number % 7}"
            if self.server > 0 and rng.random() < 0.8:
                worker, incarnation = self._join(name)
            hello = hello_of(name, job, worker=worker, incarnation=incarnation)
            self.me = {"worker": worker, "incarnation": incarnation}
        if self.server == 0 and self.role == "member":
            admitted = self.wire.enter(hello)
            if admitted is not None:
                self.me = {"worker": admitted.worker, "incarnation": admitted.incarnation}
        else:
            self.wire.introduce(hello)
        self.greeted = True

    def _join(self, name: str) -> tuple[int, int]:
        """Join at the lead as a member, because the other servers read only links of members."""
        self._lead = dial_node(self.site.servers[0].welcome)
        admitted = self._lead.enter(hello_of(name, self.site.job.job))
        assert admitted is not None, f"{name} was not admitted"
        return admitted.worker, admitted.incarnation

    def data(self) -> bytes:
        """Return frames to send after the handshake. Most of them have the layout that is valid at that
        time."""
        rng, inputs = self.rng, self.inputs
        kind = rng.choice(KINDS)
        choice = rng.random()
        hello = self.greeted is (rng.random() < 0.05)
        if choice < 0.2:
            return inputs.odd_frame(kind, hello=hello)
        if choice < 0.35:
            return inputs.damaged(inputs.odd_frame(kind, hello=hello))
        fields = dict(self.me) if rng.random() < 0.9 else {}
        if rng.random() < 0.8:
            fields |= {
                "sequence": rng.randrange(4),
                "slice": rng.randrange(-1, 6),
                "routing": rng.randrange(4),
            }
            fields |= {"weight": rng.choice((1.0, 2.0, 1e-3, float(2**53)))}
        if kind in (m.Contribution, m.Seed, m.Copy, m.State) and rng.random() < 0.7:
            if kind is m.Contribution:
                fields |= {"slices": rng.randrange(4), "parts": None}
            return inputs.frame(
                inputs.message(kind, **fields),
                [bytes(rng.choice((64, 128, 192, 256)))],
                hello=hello,
            )
        return inputs.frame(inputs.message(kind, **fields), inputs.payload(), hello=hello)

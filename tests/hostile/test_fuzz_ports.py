"""Hostile inputs over the real ports of a running job: the job reaches its goal, and uses no more
memory, threads or descriptors than without these inputs.

2% of all inputs (`test_fuzz.py`) go over TCP links. They are sent at every stage of the handshake:
before the hello, between hello and proof, with and after a wrong proof, and after the right proof
of a peer that knows the secret, as a worker, a server or an operator.
"""

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.hostile.client import Wire, dial_port, hello_of, operator_hello, server_hello
from tests.hostile.inputs import KINDS, Inputs
from tests.hostile.test_fuzz import INPUTS, SEED

sys.path.insert(0, str(Path(__file__).parent.parent / "cluster"))
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import Hello, Secret, mac
from tests.cluster.handshakes import secret_of, with_nonce
from tests.cluster.processes import Command, wait_until

OVER_PORTS = round(0.02 * INPUTS)
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180 + INPUTS // 50)]
GATED = """
import os, time
import torch


def main(worker):
    if worker.name == "worker-0":
        with open("job_id", "w") as file:
            file.write(worker._job.job)
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        while worker.version >= 60 and not os.path.exists("go"):
            time.sleep(0.02)
        time.sleep(0.02)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
"""
_SLACK_KB = 64 * 1024


class Target(NamedTuple):
    job_id: str
    lead_port: int
    secret: Secret


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Command]:
    (tmp_path / "gated.py").write_text(GATED)
    flags = ["--workers", 2, "--servers", 2, "--rounds", 80, "--sync", "asp", "--json"]
    with Command("gated.py", *flags, cwd=tmp_path, trace=False) as command:
        command.await_round(0)
        yield command


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_kb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


class Attack:
    """One hostile link. `sent`: the number of inputs that it carried. `leads`: whether it goes to
    the server that runs the lead."""

    STAGES = ("silent", "unproven", "wrong", "worker", "worker", "worker", "server", "operator")

    def __init__(self, port: int, rng: random.Random, target: Target, *, leads: bool) -> None:
        self.rng, self.inputs, self.target, self.leads = rng, Inputs(rng), target, leads
        self.stage = rng.choice(self.STAGES)
        knows = self.stage in ("worker", "server", "operator")
        self.wire = dial_port(port, target.secret if knows else None)
        self.me: dict[str, int] = {}
        self.lead: Wire | None = None
        """The link of a hostile member to the lead. It stays open while the member sends to another
        server."""
        self.sent = 0
        self.greeted = False

    def run(self, most: int) -> int:
        getattr(self, f"_{self.stage}")()
        for _ in range(self.rng.randrange(1, 1 + min(10, most))):
            if not self._send(self._input()):
                break
        # A server that does not lead may leave the link unread until the lead names the peer.
        if self.stage != "server" or self.leads:
            self.wire.await_end()
        self.wire.close()
        if self.lead is not None:
            self.lead.await_end()
            self.lead.close()
        return self.sent

    def _send(self, data: bytes) -> bool:
        self.sent += 1
        return self.wire.send(data)

    def _input(self) -> bytes:
        rng, inputs = self.rng, self.inputs
        kind = rng.choice((*KINDS, m.Proof, m.WorkerHello, m.ServerHello, m.OperatorHello))
        layout = {"hello": self.greeted is (rng.random() < 0.05)}
        data = inputs.odd_frame(kind, **layout)
        if rng.random() < 0.6:
            data = inputs.frame(inputs.message(kind, **self.me), inputs.payload(), **layout)
        return data if rng.random() < 0.8 else inputs.damaged(data)

    # -- how far the handshake goes before the inputs ------------------------------------------

    def _silent(self) -> None: ...

    def _unproven(self) -> None:
        self._say_hello()
        if self.rng.random() < 0.5:
            self.wire.challenge()

    def _wrong(self) -> None:
        said = self._say_hello()
        challenge = self.wire.challenge()
        assert challenge is not None, "an honest hello was not answered"
        wrong = (
            mac(Secret("x" * 64), "opener", said, challenge),
            mac(Secret(""), "opener", said, challenge),
            mac(self.target.secret, "acceptor", said, challenge),
            mac(self.target.secret, "opener", with_nonce(said), challenge),
            mac(self.target.secret, "opener", said, replace(challenge, nonce=said.nonce)),
            mac(self.target.secret, "opener", said, challenge)[:-1],
            challenge.proof,
            b"",
        )
        proof = m.Proof(proof=self.rng.choice(wrong))
        self._send(self.inputs.frame(proof, hello=True))

    def _say_hello(self) -> Hello:
        """Return a hello. Most have the name of a worker or server of the job."""
        rng = self.rng
        number, incarnation = rng.randrange(3), rng.randrange(4)
        hello: Hello = hello_of(f"worker-{number}", "", worker=number, incarnation=incarnation)
        if rng.random() < 0.4:
            hello = rng.choice((server_hello(number, incarnation, ""), operator_hello("")))
        hello = with_nonce(hello)
        self.wire.send(self.inputs.frame(hello, hello=True))
        return hello

    def _worker(self) -> None:
        rng, name = self.rng, f"mallory-{self.rng.randrange(5)}"
        hello = hello_of(name, self.target.job_id, worker=60, incarnation=rng.randrange(3))
        self.me = {"worker": 60, "incarnation": hello.incarnation}
        at_lead = self.wire
        # a server that does not lead reads only links of workers that the lead has admitted
        if not self.leads:
            at_lead = self.lead = dial_port(self.target.lead_port, self.target.secret)
        admitted = at_lead.enter(hello)
        if admitted is not None:
            self.me = {"worker": admitted.worker, "incarnation": admitted.incarnation}
            self.greeted = self.leads or self.wire.introduce(replace(hello, **self.me))

    def _server(self) -> None:
        rng, number = self.rng, self.rng.choice((-1, 0, 1, 2, 7))
        hello = server_hello(number, rng.choice((0, 1, 2, 9)), self.target.job_id)
        self.me = {"server": number}
        self.greeted = self.wire.introduce(hello)

    def _operator(self) -> None:
        self.greeted = self.wire.introduce(operator_hello(self.target.job_id))


def test_a_job_outlives_hostile_inputs_over_its_ports(job: Command) -> None:
    servers = job.servers()
    ports = [job.ports(pid)[0] for pid in servers]
    target = Target((job.cwd / "job_id").read_text(), ports[0], secret_of(job.run_dir))
    stages: Counter[str] = Counter()
    greeted: Counter[str] = Counter()
    sent = number = 0

    def send(until: int) -> None:
        nonlocal sent, number
        while sent < until:
            number += 1
            rng = random.Random(f"{SEED} ports {number}")
            at = number % 2
            attack = Attack(ports[at], rng, target, leads=at == 0)
            sent += attack.run(until - sent)
            stages[attack.stage] += 1
            greeted[attack.stage] += attack.greeted
            if job.process.poll() is not None or not all(map(lives, servers)):
                raise AssertionError(
                    f"link {number} of seed {SEED} ended a process: {job.stderr()}"
                )

    send(
        OVER_PORTS // 4
    )  # measure after these inputs, because some memory and threads are allocated only once
    before = [(threads(pid), descriptors(pid), resident_kb(pid)) for pid in servers]
    send(OVER_PORTS)
    assert job.servers() == servers, "both still listen"
    for pid, (some_threads, some_descriptors, some_kb) in zip(servers, before, strict=True):
        wait_until(lambda pid=pid, most=some_threads: threads(pid) <= most + 2, "threads ended")
        most = some_descriptors + 2
        wait_until(lambda pid=pid, most=most: descriptors(pid) <= most, "links are closed")
        assert resident_kb(pid) < some_kb + _SLACK_KB
    (job.cwd / "go").touch()
    assert job.wait(90) == 0, job.stderr()
    left = {line["name"]: line["reason"] for line in job.journal("left")}
    assert left["worker-0"] == left["worker-1"] == "done"
    assert stages.keys() == set(Attack.STAGES)
    assert {stage for stage in stages if greeted[stage]} == {"worker", "server", "operator"}


def test_a_hello_with_a_deeply_nested_field_ends_its_link_and_nothing_else(job: Command) -> None:
    """A stranger sends one hello with a deeply nested field. In an earlier version, such a frame
    ended the job."""
    nested = b"\x91" * 50_000 + b"\xc0"
    fields = m.encode_head(hello_of("stranger", ""))
    head = b"\xdc" + (fields[2] + 256 * fields[1] + 1).to_bytes(2, "big") + fields[3:] + nested
    for pid in job.servers():
        wire = dial_port(job.ports(pid)[0])
        wire.send(Inputs(random.Random(0)).with_head(m.WorkerHello, head, hello=True))
        assert "nested too deeply" in (wire.await_end() or "")
        wire.close()
    (job.cwd / "go").touch()
    assert job.wait(90) == 0, job.stderr()

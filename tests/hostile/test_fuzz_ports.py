"""Hostile inputs over the real ports of a running job: it reaches its goal, and keeps nothing of them.

2% of all inputs (`test_fuzz.py`), as a stranger and as a member: each goes over a TCP link of its own
or follows others over one.
"""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from client import dial_port, hello_of
from inputs import KINDS, Inputs
from test_fuzz import INPUTS, SEED

sys.path.insert(0, str(Path(__file__).parent.parent / "cluster"))
from processes import Command, wait_until

from polyrhythm.wire import messages as m

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
        while worker.version >= 300 and not os.path.exists("go"):
            time.sleep(0.01)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
"""
_SLACK_KB = 64 * 1024


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Command]:
    (tmp_path / "gated.py").write_text(GATED)
    flags = ["--workers", 2, "--servers", 2, "--rounds", 900, "--sync", "asp", "--json"]
    with Command("gated.py", *flags, cwd=tmp_path, trace=False) as command:
        command.await_round(0)
        yield command


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_kb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def attack(port: int, rng: random.Random, name: str, job_id: str, most: int, *, leads: bool) -> int:
    """One link; how many inputs it carried. `leads`: to the server that runs the lead."""
    inputs, wire, me = Inputs(rng), dial_port(port), {}
    if rng.random() < 0.6:
        hello = hello_of(name, job_id, worker=60, incarnation=rng.randrange(3))
        me = {"worker": 60, "incarnation": hello.incarnation}
        if leads and (admitted := wire.enter(hello)) is not None:
            me = {"worker": admitted.worker, "incarnation": admitted.incarnation}
        elif not leads:  # it names no worker: that is the lead's to do
            wire.send(inputs.frame(hello))
    count = 0
    for _ in range(rng.randrange(1, 1 + min(10, most))):
        kind = rng.choice(KINDS)
        data = inputs.odd_frame(kind)
        if me and rng.random() < 0.6:
            data = inputs.frame(inputs.message(kind, **me), inputs.payload())
        count += 1
        if not wire.send(data if rng.random() < 0.8 else inputs.damaged(data)):
            break
    wire.await_end()
    wire.close()
    return count


def test_a_job_outlives_hostile_inputs_over_its_ports(job: Command) -> None:
    servers = job.servers()
    ports = [job.ports(pid)[0] for pid in servers]
    job_id = (job.cwd / "job_id").read_text()
    sent = number = 0

    def send(until: int) -> None:
        nonlocal sent, number
        while sent < until:
            number += 1
            rng = random.Random(f"{SEED} ports {number}")
            name, at = f"mallory-{number % 5}", number % 2
            sent += attack(ports[at], rng, name, job_id, until - sent, leads=at == 0)
            if job.process.poll() is not None or set(job.servers()) != set(servers):
                raise AssertionError(
                    f"link {number} of seed {SEED} ended a process: {job.stderr()}"
                )

    send(OVER_PORTS // 4)  # what a process keeps once, such as threads of torch, it has by then
    before = [(threads(pid), descriptors(pid), resident_kb(pid)) for pid in servers]
    send(OVER_PORTS)
    for pid, (some_threads, some_descriptors, some_kb) in zip(servers, before, strict=True):
        wait_until(lambda pid=pid, most=some_threads: threads(pid) <= most + 2, "threads ended", 30)
        most = some_descriptors + 2
        wait_until(lambda pid=pid, most=most: descriptors(pid) <= most, "links are closed", 30)
        assert resident_kb(pid) < some_kb + _SLACK_KB
    (job.cwd / "go").touch()
    assert job.wait(90) == 0, job.stderr()
    left = {line["name"]: line["reason"] for line in job.journal("left")}
    assert left["worker-0"] == left["worker-1"] == "it was done"


def test_a_hello_with_a_deeply_nested_field_ends_its_link_and_nothing_else(job: Command) -> None:
    """As it was reported: one frame of a stranger ended the job."""
    nested = b"\x91" * 50_000 + b"\xc0"
    fields = m.encode_head(hello_of("stranger", ""))
    head = b"\xdc" + (fields[2] + 256 * fields[1] + 1).to_bytes(2, "big") + fields[3:] + nested
    for pid in job.servers():
        wire = dial_port(job.ports(pid)[0])
        wire.send(Inputs(random.Random(0)).with_head(m.WorkerBonjour, head))
        assert "nested too deeply" in (wire.await_end() or "")
        wire.close()
    (job.cwd / "go").touch()
    assert job.wait(90) == 0, job.stderr()

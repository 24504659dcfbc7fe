"""One job on several machines: `train` on the first, `server` and `worker` on the others."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import Host, network
from processes import wait_until

from polyrhythm.observe.journal import read_journal

ROUNDS = 20
MODEL_NBYTES = 4 * (256 * 100 + 100)
JOB = """
import torch


def main(worker):
    model = torch.nn.Linear(256, 100)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        model(torch.ones(2, 256)).sum().backward()
        optimizer.step(points=2)
"""


class Machines:
    """Commands on hosts, each with a file for what it says; none outlives the test."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, host: Host, *args: object) -> None:
        with (
            (self.cwd / f"{name}.out").open("w") as out,
            (self.cwd / f"{name}.err").open("w") as err,
        ):
            self._processes[name] = host.start(*args, cwd=self.cwd, stdout=out, stderr=err)

    def end_of(self, name: str) -> int:
        return self._processes[name].wait(90)

    def alive(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def said(self, name: str, where: str = "err") -> str:
        return (self.cwd / f"{name}.{where}").read_text()

    def noted(self, what: str) -> list[dict[str, Any]]:
        path = self.cwd / "runs" / "run" / "journal.jsonl"
        lines = list(read_journal(path)) if path.exists() else []
        return [line for line in lines if line["what"] == what]

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(10)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    (tmp_path / "job.py").write_text(JOB)
    machines = Machines(tmp_path)
    try:
        yield machines
    finally:
        machines.close()


def begin(machines: Machines, host: Host, *flags: object) -> str:
    """A job that waits for a server and for workers; where it does."""
    counts = ("--servers", 2, "--local-servers", 1, "--local-workers", 0, "--rounds", ROUNDS)
    open_to_all = ("--host", host.address, "--port", 7000, "--insecure", "--name", "run")
    machines.start("train", host, "train", "job.py", *counts, *open_to_all, *flags)
    wait_until(lambda: machines.noted("server-joined"), "the lead is there")
    return f"{host.address}:7000"


def test_a_server_and_workers_on_machines_of_their_own(machines: Machines) -> None:
    with network(4) as (first, second, near, far):
        far.shape("20mbit")
        lead = begin(machines, first, "--workers", 2)
        wait_until(lambda: machines.said("train").count("\n") >= 2, "train invites")
        invitation = machines.said("train").splitlines()
        assert f"polyrhythm server --connect {lead} --insecure" in invitation[0]
        assert f"once for each: polyrhythm worker job.py --connect {lead}" in invitation[1]

        everywhere = ("--host", "0.0.0.0", "--insecure")
        machines.start("server", second, "server", "--connect", lead, *everywhere)
        machines.start("near", near, "worker", "job.py", "--connect", lead, "--name", "near")
        wait_until(lambda: len(machines.noted("server-joined")) == 2, "both servers are there")
        machines.start("extra", second, "server", "--connect", lead, "--insecure")
        assert machines.end_of("extra") == 1
        assert machines.said("extra").startswith("polyrhythm: a server on ")
        assert "was refused: the job has its 2 server(s)" in machines.said("extra")
        machines.start("far", far, "worker", "job.py", "--connect", lead, "--name", "far")

        for name in ("train", "server", "near", "far"):
            assert machines.end_of(name) == 0, machines.said(name)
        assert far.sent_nbytes() > ROUNDS * MODEL_NBYTES
    assert f"s1 listens on {second.address}:" in machines.said("server")
    assert "left: the job reached its goal" in machines.said("server")
    assert {line["link"] for line in machines.noted("linked")} == {"tcp"}
    ended = machines.noted("ended")[0]
    assert not ended["failed"] and ended["rounds"] == ROUNDS
    result = json.loads((machines.cwd / "runs" / "run" / "result.json").read_text())
    assert result["folds"] == {"s0": ROUNDS, "s1": ROUNDS}
    assert result["contributions"] == 2 * ROUNDS
    assert f"folds: s0 {ROUNDS}, s1 {ROUNDS}" in machines.said("train", "out")


def test_a_server_that_others_cannot_reach(machines: Machines) -> None:
    """It listens for its own machine only: the worker elsewhere says what it tried."""
    with network(3) as (first, second, third):
        lead = begin(machines, first, "--workers", 1)
        machines.start("server", second, "server", "--connect", lead, "--host", "127.0.0.1")
        machines.start("worker", third, "worker", "job.py", "--connect", lead)
        assert machines.end_of("worker") == 1
        wait_until(lambda: "listens on" in machines.said("server"), "the server says where")
        port = machines.said("server").rpartition("s1 listens on 127.0.0.1:")[2].strip()
        (line,) = machines.said("worker").splitlines()
        assert f"could not reach s1 at 127.0.0.1:{port}: Connection refused" in line
        assert "--host" in line
        assert machines.alive("train") and machines.alive("server"), "others may still come"

"""Run commands on several hosts, which are network namespaces."""

from pathlib import Path
from typing import Any

from polyrhythm.observe.journal import read_journal
from tests.cluster.namespaces import Host
from tests.cluster.processes import wait_until
from tests.commands.start import Process

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
    """Commands on several hosts, each with files for its output. All commands are killed at the end
    of the test."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self._processes: dict[str, Process] = {}

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


def begin(machines: Machines, host: Host, *flags: object) -> str:
    """Start a job that waits for a server and for workers; return its address."""
    counts = ("--servers", 2, "--local-servers", 1, "--local-workers", 0, "--rounds", ROUNDS)
    open_to_all = ("--host", host.address, "--port", 7000, "--insecure", "--name", "run")
    machines.start("train", host, "train", "job.py", *counts, *open_to_all, *flags)
    wait_until(lambda: machines.noted("server-joined"), "the lead is there")
    return f"{host.address}:7000"

"""A server's memory does not grow with the number of rounds: it grows by less than 0.5 MB between
rounds 100 and 500."""

import os
from pathlib import Path

import pytest

from tests.cluster.processes import Command, wait_until

JOB = """
import os, time
import torch


def pause(worker, gate):
    if worker.name == "worker-0":
        open(f"at-{gate}", "w").close()
    while not os.path.exists(f"go-{gate}"):
        time.sleep(0.002)


def main(worker):
    parameter = torch.nn.Parameter(torch.zeros(100_000))
    model = torch.nn.ParameterList([parameter])
    optimizer = worker.attach(model, torch.optim.SGD([parameter], lr=0.1))
    gradient = torch.ones(100_000)
    while not worker.stopped:
        if worker.version in (100, 499):
            pause(worker, worker.version)
        parameter.grad = gradient
        optimizer.step(points=1)
"""


def resident_nbytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("link", ["local", "tcp"])
def test_the_memory_of_a_server_does_not_grow(tmp_path: Path, link: str) -> None:
    (tmp_path / "big.py").write_text(JOB)
    workers = 2 if link == "local" else 1
    flags = [
        "--workers",
        workers,
        "--servers",
        1,
        "--rounds",
        500,
        "--timer",
        "off",
        "--link",
        link,
    ]
    with Command("big.py", *flags, "--json", cwd=tmp_path) as command:
        measured = []
        for gate in (100, 499):

            def reached(gate: int = gate) -> bool:
                command.assert_alive()
                return (tmp_path / f"at-{gate}").exists()

            wait_until(reached, f"round {gate}")
            measured.append(resident_nbytes(command.servers()[0]))
            (tmp_path / f"go-{gate}").touch()
        assert command.wait() == 0, command.stderr()
    assert measured[0] > 4_000_000
    assert measured[1] - measured[0] < 500_000, measured

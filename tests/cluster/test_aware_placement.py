"""Jobs whose slices follow measured rates, and workers with a server beside them."""

import signal
from pathlib import Path

import numpy as np

from tests.cluster.jobs.ledger import ROWS
from tests.cluster.machines import Machines
from tests.cluster.namespaces import network
from tests.cluster.processes import Command, wait_until

LEDGER = Path(__file__).parent / "jobs" / "ledger.py"
ROUNDS, COLUMNS = 30, 4096


def test_slices_leave_a_server_with_a_slow_link(machines: Machines) -> None:
    """Two servers hold three slices each, until the link of one is measured. Every contribution is in
    every slice once."""
    with network(3) as (first, slow, third):
        slow.shape("8mbit")
        counts = ("--servers", 2, "--local-servers", 1, "--workers", 2, "--local-workers", 0)
        adds = ("--updater", "addition", "--timer", "off", "--set", f"columns={COLUMNS}")
        way_in = ("--host", first.address, "--port", 7000, "--insecure", "--name", "run")
        goal = ("--rounds", ROUNDS, "--placement", "aware")
        machines.start("train", first, "train", LEDGER, *counts, *adds, *way_in, *goal)
        wait_until(lambda: machines.noted("server-joined"), "the lead is there")
        lead = f"{first.address}:7000"
        everywhere = ("--host", "0.0.0.0", "--insecure")
        machines.start("server", slow, "server", "--connect", lead, *everywhere)
        names = [f"worker-{number}" for number in range(2)]
        for name in names:
            machines.start(name, third, "worker", LEDGER, "--connect", lead, "--name", name)
        for name in ("train", "server", *names):
            assert machines.end_of(name) == 0, machines.said(name)
    (moved, *_) = machines.noted("reassigned")
    assert moved["slowest"] == "s1" and moved["gain"] > 0.3 and moved["slices"] >= 2
    holds = machines.noted("rerouted")[-1]["slices"]
    assert holds["s1"] <= 1
    rounds = [line["longest_s"] for line in machines.noted("rounds") if line["round"] > 0]
    assert min(rounds[-3:]) < 0.6 * max(rounds[:3])
    for name in names:
        final = np.load(machines.cwd / f"{name}.final.npy")
        assert (final == final[0]).all()
        assert final[0].sum(axis=1).tolist() == [ROUNDS] * 2 + [0] * (ROWS - 2)


def test_a_worker_brings_a_server_and_takes_it_away(tmp_path: Path) -> None:
    """`train --colocate` waits for a worker with a server. When this worker is told to leave, its server
    moves its slices away first, and the job goes on."""
    here = ("--workers", 2, "--colocate", "--local-workers", 1, "--placement", "average")
    adds = ("--updater", "addition", "--min-step", "50ms", "--set", "columns=64")
    with Command(LEDGER, *here, *adds, "--target-accuracy", 1.0, cwd=tmp_path) as command:
        wait_until(lambda: command.journal("listening"), "the job listens")
        wait_until(lambda: "--colocate" in command.stderr(), "it invites a colocated worker")
        worker = command.join("--colocate", "--name", "worker-7")
        command.await_round(10)
        (placed,) = command.journal("placed")
        assert placed["slices"] == [3, 3]
        worker.send_signal(signal.SIGTERM)
        wait_until(lambda: command.journal("drained"), "its server has left")
        assert worker.wait(60) == 143
        assert not command.journal("server-lost")
        (tmp_path / "finish").touch()
        assert command.wait(60) == 0, command.stderr()
    final = np.load(tmp_path / "worker-0.final.npy")
    assert (final == final[0]).all()

"""Jobs whose slices follow measured rates, and workers with a server beside them."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.jobs.ledger import ROWS
from tests.cluster.machines import Machines
from tests.cluster.namespaces import network
from tests.cluster.processes import Command, call, wait_until

LEDGER = Path(__file__).parent / "jobs" / "ledger.py"


def run_job(
    machines: Machines, scheme: str, rates: tuple[str, str], rounds: int, *more: object
) -> None:
    """Train with two servers whose hosts have these rates, and two workers on a third host. Every
    contribution is in every slice once."""
    names = [f"worker-{number}" for number in range(2)]
    with network(3) as (first, second, third):
        for host, rate in zip((first, second), rates, strict=True):
            if rate:
                host.shape(rate)
        counts = ("--servers", 2, "--local-servers", 1, "--workers", 2, "--local-workers", 0)
        adds = ("--updater", "addition", "--timer", "off")
        way_in = ("--host", first.address, "--port", 7000, "--insecure", "--name", "run")
        goal = ("--rounds", rounds, "--placement", scheme)
        machines.start("train", first, "train", LEDGER, *counts, *adds, *way_in, *goal, *more)
        wait_until(lambda: machines.noted("server-joined"), "the lead is there")
        lead = f"{first.address}:7000"
        everywhere = ("--host", "0.0.0.0", "--insecure")
        machines.start("server", second, "server", "--connect", lead, *everywhere)
        for name in names:
            machines.start(name, third, "worker", LEDGER, "--connect", lead, "--name", name)
        for name in ("train", "server", *names):
            assert machines.end_of(name) == 0, machines.said(name)
    for name in names:
        final = np.load(machines.cwd / f"{name}.final.npy")
        assert (final == final[0]).all()
        assert final[0].sum(axis=1).tolist() == [rounds] * 2 + [0] * (ROWS - 2)


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("scheme", "rounds", "columns"),
    [("aware", 30, 4096), pytest.param("elastic", 45, 2048, marks=pytest.mark.slow)],
)
def test_slices_leave_a_server_with_a_slow_link(
    machines: Machines, scheme: str, rounds: int, columns: int
) -> None:
    """Two servers hold at least eight slices each, until one of them is seen to be slow."""
    run_job(machines, scheme, ("", "8mbit"), rounds, "--set", f"columns={columns}")
    (moved, *_) = machines.noted("reassigned")
    assert moved["scheme"] == scheme and moved["slowest"] == "s1"
    assert moved["gain"] > 0.1 and moved["slices"] >= 1
    holds = [line["slices"]["s1"] for line in machines.noted("rerouted")]
    assert holds == sorted(holds, reverse=True) and holds[-1] <= 6, "none comes back"
    rounds_s = [line["longest_s"] for line in machines.noted("rounds") if line["round"] > 0]
    assert min(rounds_s[-3:]) < 0.6 * max(rounds_s[:3])
    story = call("story", "run", cwd=machines.cwd).stdout
    assert "because a round takes longest on s1" in story and f"--placement {scheme}" in story
    (placed,) = machines.noted("placed")
    best = math.sqrt(placed["nbytes"] * 1.2e5 / 2)
    assert placed["slice_nbytes"] <= best, "the size of slices between machines (Aware, Eq. 4)"
    slow = status_of(machines, "s1")
    # bytes that a busy reader finds in its buffer look faster than they came
    assert 0.3e6 < min(slow["rates"][slow["host"]].values()) < 2e6, "8 Mbit/s"


def status_of(machines: Machines, server: str) -> dict[str, Any]:
    """The measured rates, and the host of a server. `status --links` shows both."""
    links = json.loads(call("status", "run", "--json", cwd=machines.cwd).stdout)["links"]
    (host,) = [host for host, there in links["hosts"].items() if server in there]
    shown = call("status", "run", "--links", cwd=machines.cwd).stdout.splitlines()
    assert shown[0].startswith("measured at")
    assert any(line.split()[1:3] == [host, server] for line in shown), shown
    return {**links, "host": host}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("scheme", "rounds"), [("aware", 25), pytest.param("elastic", 45, marks=pytest.mark.slow)]
)
def test_on_equal_links_slices_stay(machines: Machines, scheme: str, rounds: int) -> None:
    """With 24 slices, a move of one would be seen as a gain if the noise of measurements were."""
    more = ("--set", "columns=512", "--set", "slices=24")
    run_job(machines, scheme, ("16mbit", "16mbit"), rounds, *more)
    (placed,) = machines.noted("placed")
    assert placed["slices"] == [12, 12]
    assert not machines.noted("reassigned") and not machines.noted("rerouted")


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
        assert command.wait() == 0, command.stderr()
    final = np.load(tmp_path / "worker-0.final.npy")
    assert (final == final[0]).all()

"""Servers that are started with `polyrhythm server --connect`: jobs of three and four servers, with
replicas and deaths.

Such a server must reach every other server, not only the lead's, because replicas copy from
primaries.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.job_workers import JobWorkers
from tests.cluster.ledger_job import ADDITION, FEW, finish, folded_with
from tests.cluster.machines import Machines
from tests.cluster.namespaces import network
from tests.cluster.processes import Command, call, wait_until
from tests.commands.start import Process

LEAD_TIMEOUT_S = 6
OPTIMIZED = """
import torch


def main(worker):
    model = torch.nn.Linear(64, 64)
    optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    while not worker.stopped:
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step(points=2)
"""
LEDGER = Path(__file__).parent / "jobs" / "ledger.py"


class Site:
    """A job with `servers` servers. The command `train` itself starts `local` of them."""

    def __init__(self, cwd: Path, servers: int, local: int, *flags: object) -> None:
        counts = ("--servers", servers, "--local-servers", local, "--workers", 2)
        how = ("--timer", "1s", "--min-step", "100ms", "--set", f"columns={FEW}")
        goal = ("--target-accuracy", 1.0, *folded_with(ADDITION))
        self.command = Command(LEDGER, *counts, *how, *goal, *flags, cwd=cwd)
        self.job_workers = JobWorkers(self.command, random.Random(0))
        self.outside: dict[int, Process] = {}
        self._servers, self._local = servers, local

    def gather(self) -> None:
        """Start the missing servers one after the other, and wait until both workers train."""
        for number in range(self._servers - 1, self._local - 1, -1):
            self.outside[number] = self.command.serve()
            joined = f"s{number} joins"
            wait_until(lambda n=number: self.joined(n), joined)
        self.job_workers.until(lambda: len(self.job_workers.books) == 2, "both train")
        self.job_workers.until_progress(10)

    def joined(self, number: int) -> int:
        """Return how often a server with this number has joined."""
        return sum(line["server"] == number for line in self.command.journal("server-joined"))

    def primaries(self) -> set[str]:
        """Return the servers that are now the primary of a slice."""
        (placed,) = self.command.journal("placed")
        holds = {f"s{number}": count for number, count in enumerate(placed["slices"])}
        for line in self.command.journal("rerouted"):
            holds = line["slices"]
        return {server for server, count in holds.items() if count}

    def lose(self, *numbers: int) -> None:
        """Kill these servers at once with SIGKILL, so that none can react to the death of
        another."""
        lost = len(self.command.journal("server-lost"))
        for number in numbers:
            os.kill(self.outside[number].pid, signal.SIGSTOP)
        for number in numbers:
            os.kill(self.outside[number].pid, signal.SIGKILL)
        self.job_workers.until(
            lambda: len(self.command.journal("server-lost")) == lost + len(numbers),
            "the lead misses them",
        )
        self.job_workers.until_progress(10)

    def replace(self, number: int) -> None:
        """Start a server by command. Wait until it has taken the lost server's number, has caught
        up, and is a primary again."""
        before = self.joined(number)
        self.outside[number] = self.command.serve()
        self.job_workers.until(lambda: self.joined(number) > before, f"another s{number} joins")
        self.job_workers.until(lambda: f"s{number}" in self.primaries(), "it holds slices again")


@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize(("servers", "local"), [(3, 2), (3, 1), (4, 1)])
def test_servers_started_by_command_serve_die_and_are_replaced(
    tmp_path: Path, servers: int, local: int, sync: str
) -> None:
    site = Site(tmp_path, servers, local, "--replicas", 1, "--sync", sync, "--json")
    with site.command:
        site.gather()
        assert site.primaries() == {f"s{number}" for number in range(servers)}
        last = servers - 1
        site.lose(last)
        assert site.primaries() == {f"s{number}" for number in range(last)}
        site.replace(last)
        site.lose(last)
        finish(site.job_workers)
        result = json.loads(site.command.stdout())
        assert result["servers"] == servers
        losses = result["servers_lost"]
        assert [loss["server"] for loss in losses] == [f"s{last}", f"s{last}"], losses
        assert [loss["replaced"] for loss in result["servers_lost"]] == [True, False]


def test_two_of_four_die_at_once_with_two_replicas(tmp_path: Path) -> None:
    site = Site(tmp_path, 4, 2, "--replicas", 2, "--sync", "bsp", "--quiet")
    with site.command:
        site.gather()
        site.lose(2, 3)
        finish(site.job_workers)
    said = site.command.stderr().splitlines()
    for lost in ("s2", "s3"):
        (line,) = (line for line in said if f"server {lost} is lost" in line)
        assert "the job goes on with" in line and "of 4 servers" in line
    summary = site.command.stdout()
    (row,) = (row for row in summary.splitlines() if "ended with 2 of 4 servers: " in row)
    assert "s2 was lost after" in row and "s3 was lost after" in row


def test_a_server_that_is_told_to_leave_moves_its_slices_first(tmp_path: Path) -> None:
    site = Site(tmp_path, 2, 1, "--replicas", 1, "--sync", "bsp")
    with site.command:
        site.gather()
        os.kill(site.outside[1].pid, signal.SIGTERM)
        site.job_workers.until(lambda: site.command.journal("drained"), "s1 leaves")
        assert site.outside[1].wait(30) == 0
        assert not site.command.journal("server-lost")
        finish(site.job_workers)


def test_a_server_that_is_told_to_leave_twice_ends_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path, 2, 1, "--replicas", 1, "--sync", "bsp", "--min-step", "2s")
    with site.command:
        site.gather()
        os.kill(site.outside[1].pid, signal.SIGTERM)
        site.job_workers.until(lambda: site.command.journal("draining"), "s1 is drained")
        os.kill(site.outside[1].pid, signal.SIGTERM)
        assert site.outside[1].wait(30) == 128 + signal.SIGTERM
        site.job_workers.until(lambda: site.command.journal("server-lost"), "s1 is missed")
        finish(site.job_workers)


def test_a_server_whose_slices_cannot_move_says_why_it_stays(tmp_path: Path) -> None:
    tally = LEDGER.parent / "tally.py"
    flags = ("--kind", "statistics", "--sync", "asp", "--min-step", "100ms")
    flags += ("--workers", 1, "--servers", 2, "--local-servers", 1, "--target-accuracy", 1.0)
    with Command(tally, *flags, cwd=tmp_path) as command:
        server = command.serve()
        wait_until(lambda: command.journal("placed"), "training begins")
        os.kill(server.pid, signal.SIGTERM)
        assert server.stderr is not None
        read = iter(server.stderr.readline, "")
        line = next(line for line in read if "s1 stays in the job: " in line)
        assert "slices cannot move under --sync asp --kind statistics" in line
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(30) == 128 + signal.SIGTERM


def test_a_server_without_a_slice_says_so(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(OPTIMIZED.replace("64, 64", "1, 1").replace(" 64", " 1"))
    flags = ("--workers", 1, "--servers", 3, "--rounds", 100_000, "--min-step", "10ms")
    with Command("job.py", *flags, cwd=tmp_path) as command:
        command.await_round(1)
        (placed,) = command.journal("placed")
        holder = placed["slices"].index(1, 1)
        server = command.serve()
        assert server.stderr is not None
        read = iter(server.stderr.readline, "")
        next(line for line in read if "s3: no slices yet (the model has 2)" in line)
        for number in {1, 2} - {holder}:
            drain(tmp_path, number)  # it holds no slice, so s3 gets none
        drain(tmp_path, holder)
        next(line for line in read if "s3: the first slices are arriving (1 of 2)" in line)


def drain(cwd: Path, number: int) -> None:
    drained = call("drain", "run", f"s{number}", cwd=cwd)
    assert drained.returncode == 0, drained.stderr


def test_a_local_server_is_replaced_by_one_started_by_command(tmp_path: Path) -> None:
    """The new s1 has a lower number than s2, so s2 dials it. The address of s1 must be one that
    every host can reach."""
    site = Site(tmp_path, 3, 2, "--replicas", 1, "--sync", "bsp")
    with site.command:
        site.gather()
        outside = {process.pid for process in site.outside.values()}
        _, local = (pid for pid in site.command.servers() if pid not in outside)
        os.kill(local, signal.SIGKILL)
        site.job_workers.until(lambda: site.command.journal("server-lost"), "s1 is missed")
        site.replace(1)
        finish(site.job_workers)
    assert "AssertionError" not in site.command.stderr()


def test_servers_on_hosts_of_their_own_reach_each_other(machines: Machines) -> None:
    """The local servers listen on every address. Servers on other hosts reach them at the lead's
    address."""
    with network(3) as (first, second, third):
        counts = ("--servers", 4, "--local-servers", 2, "--workers", 1, "--replicas", 1)
        open_to_all = ("--host", "0.0.0.0", "--port", 7000, "--insecure", "--name", "run")
        machines.start("train", first, "train", "job.py", *counts, *open_to_all, "--rounds", 40)
        wait_until(lambda: len(machines.noted("server-joined")) == 2, "the local servers are there")
        lead = f"{first.address}:7000"
        for name, host in (("second", second), ("third", third)):
            machines.start(name, host, "server", "--connect", lead, "--insecure")
        for name in ("train", "second", "third"):
            assert machines.end_of(name) == 0, machines.said(name)
    assert not machines.noted("server-lost")
    assert machines.noted("ended")[0]["folds"] == {"0": 40, "1": 40, "2": 40, "3": 40}


def test_a_job_waits_for_its_servers_longer_than_the_lead_may_be_silent(tmp_path: Path) -> None:
    """The lead sends heartbeats while it waits, so no process may suspect it."""
    site = Site(tmp_path, 3, 2, "--replicas", 1, "--lead-timeout", LEAD_TIMEOUT_S, "--quiet")
    with site.command:
        wait_until(lambda: len(site.command.journal("server-joined")) == 2, "two are there")
        until_s = time.monotonic() + 2 * LEAD_TIMEOUT_S
        while time.monotonic() < until_s:
            site.command.assert_alive()
            assert site.command.stderr() == ""
            time.sleep(0.1)
        site.gather()
        finish(site.job_workers)
    assert site.command.stderr() == ""


def test_a_server_started_by_command_imports_no_part_of_torch_after_it_has_joined(
    tmp_path: Path,
) -> None:
    """The first optimizer of a process imports a large part of torch. This takes seconds, in which
    a server neither sends heartbeats nor answers. So the server must have imported these modules
    before it joins."""
    (tmp_path / "job.py").write_text(OPTIMIZED)
    flags = ["--servers", 2, "--local-servers", 1, "--workers", 1, "--rounds", 5]
    with Command("job.py", *flags, "--json", cwd=tmp_path) as command:
        server = command.serve(PYTHONPROFILEIMPORTTIME="1")
        _, said = server.communicate(timeout=120)
        assert server.returncode == 0, said
        assert command.wait() == 0, command.stderr()
    before, joined, after = said.partition("joined job ")
    assert joined and "| " in before
    late = [line.rpartition("|")[2].strip() for line in after.splitlines() if "|" in line]
    assert [name for name in late if name.startswith("torch")] == []

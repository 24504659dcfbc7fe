"""Two hosts cannot talk to each other any more, and no link is closed; both still reach the lead."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.machines import Machines
from tests.cluster.namespaces import Host, network
from tests.cluster.processes import SHOWN_ELSEWHERE, call, wait_until

_FOREVER = 1_000_000


@contextmanager
def job(machines: Machines, *flags: object, servers: int = 2) -> Iterator[list[Host]]:
    """A job whose servers and workers have a host each: the lead, the other servers, then the
    workers `a` and `b`."""
    with network(servers + 2) as hosts:
        lead, *others, near, far = hosts
        machines.start(
            *("train", lead, "train", "job.py", "--host", lead.address, "--port", 7000),
            *("--insecure", "--name", "run", "--servers", servers, "--local-servers", 1),
            *("--workers", 2, "--local-workers", 0, "--max-seconds", 400, *flags),
        )
        wait_until(lambda: machines.noted("server-joined"), "the lead is there")
        at = f"{lead.address}:7000"
        for count, host in enumerate(reversed(others), 2):  # the last number is given first
            address = ("--host", host.address, "--insecure")
            machines.start(f"server-{count}", host, "server", "--connect", at, *address)
            wait_until(lambda n=count: len(machines.noted("server-joined")) == n, "it has joined")
        for name, host in (("a", near), ("b", far)):
            machines.start(name, host, "worker", "job.py", "--connect", at, "--name", name)
        yield hosts


def rounds(machines: Machines) -> int:
    return max((line["round"] for line in machines.noted("rounds")), default=0)


def why(machines: Machines) -> str:
    return call("why", "run", cwd=machines.cwd).stdout


@pytest.mark.guarantee("silent-link", k=(0,))
@pytest.mark.parametrize(
    "sync",
    [
        "bsp",
        "asp",
        pytest.param("psp", marks=SHOWN_ELSEWHERE),
        pytest.param("fsp", marks=SHOWN_ELSEWHERE),
    ],
)
def test_a_worker_that_cannot_talk_to_a_server_is_excluded_until_it_can(
    machines: Machines, sync: str
) -> None:
    timer = () if sync in ("asp", "fsp") else ("--timer", "off")
    goal = ("--rounds", _FOREVER, "--min-step", "50ms")
    with job(machines, "--sync", sync, *timer, *goal) as (_, second, near, _):
        wait_until(lambda: rounds(machines) > 5, "they train")
        near.part_from(second)
        (cut_off,) = wait_until(lambda: machines.noted("cut-off"), "the worker is excluded")
        assert (cut_off["name"], cut_off["server"]) == ("a", 1)
        before = rounds(machines)
        wait_until(lambda: rounds(machines) > before + 5, "the other worker goes on")
        wait_until(
            lambda: "cut off: a and s1 have not reached" in why(machines), "why names the pair"
        )
        near.rejoin(second)
        (works,) = wait_until(lambda: machines.noted("link-works"), "the worker is linked again")
        assert (works["name"], works["server"]) == ("a", 1)
        wait_until(lambda: "2 workers at work" in why(machines), "it takes part again")
        assert machines.alive("a"), "it is the same process"


@pytest.mark.guarantee("silent-link", policies=("bsp",), k=(1,))
def test_a_server_that_no_worker_can_talk_to_is_replaced_by_its_copies(machines: Machines) -> None:
    goal = ("--rounds", _FOREVER, "--min-step", "50ms", "--timer", "off", "--replicas", 1)
    with job(machines, *goal, servers=3) as (_, second, _, near, far):
        wait_until(lambda: rounds(machines) > 5, "they train")
        near.part_from(second)
        far.part_from(second)
        (lost,) = wait_until(lambda: machines.noted("server-lost"), "the server is lost")
        assert (lost["server"], lost["reason"]) == (1, "server-cut-off")
        before = rounds(machines)
        wait_until(lambda: rounds(machines) > before + 5, "both workers go on")
        assert not machines.noted("cut-off")


@pytest.mark.guarantee("servers-silent", policies=("bsp",), k=(1,))
def test_of_two_servers_that_cannot_talk_one_is_lost(machines: Machines) -> None:
    goal = ("--rounds", _FOREVER, "--min-step", "50ms", "--timer", "off", "--replicas", 1)
    with job(machines, *goal, servers=3) as (_, second, third, _, _):
        wait_until(lambda: rounds(machines) > 5, "they train")
        second.part_from(third)
        (lost,) = wait_until(lambda: machines.noted("server-lost"), "one server is lost")
        assert (lost["server"], lost["reason"]) == (2, "servers-cut-off")
        before = rounds(machines)
        wait_until(lambda: rounds(machines) > before + 5, "the job goes on")


_SLOW = """
import os
import time

import torch


def main(worker):
    model = torch.nn.Linear(256, 800)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        model(torch.ones(2, 256)).sum().backward()
        optimizer.step(points=2)
        open(worker.name, "w").close()
        while not os.path.exists("slow"):
            time.sleep(0.01)
        time.sleep(5 if worker.name == "a" else 0)
"""


def test_a_slow_link_and_a_long_step_are_not_silence(machines: Machines) -> None:
    """While `b` sends its part of a contribution, and while `a` computes, more time passes than a
    silence may last."""
    (machines.cwd / "job.py").write_text(_SLOW)
    with job(machines, "--rounds", 2, "--timer", "off") as (_, second, _, _):
        done = [machines.cwd / name for name in ("a", "b")]
        wait_until(lambda: all(path.exists() for path in done), "both have contributed once")
        second.shape("600kbit", incoming=True)
        (machines.cwd / "slow").touch()
        assert machines.end_of("train") == 0, machines.said("train")
    assert not machines.noted("cut-off")
    assert {line["reason"] for line in machines.noted("left")} == {"done"}

"""Slices that move while a job trains: what workers and servers notice of it, and what a death in the
middle of a move costs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from polyrhythm.core.worker.pushes import Outstanding
from polyrhythm.sim.server.node import ServerProcess
from polyrhythm.sim.worker.node import WorkerProcess
from tests.sim.ledger import bookkeeping, run_booked, settle, stir
from tests.sim.staged_run import Run
from tests.sim.test_crash_points import Reaper

EVENT = '[[events]]\nat = "{at}ms"\nwhat = "{what}"\nserver = {server}\n'


def moving(
    sync: str, *, replicas: int = 0, kind: str = "gradient", bandwidth: str = "20Mbit"
) -> str:
    return f"""
        [job]
        sync = "{sync}"
        kind = "{"local" if sync == "psp" else kind}"
        interval = "40ms"
        timer = "off"
        servers = 3
        replicas = {replicas}
        max_time = "2s"
        points = 4000
        batch = 8
        model = "60kB"
        slice = "8kB"
        heartbeat = "50ms"
        limit = "20s"
        [link]
        delay = "1ms"
        bandwidth = "{bandwidth}"
        [[workers]]
        count = 2
        step = "10ms"
    """


def replace_all() -> str:
    """Two servers join, then the first two are drained, and come back."""
    events = [(300, "join", 3), (500, "join", 4), (700, "drain", 1), (705, "drain", 2)]
    return "".join(EVENT.format(at=at, what=what, server=number) for at, what, number in events)


@contextmanager
def counted() -> Iterator[list[Any]]:
    """The contributions of which workers have sent slices again because routes have changed."""
    found: list[Any] = []
    reroute = Outstanding.reroute

    def watched(outstanding: Outstanding, *given: Any) -> list[Any]:
        again = reroute(outstanding, *given)
        found.extend(again)
        return again

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outstanding, "reroute", watched)
        yield found


@pytest.mark.parametrize("bandwidth", ["2Mbit", "200Mbit"])
@pytest.mark.parametrize("sync", ["bsp", "psp", "fsp"])
def test_with_rounds_no_contribution_is_sent_twice(sync: str, bandwidth: str) -> None:
    with counted() as again:
        run = Run(moving(sync, bandwidth=bandwidth) + replace_all())
    assert {line["server"] for line in run.lines("drained")} == {1, 2}
    assert sum(sum(line["promoted"].values()) for line in run.lines("rerouted")) > 4
    assert not again


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_an_operator_is_told_when_a_server_has_left_or_why_it_cannot(sync: str) -> None:
    text = moving(sync)
    for number in (1, 1, 0):
        text += EVENT.format(at=500, what="drain", server=number) + 'operator = "anna@host"\n'
    run, _ = run_booked(text)
    answers = [operator.answers[-1].reason.code for operator in run.simulation.operators]
    assert answers == ["drained", "drained", "drain-lead"]
    assert len(run.lines("draining")) == 1, "it was asked for twice"


def test_a_server_that_gets_no_slice_does_no_harm() -> None:
    text = moving("bsp").replace('slice = "8kB"', 'slice = "60kB"')
    text += EVENT.format(at=300, what="join", server=3)
    text += EVENT.format(at=600, what="crash", server=3)
    run, _ = run_booked(text)
    assert [line.get("slices") for line in run.lines("server-joined")][-1] == 0
    assert [line["server"] for line in run.lines("server-lost")] == [3]
    assert run.end.reason.code == "goal"


@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize("victim", ["s1", "s2", "s3"])
def test_a_server_dies_after_any_effect_of_a_move(sync: str, victim: str) -> None:
    """s1 is drained, s3 joins, and every slice has a copy."""
    text = moving(sync, replicas=1).replace('max_time = "2s"', 'max_time = "0.35s"')
    text += EVENT.format(at=60, what="join", server=3) + EVENT.format(at=75, what="drain", server=1)
    tried = 0
    for after in range(1, 2000, 5):
        reaper = Reaper(victim, after)
        with bookkeeping(after, repeated=0.0) as books, pytest.MonkeyPatch.context() as patch:
            for kind in (ServerProcess, WorkerProcess):
                patch.setattr(kind, "EFFECTS", reaper.watch(kind))
            run = Run(text, seed=1, check=False)
        settle(run, books)
        assert run.end.reason.code == "goal", f"effect {after}: {run.end.reason}"
        if reaper.done < after:
            break
        tried += 1
    assert tried > 10


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_without_replicas_a_learner_may_die_after_any_effect(sync: str) -> None:
    """The job ends only if the server that has joined was the primary of a slice already."""
    text = moving(sync).replace('max_time = "2s"', 'max_time = "0.25s"')
    text += EVENT.format(at=60, what="join", server=3)
    ends = set()
    for after in range(1, 2000, 3):
        reaper = Reaper("s3", after)
        with bookkeeping(after, repeated=0.0) as books, pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServerProcess, "EFFECTS", reaper.watch(ServerProcess))
            run = Run(text, seed=1, check=False)
        promoted = any("s3" in line.get("promoted", {}) for line in run.lines("rerouting"))
        assert run.end.reason.code == ("server-died" if promoted else "goal") or not run.end.failed
        ends.add(run.end.reason.code)
        if not run.end.failed:
            settle(run, books)
        if reaper.done < after:
            break
    assert ends == {"goal", "server-died"}


@pytest.mark.parametrize("seed", [*range(6), 1018])
def test_rows_of_statistics_move_with_their_slices(seed: int) -> None:
    """The simulation checks the rows of every slice after every fold."""
    run = Run(stir("fsp" if seed % 2 else "bsp", seed, "statistics"), seed=seed)
    assert not run.end.failed or run.end.reason.code in ("server-died", "slices-lost")
    assert run.lines("drained") or run.lines("rerouted")

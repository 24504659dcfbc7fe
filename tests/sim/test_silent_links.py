"""Nothing passes between a worker and a server, or between two servers, although both can reach the
lead."""

import random
from itertools import pairwise

import pytest

from polyrhythm.core.liveness import judged_link_s
from tests.sim.staged_run import Run

SYNCS = ["bsp", "asp", "ssp:2", "psp", "fsp"]
JUDGED_S = judged_link_s(0.5)
JOB = """
[job]
sync = "{sync}"
epochs = {epochs}
points = 2000
batch = 10
servers = {servers}
replicas = {replicas}
model = "100kB"
slice = "10kB"
timer = "off"
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
count = {workers}
step = "50ms"
"""


def happen(
    *events: str, sync: str, workers: int = 3, servers: int = 2, replicas: int = 0, epochs: int = 4
) -> Run:
    """Run a job with these events, each written as 'time what worker-or-peer server'."""
    text = JOB.format(sync=sync, workers=workers, servers=servers, replicas=replicas, epochs=epochs)
    for event in events:
        at, what, other, server = event.split()
        end = f"peer = {other[1:]}" if other.startswith("s") else f'worker = "{other}"'
        text += f'[[events]]\nat = "{at}"\nwhat = "{what}"\n{end}\nserver = {server}\n'
    return Run(text)


def longest_gap_s(run: Run) -> float:
    at_s = [line["at_s"] for line in run.lines("rounds")]
    return max(after - before for before, after in pairwise(at_s))


@pytest.mark.guarantee("silent-link", k=(0,))
@pytest.mark.parametrize("sync", SYNCS)
def test_a_worker_without_a_link_to_a_server_is_excluded_and_comes_back(sync: str) -> None:
    run = happen("2s silence worker-1 1", "9s heal worker-1 1", sync=sync)
    assert not run.end.failed
    assert run.result["points"] == 8000
    (cut_off,) = run.lines("cut-off")
    assert (cut_off["name"], cut_off["server"]) == ("worker-1", 1)
    assert 2 + JUDGED_S <= cut_off["at_s"] < 2 + JUDGED_S + 1.1
    (works,) = run.lines("link-works")
    assert (works["name"], works["server"]) == ("worker-1", 1)
    assert 9 <= works["at_s"] < 12
    shares = run.result["per_worker"]
    assert shares["worker-1"]["points"] > 0


@pytest.mark.parametrize("sync", SYNCS)
def test_the_others_wait_no_longer_than_the_limit_for_a_cut_off_worker(sync: str) -> None:
    run = happen("2s silence worker-1 1", sync=sync)
    assert not run.end.failed
    assert run.result["points"] == 8000, "the others visit its points"
    assert longest_gap_s(run) < JUDGED_S + 1.1


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_short_silence_has_no_consequence(sync: str) -> None:
    run = happen("2s silence worker-1 1", "5s heal worker-1 1", sync=sync)
    assert run.result["points"] == run.weight() == 8000
    assert not run.lines("cut-off")
    assert {line["reason"] for line in run.lines("left")} == {"done"}


@pytest.mark.guarantee("silent-link", k=(1,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_server_that_most_workers_cannot_talk_to_is_lost_if_there_are_copies(
    sync: str, cut: int
) -> None:
    events = (f"2s silence worker-{number} 1" for number in range(cut))
    run = happen(*events, sync=sync, servers=3, replicas=1)
    assert not run.end.failed
    assert run.result["points"] == 8000
    lost = [(line["server"], line["reason"]) for line in run.lines("server-lost")]
    excluded = [line["name"] for line in run.lines("cut-off")]
    if cut == 1:
        assert (lost, excluded) == ([], ["worker-0"])
    else:
        assert (lost, excluded) == ([(1, "server-cut-off")], [])


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_without_copies_every_worker_is_excluded_and_the_job_says_so_and_waits(sync: str) -> None:
    pairs = [f"worker-{number} 1" for number in range(3)]
    events = [f"2s silence {pair}" for pair in pairs] + [f"12s heal {pair}" for pair in pairs]
    run = happen(*events, sync=sync)
    assert not run.end.failed
    assert run.result["points"] == 8000
    assert not run.lines("server-lost")
    waits = [line for line in run.lines("waiting") if line["reason"] == "links-cut"]
    assert waits[-1]["fields"] == {"workers": [0, 1, 2], "servers": [1]}
    assert waits[-1]["since_s"] > 8
    assert sorted(line["name"] for line in run.lines("link-works")) == [
        f"worker-{number}" for number in range(3)
    ]


@pytest.mark.parametrize(("replicas", "lost"), [(0, []), (1, [1])])
def test_the_only_worker_waits_for_its_link_or_goes_on_with_the_copies(
    replicas: int, lost: list[int]
) -> None:
    events = ("2s silence worker-0 1", "12s heal worker-0 1")
    run = happen(*events, sync="bsp", workers=1, servers=2, replicas=replicas, epochs=2)
    assert not run.end.failed
    assert run.result["points"] == 4000
    assert [line["server"] for line in run.lines("server-lost")] == lost


@pytest.mark.guarantee("servers-silent", k=(1,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize(("also", "lost"), [([], 2), (["worker-0", "worker-1"], 1)])
def test_of_two_servers_that_cannot_talk_the_one_with_more_broken_links_is_lost(
    sync: str, also: list[str], lost: int
) -> None:
    events = ["2s silence s2 1", *(f"2s silence {worker} 1" for worker in also)]
    run = happen(*events, sync=sync, servers=3, replicas=1)
    assert not run.end.failed
    assert run.result["points"] == 8000
    assert [line["server"] for line in run.lines("server-lost")] == [lost]
    assert not run.lines("cut-off")


@pytest.mark.parametrize("seed", range(12))
def test_a_job_survives_links_that_fall_silent_and_work_again(seed: int) -> None:
    """Pairs of workers and servers fall silent at random times and for random durations."""
    rng = random.Random(seed)
    replicas = rng.choice([0, 0, 1])
    events = []
    for worker in rng.sample(range(3), rng.randint(1, 3)):
        for server in rng.sample([1, 2], rng.randint(1, 2)):
            begins_s = rng.uniform(0.0, 8.0)
            ends_s = begins_s + rng.choice([rng.uniform(0.1, 4.0), rng.uniform(4.0, 20.0)])
            pair = f"worker-{worker} {server}"
            events += [(begins_s, "silence", pair), (ends_s, "heal", pair)]
    told = [f"{round(at_s * 1e3)}ms {what} {pair}" for at_s, what, pair in sorted(events)]
    run = happen(*told, sync=rng.choice(SYNCS), servers=3, replicas=replicas)
    assert not run.end.failed, run.end.reason
    assert run.result["points"] == 8000
    assert not [line for line in run.lines("left") if line["reason"] == "failed"]


@pytest.mark.parametrize("sync", SYNCS)
def test_a_worker_that_is_cut_off_at_the_end_does_not_hold_up_the_job(sync: str) -> None:
    """The link falls silent shortly before the worker reads the final version."""
    ended_s = happen(sync=sync, epochs=1).lines("ended")[0]["at_s"]
    for before_ms in (200, 60, 2):
        at_ms = round(ended_s * 1e3) - before_ms
        run = happen(f"{at_ms}ms silence worker-1 1", sync=sync, epochs=1)
        assert not run.end.failed
        assert run.lines("ended")[0]["at_s"] < ended_s + JUDGED_S + 1.5

"""`--optimizer-on workers` in the simulator: every worker makes every step, whoever joins, dies or
moves, and the servers get the parameters from a worker when they need them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.staged_run import Run
from tests.sim.test_aware_placement import RATES, scenario

JOB = """
[job]
sync = "bsp"
optimizer_on = "{where}"
timer = "off"
epochs = 6
points = 480
batch = 8
servers = 3
replicas = {replicas}
workers = 3
model = "3MB"
slice = "512kB"
save_model = true
heartbeat = "50ms"
{more}
[link]
delay = "200us"
bandwidth = "{bandwidth}"
[[workers]]
count = 4
step = "10ms"
step_lognormal = 0.3
"""
SOON = 'limit = "2min"'
"""A job that hangs is given up soon."""
EVENT = '[[events]]\nat = "{at}ms"\nwhat = "{what}"\n{who} = {number}\n'


def run(
    *events: tuple[str, int, int],
    where: str = "workers",
    replicas: int = 0,
    more: str = "",
    seed: int = 0,
    bandwidth: str = "1GB",
    slice_: str = "512kB",
) -> Run:
    """`events`: what happens, at which millisecond, and to which process: a server if the number is at
    least 100."""
    text = JOB.format(where=where, replicas=replicas, more=more, bandwidth=bandwidth)
    text = text.replace("512kB", slice_)
    for what, at, number in events:
        who, named = ("server", number - 100) if number >= 100 else ("worker", number)
        value = str(named) if who == "server" else f'"worker-{named}"'
        text += EVENT.format(at=at, what=what, who=who, number=value)
    return Run(text, seed=seed)


def assert_equal_steps(done: Run) -> int:
    """Every worker has made each version from the same sums. Returns how many versions were made by
    several workers."""
    found: dict[int, list[dict[int, frozenset[tuple[int, int, int]]]]] = {}
    workers = done.simulation.workers.values()
    slices = max(len(sums) for process in workers for sums in process.applied.values())
    for process in workers:
        for version, sums in process.applied.items():
            made = {s: frozenset(cargo) for s, (of, cargo) in sums.items() if of == version}
            # a worker that has just joined has read this version whole, and not made it
            if len(made) == slices:
                found.setdefault(version, []).append(made)
    for version, made in found.items():
        assert all(each == made[0] for each in made), f"version {version} differs"
    return sum(len(made) > 1 for made in found.values())


@pytest.mark.parametrize("seed", range(6))
def test_sums_are_sent_before_the_fold(seed: int) -> None:
    """With the optimizer on servers, rounds are longer, because no slice is sent while another one is
    on its way."""
    there, here = run(where="servers", seed=seed), run(seed=seed)
    assert assert_equal_steps(here) >= 20
    assert here.lines("ended")[0]["at_s"] < there.lines("ended")[0]["at_s"]


def test_pulls_overlap_pushes_on_slow_hosts() -> None:
    """With `--placement aware`, which takes this into account. Without it a round would take nearly
    twice as long, because a host can receive and send at the same time."""
    took_s = {}
    for where in ("servers", "workers"):
        job = f'optimizer_on = "{where}"\ntimer = "off"'
        done = Run(scenario(RATES, workers=3, rounds=25, job=job), check=where == "workers")
        took_s[where] = done.lines("ended")[0]["at_s"]
    assert_equal_steps(done)
    assert took_s["workers"] < 0.75 * took_s["servers"]


@pytest.mark.parametrize("at", [300, 2500, 4000])
def test_slices_move_while_their_sums_are_on_the_way(at: int) -> None:
    """Server 3 joins, and gets slices of server 2, whose host sends so slowly that the sums of a round
    arrive after the fold, and after the new routes."""
    slow = '[[hosts]]\nservers = [2]\noutgoing = "3MB"\nincoming = "30MB"\n'
    text = JOB.format(where="workers", replicas=0, more="", bandwidth="1GB", slice_="512kB") + slow
    for before, after in (("epochs = 6", "rounds = 8"), ("512kB", "128kB"), ("50ms", "1s")):
        text = text.replace(before, after)
    done = Run(text + EVENT.format(at=at, what="join", who="server", number=3))
    promoted = [line["promoted"] for line in done.lines("rerouted")]
    assert done.end.reason.code == "goal" and promoted and set().union(*promoted) == {"s3"}
    assert assert_equal_steps(done) == 7


@settings(max_examples=10, deadline=None)
@given(
    at=st.integers(50, 500),
    later=st.integers(0, 12),
    server=st.sampled_from([101, 102]),
    worker=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_whoever_dies_while_slices_are_pushed_all_workers_make_the_same_steps(
    at: int, later: int, server: int, worker: int, seed: int
) -> None:
    """A server that dies may have sent a sum to some workers and not to others. A worker that dies
    before it has sent its slices again is not in the new sum."""
    events = [("crash", at, server), ("crash", at + later, worker)]
    done = run(*events, replicas=1, seed=seed, bandwidth="100MB")
    assert done.end.reason.code == "goal" and done.lines("saved")
    assert assert_equal_steps(done) >= 10


@pytest.mark.parametrize("at", [318, 335, 454])
def test_a_server_dies_in_the_middle_of_a_fold(at: int) -> None:
    """The other servers have made the fold already. The server that takes its slices over adds up the
    sums of that fold, and not those of the next one."""
    done = run(("crash", at, 102), replicas=1, more=SOON, seed=at, bandwidth="20MB")
    assert done.end.reason.code == "goal"
    assert assert_equal_steps(done) >= 10


@pytest.mark.parametrize("at", [296, 312, 328])
def test_a_link_breaks_while_sums_are_on_their_way_and_another_server_is_lost(at: int) -> None:
    """The new routes let the worker connect again at once. The server does not send the sums again that
    were lost with the link, so the worker rejoins and reads the parameters."""
    text = JOB.format(where="workers", replicas=1, more=SOON, bandwidth="20MB", slice_="512kB")
    text += f'[[events]]\nat = "{at}ms"\nwhat = "cut"\nworker = "worker-1"\nserver = 1\n'
    done = Run(text + EVENT.format(at=at, what="crash", who="server", number=2), seed=at)
    assert done.end.reason.code == "goal"
    assert assert_equal_steps(done) >= 10


@pytest.mark.parametrize("at", [330, 420])
def test_a_server_dies_when_it_has_folded_only_some_of_its_slices(at: int) -> None:
    """The new primary of the others sends the sum of the round that is being folded, and after that
    the sum of the next round."""
    done = run(
        ("crash", at, 101), replicas=1, bandwidth="20MB", slice_="100kB", more='limit = "60s"'
    )
    assert done.end.reason.code == "goal" and done.lines("saved")
    assert assert_equal_steps(done) >= 10


def test_a_late_sum_does_not_replace_the_sum_of_the_next_round() -> None:
    """Two of four servers die. A server that joins takes over a slice from a slow server, which is still
    sending the sum of round 4. The worker has read this sum from the new server, and gets the sum of
    round 5 from it at once, because it is the only worker left."""
    job = """
        [job]
        sync = "bsp"
        optimizer_on = "workers"
        timer = "off"
        servers = 4
        replicas = 2
        model = "400kB"
        slice = "100kB"
        rounds = 8
        limit = "60s"
        placement = "elastic"
        [link]
        delay = "100us"
        bandwidth = "1Gbit"
        [[workers]]
        count = 2
        step = "10ms"
        [[hosts]]
        servers = [1]
        outgoing = "20Mbit"
        incoming = "20Mbit"
    """
    events = [("crash", 934, "server", 2), ("crash", 935, "server", 3), ("join", 953, "server", 4)]
    events.append(("crash", 935, "worker", '"worker-0"'))
    for what, at, who, number in events:
        job += EVENT.format(at=at, what=what, who=who, number=number)
    done = Run(job)
    assert done.end.reason.code == "goal" and done.lines("rerouted")[-1]["promoted"] == {"s4": 1}


def test_the_same_points_are_visited_as_with_the_optimizer_on_servers() -> None:
    there, here = run(where="servers"), run()
    assert here.end.reason.code == there.end.reason.code == "goal"
    assert here.result["points"] == there.result["points"] == 6 * 480
    assert here.lines("saved") and len(here.given()) == len(there.given())


@pytest.mark.parametrize("seed", range(8))
def test_workers_die_at_any_moment(seed: int) -> None:
    """Among them the one that shares the parameters."""
    done = run(("crash", 40 + 23 * seed, 0), ("crash", 90 + 31 * seed, 1), seed=seed)
    assert done.end.reason.code == "goal" and done.lines("saved")
    done.given()


@pytest.mark.parametrize("seed", range(8))
def test_checkpoints_and_the_death_of_their_sharer(seed: int) -> None:
    more = 'checkpoint_every = "3rounds"\nstore_rate = "2GB"'
    done = run(("crash", 60 + 11 * seed, 0), more=more, seed=seed)
    assert done.end.reason.code == "goal" and done.lines("saved")
    assert len(done.checkpoints) >= 5


@pytest.mark.parametrize("seed", range(8))
def test_a_server_dies_while_its_replicas_have_only_sums(seed: int) -> None:
    more = 'checkpoint_every = "3rounds"\nstore_rate = "2GB"'
    done = run(("crash", 50 + 13 * seed, 102), replicas=1, more=more, seed=seed)
    assert done.end.reason.code == "goal" and done.lines("saved")
    assert done.lines("server-lost")


def test_no_model_is_saved_when_every_worker_is_dead() -> None:
    done = run(*(("crash", 100, number) for number in range(4)))
    assert done.end.failed and not done.lines("saved")
    (line,) = done.lines("not-saved")
    assert line["reason"] == "state-lost"


def test_the_model_is_saved_though_a_worker_hangs_when_the_job_is_stopped() -> None:
    """A worker shares the last version that has it: the others leave before the one that hangs."""
    hangs = '[[events]]\nat = "100ms"\nwhat = "slow"\nworker = "worker-0"\nfactor = 1000\n'
    stops = '[[events]]\nat = "150ms"\nwhat = "end"\n'
    text = JOB.format(where="workers", replicas=0, more="", bandwidth="1GB", slice_="512kB")
    text += hangs + stops + EVENT.format(at=10_500, what="crash", who="worker", number='"worker-0"')
    done = Run(text)
    assert done.end.reason.code == "stopped" and done.lines("saved")


def test_a_model_whose_last_copy_dies_while_it_is_saved_is_given_up_at_once() -> None:
    """The workers have left, and the replicas have only sums."""
    begun_s = run(replicas=1).lines("saving")[0]["at_s"]
    text = JOB.format(where="workers", replicas=1, more="", bandwidth="1GB", slice_="512kB")
    crash = f'[[events]]\nat = "{begun_s * 1e6 + 500:.0f}us"\nwhat = "crash"\nserver = 2\n'
    done = Run(text + crash)
    (line,) = done.lines("not-saved")
    assert line["reason"] == "state-lost" and line["at_s"] < begun_s + 10 and done.end.failed


def test_no_fold_passes_a_version_that_is_being_shared() -> None:
    done = run(("leave", 100, 3), more='checkpoint_every = "2rounds"\nstore_rate = "2GB"')
    rounds = [record.round for record in done.checkpoints]
    assert rounds == sorted(rounds) and len(rounds) >= 8

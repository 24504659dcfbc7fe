"""Workers that crash, are stopped and continued, leave, slow down or join late."""

import pytest

from polyrhythm.core.worker.leaving import SETTLE_NS
from tests.sim.staged_run import Run

SYNCS = ["bsp", "asp", "ssp:0", "ssp:3", "ssp-restart:2", "psp", "fsp"]
JOB = """
[job]
epochs = 2
points = {points}
batch = 10
servers = 2
model = "100kB"
timer = "{timer}"
heartbeat = "{heartbeat}"
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
count = 3
step = "10ms"
"""


def happen(
    *events: str,
    timer: str = "auto",
    heartbeat: str = "500ms",
    points: int = 2000,
    workers: str = "",
) -> Run:
    """Run the job with these events, each written as 'time what worker [factor]'."""
    text = JOB.format(timer=timer, heartbeat=heartbeat, points=points) + workers
    for event in events:
        at, what, worker, *factor = event.split()
        text += f'[[events]]\nat = "{at}"\nwhat = "{what}"\nworker = "{worker}"\n'
        text += f"factor = {factor[0]}\n" if factor else ""
    return Run(text)


@pytest.mark.parametrize("at", ["1ms", "200ms", "203ms", "205ms", "211ms", "213ms"])
def test_a_crashed_worker_is_not_waited_for_and_other_workers_visit_its_points(at: str) -> None:
    run = happen(f"{at} crash worker-1")
    assert not run.end.failed
    assert run.result["points"] == 4000
    if at == "1ms":  # the hello may be in flight at the crash: then the worker joins and is removed
        assert len(run.lines("joined")) in (2, 3)
        return
    (left,) = run.lines("left")[:1]
    at_s = float(at.removesuffix("ms")) / 1e3
    assert left["name"] == "worker-1"
    assert left["at_s"] == pytest.approx(at_s + 0.001, abs=2e-5), "one link delay after the crash"


def test_after_a_crash_during_a_push_only_some_slices_have_the_contribution() -> None:
    """Slices that the worker had sent before the crash arrive, and the others do not. A round takes
    about 30 ms here, and pushing takes a third of it."""
    mixed = 0
    for at_ms in range(200, 230, 3):
        run = Run(
            f"""
            [job]
            rounds = 12
            model = "1MB"
            slice = "100kB"
            [link]
            bandwidth = "100MB"
            [[workers]]
            count = 2
            step = "10ms"
            [[events]]
            at = "{at_ms}ms"
            what = "crash"
            worker = "worker-1"
            """
        )
        assert not run.end.failed
        memory = run.simulation.servers[0].memory
        assert memory is not None
        mixed += len({len(contents) for contents in memory.contents.values()}) > 1
    assert 0 < mixed < 10


def test_a_stopped_worker_that_continues_contributes_the_step_that_it_was_in() -> None:
    run = happen("300ms stop worker-2", "1500ms continue worker-2", timer="0.2s")
    assert not run.end.failed
    timers = [line for line in run.lines("rounds") if line["reason"] == "timer"]
    assert timers, "the other workers continued without it"
    assert not [line for line in run.lines("left") if line["reason"] != "done"]
    assert run.result["points"] == run.weight() == 4000, "no point is lost or counted twice"
    shares = run.result["per_worker"]
    assert shares["worker-2"]["compute_s"] > 1.1, (
        "the time in which it was stopped makes its step longer"
    )
    assert shares["worker-2"]["contributions"] <= shares["worker-0"]["contributions"]


def test_without_a_timer_all_workers_wait_for_a_stopped_one() -> None:
    run = happen("300ms stop worker-2", "1500ms continue worker-2", timer="off")
    assert {line["reason"] for line in run.lines("rounds")} <= {"opened", "all-arrived"}
    assert run.result["per_worker"]["worker-0"]["wait_s"] > 1.1
    assert max(line["longest_s"] for line in run.lines("rounds")) > 1.2


def test_a_stopped_worker_leaves_after_it_continues() -> None:
    run = happen("300ms stop worker-2", "310ms leave worker-2", "800ms continue worker-2")
    left = next(line for line in run.lines("left") if line["name"] == "worker-2")
    assert left["reason"] == "told-to-leave"
    assert 0.8 < left["at_s"] < 0.85, "after the step in which it was stopped"


def test_a_contribution_that_was_sent_before_a_stop_arrives() -> None:
    """The worker is stopped while its contribution is in flight. The contribution arrives, and the
    round closes with it."""
    run = happen("0.3s stop worker-2", "5s continue worker-2", timer="1s")
    stopped_s = 0.3
    rounds = run.lines("rounds")
    assert rounds[-1]["at_s"] > stopped_s
    assert run.result["points"] == 4000


def test_a_worker_that_leaves_loses_no_points() -> None:
    run = happen("500ms leave worker-0")
    left = run.lines("left")[0]
    assert (left["name"], left["reason"]) == ("worker-0", "told-to-leave")
    assert 0.5 < left["at_s"] < 0.55, "after the round in which it was told to leave"
    assert run.result["points"] == run.weight() == 4000


def test_a_leaving_worker_waits_for_a_slow_round_only_until_its_deadline() -> None:
    run = happen("500ms slow worker-1 600", "520ms leave worker-0")
    left = run.lines("left")[0]
    assert left["name"] == "worker-0"
    settled_s = 0.52 + SETTLE_NS / 1e9
    assert left["at_s"] == pytest.approx(settled_s, abs=0.05), (
        "the deadline of its unacknowledged contribution"
    )
    assert run.result["points"] == run.weight() == 4000


def test_a_leaving_worker_leaves_when_its_last_contribution_is_acknowledged() -> None:
    run = happen("500ms slow worker-1 100", "520ms leave worker-0")
    left = run.lines("left")[0]
    folded_s = next(line["at_s"] for line in run.lines("rounds") if line["at_s"] > 0.53)
    assert 0.5 < left["at_s"] - 0.52 < SETTLE_NS / 1e9, "the round ends before the deadline"
    assert left["at_s"] == pytest.approx(folded_s, abs=0.01), "it leaves when the round is folded"
    assert run.result["points"] == run.weight() == 4000


def test_a_worker_that_has_not_begun_leaves_at_once() -> None:
    run = happen("3ms leave worker-0")
    (left,) = (line for line in run.lines("left") if line["name"] == "worker-0")
    assert left["at_s"] == pytest.approx(0.004, abs=1e-4)
    assert run.result["points"] == 4000


def test_the_event_slow_makes_later_steps_longer() -> None:
    plain, slowed = happen(), happen("300ms slow worker-1 4.0")
    compute_s = slowed.result["per_worker"]["worker-1"]["compute_s"]
    assert compute_s > 2 * plain.result["per_worker"]["worker-1"]["compute_s"]
    assert slowed.result["seconds"] > 2 * plain.result["seconds"]


def test_a_late_worker_joins_and_takes_its_share() -> None:
    run = happen(workers='[[workers]]\nname = "late"\nstep = "10ms"\njoin = "200ms"\n')
    joined = next(line for line in run.lines("joined") if line["name"] == "late")
    assert joined["at_s"] == pytest.approx(0.201, abs=1e-4)
    shares = run.result["per_worker"]
    assert shares["late"]["points"] >= 500, "a quarter of the points, at least in the second pass"
    assert run.result["points"] == run.weight() == 4000


def test_a_dead_worker_rejoins_under_its_name() -> None:
    run = happen("300ms crash worker-1", "400ms join worker-1")
    assert [line["name"] for line in run.lines("rejoined")] == ["worker-1"]
    assert run.result["points"] == 4000
    assert run.simulation.workers["worker-1"].machine.incarnation > 3


def test_a_second_worker_with_a_name_in_use_is_refused() -> None:
    run = happen("300ms join worker-1")
    (refused,) = run.lines("refused")
    assert (refused["reason"], refused["fields"]) == ("name-taken", {"name": "worker-1"})
    assert run.result["points"] == 4000
    assert run.simulation.workers["worker-1"].failure is None


def test_a_job_whose_workers_are_all_dead_fails() -> None:
    run = happen(*(f"500ms crash worker-{number}" for number in range(3)))
    assert run.end.failed
    assert run.end.reason.code == "deserted"


def test_a_worker_that_is_silent_for_too_long_is_evicted_and_rejoins() -> None:
    run = happen("1s stop worker-2", "4s continue worker-2", heartbeat="100ms", points=8000)
    (evicted,) = run.lines("evicted")
    assert evicted["name"] == "worker-2"
    assert 1.3 < evicted["at_s"] < 2.5, "about three heartbeats, and half a second for the network"
    (rejoined,) = run.lines("rejoined")
    assert rejoined["name"] == "worker-2"
    assert rejoined["at_s"] > 4
    assert run.result["points"] == 16_000
    worker = run.simulation.workers["worker-2"]
    assert worker.failure is None
    assert worker.machine.incarnation > 3


def test_a_short_silence_does_not_evict_a_worker() -> None:
    run = happen("1s stop worker-2", "1.2s continue worker-2", heartbeat="100ms", points=5000)
    assert not run.lines("evicted")
    assert run.result["points"] == run.weight() == 10_000


@pytest.mark.guarantee("lead-stopped", k=(1,))
@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:3"])
@pytest.mark.parametrize("stop_s", [1, 3, 12, 60])
def test_a_lead_that_is_stopped_suspects_no_worker_when_it_wakes(sync: str, stop_s: int) -> None:
    """Steps take 3 s and messages are delayed, so the lead receives hardly anything but heartbeats
    from the workers."""
    run = Run(
        f"""
        [job]
        sync = "{sync}"
        rounds = 15
        servers = 3
        replicas = 1
        timer = "off"
        heartbeat = "500ms"
        [link]
        delay = "5ms"
        loss = 0.2
        timeout = "30ms"
        [[workers]]
        count = 4
        step = "3s"
        [[events]]
        at = "20s"
        what = "stop"
        server = 0
        [[events]]
        at = "{20 + stop_s}s"
        what = "continue"
        server = 0
        """
    )
    assert not run.end.failed
    assert [run.lines(what) for what in ("evicted", "server-lost", "server-silent")] == [[], [], []]
    if stop_s > 1:
        (paused,) = run.lines("lead-paused")
        assert paused["seconds"] == pytest.approx(stop_s, abs=0.5)


@pytest.mark.guarantee("worker-killed", k=(0,))
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("seed", range(4))
def test_many_faults_at_once(sync: str, seed: int) -> None:
    """The run must end without a failed check, and every point must be visited."""
    run = Run(
        f"""
        [job]
        sync = "{sync}"
        kind = "local"
        interval = "25ms"
        coordination = "{("semi", "central")[seed % 2]}"
        epochs = 2
        points = 1000
        batch = 7
        servers = 3
        model = "200kB"
        slice = "40kB"
        timer = "{("off", "100ms", "auto")[seed % 3]}"
        heartbeat = "50ms"
        [link]
        delay = "2ms"
        bandwidth = "200Mbit"
        loss = 0.02
        timeout = "30ms"
        [[workers]]
        count = 4
        step = "8ms"
        step_noise = 0.5
        [[workers]]
        step = "30ms"
        step_noise = 0.3
        join = "250ms"
        """
        + "".join(
            f'[[events]]\nat = "{at}"\nwhat = "{what}"\nworker = "worker-{worker}"\n'
            for at, what, worker in (
                (f"{40 + seed}ms", "crash", 0),
                ("300ms", "join", 0),
                ("350ms", "stop", 1),
                (f"{400 + 7 * seed}ms", "crash", 2),
                ("600ms", "continue", 1),
                ("700ms", "leave", 3),
                ("750ms", "stop", 4),
                ("900ms", "join", 2),
                ("2s", "continue", 4),
            )
        ),
        seed=seed,
    )
    assert not run.end.failed
    assert run.result["points"] == 2000


def test_a_stopped_server_reads_the_messages_of_a_dead_worker_when_it_continues() -> None:
    text = JOB.format(timer="off", heartbeat="30s", points=2000).replace('"10ms"', '"100ms"')
    for at, what, process in (
        ("350ms", "stop", "server = 1"),
        ("480ms", "crash", 'worker = "worker-1"'),
        ("700ms", "continue", "server = 1"),
    ):
        text += f'[[events]]\nat = "{at}"\nwhat = "{what}"\n{process}\n'
    run = Run(text)
    found = [
        {slice_: sum(given[0] == 1 for given in contents) for slice_, contents in held.items()}
        for server in run.simulation.servers
        if server.memory is not None and (held := server.memory.contents)
    ]
    counts = {count for per_slice in found for count in per_slice.values()}
    assert len(found) == 2 and counts == {4}, found


ALONE = """
[job]
sync = "{sync}"
epochs = 2
points = 400
batch = 10
servers = 2
model = "100kB"
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
step = "10ms"
[[events]]
at = "{at}ms"
what = "cut"
worker = "worker-0"
server = 1
"""


@pytest.mark.parametrize("at", [100, 103, 106, 109])
@pytest.mark.parametrize("sync", SYNCS)
def test_the_only_worker_rejoins_after_its_link_to_a_server_was_cut(sync: str, at: int) -> None:
    run = Run(ALONE.format(sync=sync, at=at))
    assert not run.end.failed, run.end.reason
    (left,) = run.lines("left")[:1]
    assert left["reason"] == "link-lost" and left["fields"]["peer"] == "s1"
    assert len(run.lines("rejoined")) == 1
    assert run.result["points"] == 800

"""Runs of scenarios: the decisions of the machines, and how long everything takes in virtual
time."""

from itertools import pairwise
from pathlib import Path

import pytest

from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.placement.schemes import Lines
from polyrhythm.errors import InvariantBroken, JobFailed
from polyrhythm.observe.state import history_of
from polyrhythm.sim.scenario import read_scenario
from polyrhythm.sim.worker.node import WorkerProcess
from polyrhythm.wire.messages import Route, SliceStep
from tests.sim.staged_run import Run

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PLAIN = """
[job]
epochs = 2
points = 1000
batch = 10
servers = 2
model = "100kB"
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
count = 3
step = "10ms"
step_noise = 0.2
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_run_reaches_its_goal_and_visits_every_point_once_a_pass(seed: int) -> None:
    run = Run(PLAIN, seed=seed)
    assert run.end.reason.code == "goal" and not run.end.failed
    assert run.result["points"] == run.weight() == 2000
    assert run.result["passes"] == 2
    assert len(run.given()) == run.result["contributions"]
    assert run.lines("ended")[0]["folds"].keys() == {0, 1}


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_the_history_of_a_short_job_has_a_row_per_pass(sync: str) -> None:
    """A line about rounds is written once a second; five passes of this job take less."""
    text = PLAIN.replace("epochs = 2", f'epochs = 5\nsync = "{sync}"').replace("10ms", "2ms")
    run = Run(text)
    assert run.journal.lines[-1]["at_s"] < 1.5
    rows = history_of(run.journal.lines)
    passes = [row for row in rows if row["what"] == "pass"]
    assert [row["passes"] for row in passes] == [1, 2, 3, 4, 5]
    assert [row["points"] for row in passes] == sorted(row["points"] for row in passes)
    assert passes[-1]["points"] == pytest.approx(5000, rel=0.05)


def test_tiny_passes_do_not_fill_the_journal() -> None:
    text = PLAIN.replace("epochs = 2\npoints = 1000", "epochs = 500\npoints = 10")
    run = Run(text.replace("10ms", "10us").replace("1ms", "10us"))
    at_s = [line["at_s"] for line in run.lines("passed")]
    assert 1 < len(at_s) < 500
    assert all(later - sooner >= 0.01 for sooner, later in pairwise(at_s[:-1]))


def test_a_seed_gives_a_run() -> None:
    first, again, other = (Run(PLAIN, seed=seed, check=False) for seed in (1, 1, 2))
    assert first.journal.lines == again.journal.lines
    assert first.journal.lines != other.journal.lines


def test_checking_changes_nothing() -> None:
    assert Run(PLAIN, check=True).journal.lines == Run(PLAIN, check=False).journal.lines


def test_time_is_what_the_model_says() -> None:
    """A round of one worker and one slice consists of a step, a push, a fold and a publication,
    each of known duration."""
    run = Run(
        """
        [job]
        rounds = 10
        model = "1MB"
        fold_rate = "1GB"
        [link]
        delay = "3ms"
        bandwidth = "100MB"
        [[workers]]
        step = "50ms"
        """
    )
    frame_ns = (10**6 + 128) * 10
    step_ns, delay_ns, fold_ns = 50 * 10**6, 3 * 10**6, 10**6
    trailer_ns = release_ns = 1280
    # the trailer is sent after the slice, and the release after the version
    push_ns = frame_ns + trailer_ns + delay_ns
    round_ns = step_ns + push_ns + fold_ns + frame_ns + delay_ns + release_ns
    assert run.result["seconds"] == pytest.approx(10 * round_ns / 1e9, abs=round_ns / 5e9)
    shares = run.result["per_worker"]["worker-0"]
    assert shares["compute_s"] == pytest.approx(0.5)
    assert shares["transfer_s"] == pytest.approx(9 * 2 * frame_ns / 1e9, rel=0.01)


def test_under_bsp_the_fast_wait_for_the_slow() -> None:
    run = Run(
        """
        [job]
        rounds = 20
        [[workers]]
        count = 3
        step = "10ms"
        [[workers]]
        step = "40ms"
        """
    )
    shares = run.result["per_worker"]
    assert shares["worker-3"]["wait_s"] < 0.1 * shares["worker-0"]["wait_s"]
    assert shares["worker-0"]["compute_s"] == pytest.approx(0.2)
    assert shares["worker-3"]["compute_s"] == pytest.approx(0.8)
    assert {w["contributions"] for w in shares.values()} == {20}


def test_local_steps_make_contributions_of_several_batches() -> None:
    run = Run(
        """
        [job]
        epochs = 1
        points = 100
        batch = 10
        kind = "local"
        local_steps = 4
        [[workers]]
        step = "10ms"
        """
    )
    assert run.result["contributions"] == 3, "4, 4 and the rest of 2 batches"
    assert run.result["per_worker"]["worker-0"]["compute_s"] == pytest.approx(0.1)
    assert run.result["points"] == 100


def test_an_outer_optimizer_and_equal_weights_change_no_decision() -> None:
    text = """
        [job]
        rounds = 6
        batch = 10
        kind = "local"
        local_steps = 4
        servers = 2
        replicas = 1
        {more}
        [[workers]]
        count = 2
        step = "10ms"
        [[workers]]
        step = "15ms"
        """
    plain = Run(text.format(more=""))
    outer = Run(text.format(more="outer = 'nesterov'\nweights = 'workers'"))
    assert plain.weight() == 6 * 3 * 40
    assert outer.weight() == 6 * 3
    for result in ("rounds", "contributions", "points", "seconds"):
        assert outer.result[result] == plain.result[result]


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_quantised_pushes_take_less_time_on_a_slow_link(sync: str) -> None:
    """A model of 4 MB at 10 MB/s: a pull takes 0.4 s, an exact push too, a quantised one 0.1 s."""
    text = """
        [job]
        sync = "{sync}"
        rounds = 10
        batch = 10
        model = "4MB"
        push = "{push}"
        [link]
        bandwidth = "10MB"
        [[workers]]
        step = "10ms"
        """
    exact = Run(text.format(sync=sync, push="exact"))
    int8 = Run(text.format(sync=sync, push="int8"))
    assert exact.result["contributions"] == int8.result["contributions"] == 10
    assert exact.result["bytes_pushed"] == 10 * 4e6
    assert int8.result["bytes_pushed"] == pytest.approx(10 * 4e6 * 260 / 1024, rel=0.001)
    saved_s = exact.result["seconds"] - int8.result["seconds"]
    assert saved_s == pytest.approx(10 * 0.4 * (1 - 260 / 1024), rel=0.15)


def test_replicas_get_quantised_contributions_without_rounds() -> None:
    text = """
        [job]
        sync = "asp"
        rounds = 10
        batch = 10
        model = "4MB"
        push = "{push}"
        servers = 2
        replicas = 1
        [link]
        bandwidth = "10MB"
        [[workers]]
        step = "10ms"
        """
    exact, int8 = (Run(text.format(push=push)) for push in ("exact", "int8"))
    assert int8.result["contributions"] == 10 and int8.given() == exact.given()
    assert int8.result["seconds"] < 0.75 * exact.result["seconds"]


def test_without_points_workers_contribute_all_the_same() -> None:
    run = Run("[job]\nrounds = 5\nbatch = 8\n[[workers]]\ncount = 2\nstep = '1ms'\n")
    assert run.result["contributions"] == 10
    assert run.weight() == 80


@pytest.mark.parametrize("name", ["two-speed", "straggler", "a-silence", "a-death", "a-join"])
def test_the_scenarios_of_this_repository(name: str) -> None:
    run = Run((SCENARIOS / f"{name}.toml").read_text())
    assert run.end.reason.code == "goal" and not run.end.failed
    job = read_scenario(SCENARIOS / f"{name}.toml").job
    if job.epochs is not None and job.points is not None:
        assert run.result["points"] == job.epochs * job.points


def test_a_run_that_cannot_go_on_says_what_every_process_waits_for() -> None:
    """The only worker dies before its first frame has left."""
    with pytest.raises(JobFailed) as caught:
        Run(
            """
            [job]
            rounds = 100
            [[workers]]
            step = "10ms"
            [[events]]
            at = "0s"
            what = "crash"
            worker = "worker-0"
            """
        )
    assert "cannot go on" in str(caught.value)
    assert "lead: waiting for 1 more worker" in str(caught.value)


def test_a_run_past_its_limit_is_given_up_and_says_so_too() -> None:
    """The only worker is stopped and never continues. Heartbeats are still scheduled, so the
    simulation never runs out of events, and ends only at its limit."""
    with pytest.raises(JobFailed) as caught:
        Run(
            """
            [job]
            rounds = 100
            limit = "5min"
            [[workers]]
            step = "10ms"
            [[events]]
            at = "500ms"
            what = "stop"
            worker = "worker-0"
            """
        )
    assert "does not end within 300 s" in str(caught.value)
    assert "lead: " in str(caught.value) and "worker-0: " in str(caught.value)


def test_a_contribution_added_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ledger a repeated contribution is folded twice, and the simulated memory notices
    it."""
    from polyrhythm.core.server.slices import HeldSlices, Verdict
    from polyrhythm.sim.model.link import Channel
    from polyrhythm.wire.messages import Contribution

    send = Channel.send

    def send_twice(way: Channel, message: object, nbytes: int = 0) -> int:
        if isinstance(message, Contribution):
            send(way, message, nbytes)
        return send(way, message, nbytes)  # type: ignore[arg-type]

    monkeypatch.setattr(Channel, "send", send_twice)
    assert Run(PLAIN).result["points"] == 2000, "the ledger knows what it has"
    monkeypatch.setattr(HeldSlices, "judge", lambda *_: Verdict.NEW)
    with pytest.raises(InvariantBroken, match="twice"):
        Run(PLAIN)


def test_a_version_overwritten_under_its_reader_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without leases a fold overwrites a version that a slow link still reads."""
    from polyrhythm.core.server.leases import Versions

    text = """
    [job]
    rounds = 10
    timer = "100ms"
    model = "1MB"
    [[workers]]
    count = 2
    step = "10ms"
    [[workers]]
    step = "10ms"
    link = {bandwidth = "1MB"}
    """
    assert not Run(text).end.failed
    monkeypatch.setattr(Versions, "leased", lambda *_: False)
    with pytest.raises(InvariantBroken, match="that w2 was reading"):
        Run(text)


LEAVING = """
    [job]
    sync = "psp"
    kind = "local"
    push = "int8"
    timer = "20ms"
    epochs = 6
    points = 718
    batch = 16
    model = "100kB"
    slice = "40kB"
    [link]
    delay = "1ms"
    bandwidth = "200Mbit"
    [[workers]]
    count = 2
    step = "8ms"
    step_noise = 0.4
    [[workers]]
    step = "3ms"
    step_pareto = 2.0
    link = {delay = "2ms", bandwidth = "5Mbit"}
    [[events]]
    at = "AT_MSms"
    what = "leave"
    worker = "worker-2"
"""
"""Under psp a worker goes on with its steps while a version is on its way to it. If the worker
leaves at that time, it contributes these steps at once. Sending the version takes 160 ms, and
sending the contribution a quarter of that."""


@pytest.mark.parametrize("at_ms", range(190, 290, 10))
def test_a_version_stays_as_it_is_while_it_is_sent_to_a_worker_that_leaves(at_ms: int) -> None:
    run = Run(LEAVING.replace("AT_MS", str(at_ms)), seed=at_ms)
    assert run.end.reason.code == "goal" and run.result["points"] == 6 * 718


FAILING = """
    [job]
    sync = "SYNC"
    kind = "KIND"
    interval = "20ms"
    timer = "40ms"
    epochs = 1
    points = 718
    batch = 16
    servers = 2
    replicas = 1
    model = "100kB"
    slice = "10kB"
    heartbeat = "50ms"
    [link]
    delay = "1ms"
    bandwidth = "200Mbit"
    [[workers]]
    count = 2
    step = "8ms"
    step_noise = 0.4
    [[workers]]
    step = "3ms"
    link = {delay = "2ms", bandwidth = "2Mbit"}
    [[events]]
    at = "AT_MSms"
    what = "crash"
    server = 1
"""
"""A version takes 400 ms on its way to the slow worker. When a server is lost, the worker asks the other
server for parameters again."""


@pytest.mark.parametrize("at_ms", range(200, 600, 80))
@pytest.mark.parametrize(
    ("sync", "kind"), [("bsp", "gradient"), ("fsp", "local"), ("psp", "local")]
)
def test_a_version_stays_as_it_is_while_it_is_sent_to_a_worker_that_asks_again(
    sync: str, kind: str, at_ms: int
) -> None:
    text = FAILING.replace("SYNC", sync).replace("KIND", kind).replace("AT_MS", str(at_ms))
    assert Run(text, seed=at_ms).end.reason.code == "goal"


def test_a_report_that_is_not_true_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrhythm.sim.server.slice_store import SimSliceStore

    add = SimSliceStore.add

    def lose_it(memory: SimSliceStore, message: object) -> object:
        event = add(memory, message)  # type: ignore[arg-type]
        for added in memory._added.values():
            added.clear()
        return event

    monkeypatch.setattr(SimSliceStore, "add", lose_it)
    with pytest.raises(InvariantBroken, match="does not have it"):
        Run(PLAIN)


def test_a_promise_that_is_not_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold leaves contributions for the next round although they were complete when the fold was
    decided."""
    from polyrhythm.sim.server.slice_store import SimSliceStore

    fold = SimSliceStore._fold_slice

    def fold_all_but_one(memory: SimSliceStore, slice_: int, slot: int, step: SliceStep) -> None:
        left = memory._added[slice_][1:]
        del memory._added[slice_][1:]
        fold(memory, slice_, slot, step)
        memory._added[slice_].extend(left)

    monkeypatch.setattr(SimSliceStore, "_fold_slice", fold_all_but_one)
    with pytest.raises(InvariantBroken, match="complete when round 1 was decided"):
        Run(PLAIN)


def test_a_machine_that_asks_to_be_woken_for_ever_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from polyrhythm.core.lead.machine import LeadMachine

    monkeypatch.setattr(LeadMachine, "wake_at", lambda _: 2 * 10**9)
    with pytest.raises(InvariantBroken, match="woken"):
        Run(PLAIN)


def test_workers_count_their_contributions() -> None:
    run = Run(PLAIN)
    worker = run.simulation.workers["worker-0"]
    assert isinstance(worker, WorkerProcess)
    assert worker.contributions == run.result["per_worker"]["worker-0"]["contributions"]
    assert worker.failure is None


def test_the_lead_computes_target_routes_only_if_routes_or_servers_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed = 0
    propose = RoutingTable.propose

    def watched(routing: RoutingTable, lines: Lines) -> tuple[Route, ...]:
        nonlocal computed
        computed += 1
        return propose(routing, lines)

    monkeypatch.setattr(RoutingTable, "propose", watched)
    Run(
        """
        [job]
        rounds = 20
        servers = 3
        replicas = 1
        model = "6kB"
        slice = "1kB"
        [[workers]]
        count = 2
        step = "10ms"
        """
    )
    assert 1 <= computed <= 3

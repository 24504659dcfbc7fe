"""Checkpoints in the simulator: all slices of a cut have the same contributions, under every
policy."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.record import Record
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.observe.summary import summarise
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.scenario import parse_scenario
from polyrhythm.sim.simulation import Simulation
from polyrhythm.sim.worker.node import WorkerProcess
from tests.sim.staged_run import Run

POLICIES = ["bsp", "bspb", "bspv", "ssp:2", "ssp-restart:2", "asp", "psp", "fsp"]
JOB = """
[job]
sync = "{sync}"
epochs = {epochs}
points = 480
batch = 8
servers = 3
workers = {workers}
model = "3MB"
slice = "512kB"
min_batch = 1
checkpoint_every = "{every}"
store_rate = "2GB"
{more}
[link]
delay = "200us"
bandwidth = "1GB"
"""
WORKER = """
[[workers]]
step = "{step}ms"
step_lognormal = {jitter}
"""


def epochs_of(sync: str) -> int:
    """The number of passes of a job. Under bspb a round is a whole pass, so a job needs more
    passes."""
    return 12 if sync == "bspb" else 2


def run(
    sync: str,
    every: str,
    steps: list[int],
    *,
    jitter: float = 0.3,
    seed: int = 0,
    more: str = "",
    events: str = "",
) -> Run:
    epochs = epochs_of(sync)
    text = JOB.format(sync=sync, epochs=epochs, every=every, workers=len(steps), more=more)
    text += "".join(WORKER.format(step=step, jitter=jitter) for step in steps)
    return Run(text + events, seed=seed)


def checkpoints(run: Run) -> list[tuple[Record, dict[int, Any]]]:
    checker = run.simulation._checker
    assert checker is not None
    return checker.checkpoints


def visited(record: Record) -> int:
    return sum((c.last - c.first) * c.passes + c.cursor for c in record.chunks)


def check_cuts(run: Run) -> int:
    """Every cut has the same contributions in all slices, and the record counts exactly those."""
    found = checkpoints(run)
    for record, slices in found:
        contents = {contents for contents, _ in slices.values()}
        assert len(contents) == 1, f"checkpoint {record.number}: slices differ"
        assert {weight for _, weight in slices.values()} == {visited(record)}
    return len(found)


@pytest.mark.guarantee("checkpoint-whole", k=(0,))
@pytest.mark.parametrize("every", ["20ms", "2rounds"])
@pytest.mark.parametrize("sync", POLICIES)
def test_every_slice_of_a_cut_has_the_contributions_that_the_record_counts(
    sync: str, every: str
) -> None:
    finished = run(sync, every, [2, 3, 7])
    assert finished.end.reason.code == "goal"
    assert check_cuts(finished) >= 2
    assert not finished.lines("checkpoint-failed")
    numbers = [line["number"] for line in finished.lines("checkpoint")]
    assert numbers == sorted(set(numbers))


@settings(max_examples=15, deadline=None)
@given(
    sync=st.sampled_from(POLICIES),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    every=st.sampled_from(["5ms", "17ms", "1rounds", "3rounds"]),
    jitter=st.sampled_from([0.0, 0.3, 0.8]),
    seed=st.integers(0, 10_000),
)
def test_cuts_hold_whole_contributions_whatever_the_speeds(
    sync: str, steps: list[int], every: str, jitter: float, seed: int
) -> None:
    check_cuts(run(sync, every, steps, jitter=jitter, seed=seed))


def test_a_late_contribution_is_not_cut_in_two() -> None:
    """The timer closes rounds while the slow worker is pushing. Such a fold must not become a
    cut."""
    slow = 'timer = "10ms"\n'
    finished = run("bsp", "1rounds", [3, 3, 23], jitter=0.6, more=slow, seed=3)
    assert check_cuts(finished) >= 3


@pytest.mark.parametrize("sync", POLICIES)
def test_a_resumed_job_visits_the_rest_of_the_points_once(sync: str) -> None:
    """The job begins with three workers and three servers, and resumes with four workers and two
    servers."""
    first = run(sync, "2rounds", [2, 3, 7])
    record, _ = checkpoints(first)[1]
    scenario = parse_scenario(
        JOB.format(sync=sync, epochs=epochs_of(sync), every="", workers=4, more="").replace(
            "servers = 3", "servers = 2"
        )
        + WORKER.format(step=3, jitter=0.3) * 4,
        "resumed.toml",
    )
    job = msgspec.structs.replace(
        scenario.job_spec("job"),
        resume="simulated",
        resume_number=record.number,
        resume_round=record.round,
    )
    clock = Clock()
    journal = MemoryJournal(clock.read)
    simulation = Simulation(scenario, job, clock, journal, check=True, resumed=record)
    assert simulation.run().reason.code == "goal"
    assert summarise(journal.lines)["points"] == epochs_of(sync) * 480 - visited(record)


# -- the state of the user's code ------------------------------------------------------------------


@pytest.mark.parametrize("sync", POLICIES)
def test_the_kept_state_is_that_after_the_last_contribution_in_the_cut(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has sent exactly the contributions that the record counts when it copies its
    state."""
    captured: dict[int, tuple[int, int]] = {}
    send_state = WorkerProcess._send_state

    def watched(process: WorkerProcess) -> None:
        if process._kept.asked is not None:
            sent = process.machine._state.pushes.sequence
            captured[process._kept.asked.number] = process.machine.worker, sent
        send_state(process)

    monkeypatch.setattr(WorkerProcess, "_send_state", watched)
    finished = run(sync, "2rounds", [2, 3, 7], more='kept = "10MB"\n')
    assert finished.end.reason.code == "goal"
    assert check_cuts(finished) >= 2
    assert not finished.lines("state-missing")
    for record, _ in checkpoints(finished):
        worker, sent = captured[record.number]
        assert worker == 0
        assert sent == record.workers[0].clock
    sizes = [line["nbytes"] for line in finished.lines("checkpoint")]
    assert min(sizes) > 10_000_000


@pytest.mark.parametrize("sync", POLICIES)
def test_checkpoints_are_made_though_the_keeper_dies(sync: str) -> None:
    events = '[[events]]\nat = "{at}us"\nwhat = "crash"\nworker = "worker-0"\n'
    for at_us in (15_100, 16_300, 18_700, 22_900):
        finished = run(
            sync,
            "1rounds",
            [2, 3, 5],
            more='kept = "2MB"\n',
            events=events.replace("{at}", str(at_us)),
        )
        assert finished.end.reason.code == "goal"
        made = finished.lines("checkpoint")
        assert made[-1]["at_s"] > at_us / 1e6, "after the keeper's death too"
        assert not finished.lines("state-missing")


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_every_worker_of_a_resumed_job_gets_the_state(sync: str) -> None:
    kept = 'kept = "10MB"\n'
    first = run(sync, "2rounds", [2, 3, 7], more=kept)
    record, _ = checkpoints(first)[1]
    text = JOB.format(sync=sync, epochs=2, every="2rounds", workers=2, more=kept)
    scenario = parse_scenario(text + WORKER.format(step=3, jitter=0.3) * 2, "resumed.toml")
    job = msgspec.structs.replace(
        scenario.job_spec("job"),
        resume="simulated",
        resume_number=record.number,
        resume_round=record.round,
        checkpoints=record.number,
    )
    clock = Clock()
    journal = MemoryJournal(clock.read)
    simulation = Simulation(scenario, job, clock, journal, check=True, resumed=record)
    assert simulation.run().reason.code == "goal"
    assert not any(worker.machine._state.restores for worker in simulation.workers.values())
    assert all(worker.machine._state.keeps for worker in simulation.workers.values())


@pytest.mark.parametrize("sync", POLICIES)
def test_cuts_stay_whole_though_a_server_dies_and_a_worker_is_evicted(sync: str) -> None:
    events = """
[[events]]
at = "31ms"
what = "crash"
server = 1
[[events]]
at = "50ms"
what = "stop"
worker = "worker-1"
[[events]]
at = "2550ms"
what = "continue"
worker = "worker-1"
"""
    finished = run(sync, "3ms", [2, 3, 5], seed=1, more="replicas = 1\n", events=events)
    assert finished.end.reason.code == "goal"
    assert check_cuts(finished) >= 5

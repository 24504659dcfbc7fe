"""Points travel from worker to worker: every pass visits every point exactly once while workers fail.

The tests try 200 seeds. With POLYRHYTHM_TORTURE=N and N > 1 they try 10,000 seeds.
"""

import os
import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from polyrhythm.core.lead.data.chunks import Holder
from polyrhythm.core.lead.data.moves import ChunkMove
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.observe.summary import summarise
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.scenario import parse_scenario
from polyrhythm.sim.simulation import Simulation
from polyrhythm.sim.worker.deliveries import SimDeliveries
from polyrhythm.wire.messages import ChunkPart
from tests.sim.staged_run import Run
from tests.sim.test_cuts import checkpoints, visited
from tests.sim.test_simulated_balance import Visits, job, passes

TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
SEEDS = range(200) if TORTURE == 1 else range(10_000)


class Places:
    """Records which incarnation of a worker has received the points of which chunk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received: dict[int, set[int]] = {}
        """The chunk of every delivery that has arrived, by the number of the delivery."""
        self.moved = 0
        receive, complete = SimDeliveries.receive, DataPlan._complete

        def watch_receive(deliveries: SimDeliveries, part: ChunkPart) -> None:
            receive(deliveries, part)
            if part.chunk in deliveries.received:
                self.received.setdefault(part.number, set()).add(part.chunk)

        def watch_complete(plan: DataPlan, moves: Iterable[ChunkMove]) -> None:
            complete(plan, moves := list(moves))
            for move in moves:
                if move.delivery:
                    found = self.received.get(move.delivery, ())
                    assert move.chunk in found, "the points have not arrived"
                    self.moved += 1

        monkeypatch.setattr(SimDeliveries, "receive", watch_receive)
        monkeypatch.setattr(DataPlan, "_complete", watch_complete)


def storm(seed: int) -> str:
    """A job with a slow worker whose points move over slow links, while workers die, stop, leave,
    join and change their speed."""
    rng = random.Random(seed)
    sync = rng.choice(["fsp", "fsp", "fsp", "psp", "bsp"])
    points = rng.choice([60, 600, 1200])
    kind = "gradient" if sync == "bsp" else "local"
    if seed % 4 == 3:
        sync, kind = rng.choice(["fsp", "bsp"]), "statistics"
    text = f"""
        [job]
        sync = "{sync}"
        kind = "{kind}"
        migrate = "{rng.choice(["full", "full", "full", "blocking"])}"
        {f'migrate_memory = "{rng.choice([1, 10, 100])}kB"' if rng.random() < 0.5 else ""}
        point = "{rng.choice(["10B", "1kB", "20kB"])}"
        interval = "{rng.choice(["20ms", "100ms"])}"
        epochs = {rng.choice([2, 4])}
        points = {points}
        batch = 8
        model = "10kB"
        servers = {rng.choice([1, 2])}
        heartbeat = "100ms"
        limit = "2000s"
        [link]
        delay = "1ms"
        bandwidth = "{rng.choice(["1MB", "20MB"])}"
        [[workers]]
        count = 3
        step = "4ms"
        step_noise = 0.1
        {f"memory = {points // 50}" if rng.random() < 0.3 else ""}
        [[workers]]
        step = "{rng.choice([16, 40])}ms"
    """
    names = [f"worker-{number}" for number in range(4)]
    slow_at = rng.uniform(0.5, 2)
    for _ in range(rng.randint(0, 4)):
        at, name = rng.uniform(0.1, 2), rng.choice(names[1:])
        what = rng.choice(["crash", "leave", "stop", "slow"])
        event = f'[[events]]\nat = "{at:.3f}s"\nwhat = "{what}"\nworker = "{name}"\n'
        text += event + (f"factor = {rng.choice([0.2, 1, 4])}\n" if what == "slow" else "")
        if what == "stop":
            again = f'[[events]]\nat = "{at + rng.uniform(0.1, 5):.3f}s"\nwhat = "continue"\n'
            text += again + f'worker = "{name}"\n'
        elif what in ("crash", "leave") and rng.random() < 0.6:
            again = f'[[events]]\nat = "{at + slow_at:.3f}s"\nwhat = "join"\nworker = "{name}"\n'
            text += again
    return text


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pass_visits_every_point_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = storm(seed)
    visits = Visits(monkeypatch, subtracts='kind = "statistics"' in text)
    Places(monkeypatch)
    run = Run(text, seed=seed)
    assert not run.end.failed, run.end.reason
    visits.check()
    check_moves(run)


def check_moves(run: Run) -> None:
    """At the end no move is unfinished: every chunk has moved, or was reported as kept by its
    worker."""
    begun = sum(line["moved"] for line in run.lines("chunks"))
    assert begun == sum(
        line["chunks"] for what in ("points-moved", "points-kept") for line in run.lines(what)
    )


def job_with(migrate: str, goal: str, events: str = "", **changes: str) -> str:
    """Three fast workers and a slow one, whose points have 1 kB and travel over slow links."""
    text = job(migrate, goal).replace("points = 20000", 'points = 20000\n        point = "1kB"')
    text = text.replace('delay = "1ms"', 'delay = "1ms"\n        bandwidth = "2MB"')
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text + events


def test_moves_that_the_end_of_the_job_interrupts_are_not_counted() -> None:
    """The job is stopped a moment after its first points have begun to move, before a lease arrives."""
    text = job_with("full", 'max_time = "20s"')
    first = Run(text).lines("chunks")[0]
    short = Run(f'{text}[[events]]\nat = "{first["at_s"] + 0.0005:.6f}s"\nwhat = "end"\n')
    (begun,) = short.lines("chunks")
    found = summarise(short.journal.lines)
    moved = sum(line["chunks"] for line in short.lines("points-moved"))
    assert kept(short) == {"move-job-ends"} and found["moved_chunks"] == moved < begun["moved"]


def event(at_s: float, what: str, worker: str, more: str = "") -> str:
    return f'[[events]]\nat = "{at_s}s"\nwhat = "{what}"\nworker = "{worker}"\n{more}'


def kept(run: Run) -> set[str]:
    """The codes of the reasons for which chunks stayed where they were."""
    return {line["reason"] for line in run.lines("points-kept")}


def test_points_travel_and_passes_are_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    visits, places = Visits(monkeypatch), Places(monkeypatch)
    run = Run(job_with("full", 'max_time = "60s"'))
    assert places.moved >= 10 and run.lines("points-moved")
    assert max(passes(visits)) - min(passes(visits)) <= 2


@pytest.mark.parametrize("name", ["worker-3", "worker-0"])
def test_a_crash_in_the_middle_of_a_window_loses_no_point(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = "epochs = 3"
    (first, *_) = Run(job_with("full", goal)).lines("chunks")
    visits = Visits(monkeypatch)
    run = Run(job_with("full", goal, event(first["at_s"] + 0.05, "crash", name)))
    # a source may notice that its target is dead before the lead does
    assert kept(run) & {"move-member-left", "move-unreachable"}, "its points were on their way"
    visits.check()


def test_a_worker_that_joins_in_the_middle_of_a_window_ends_the_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goal = "epochs = 3"
    (first, *_) = Run(job_with("full", goal)).lines("chunks")
    late = f'[[workers]]\nstep = "10ms"\nname = "late"\njoin = "{first["at_s"] + 0.05}s"\n'
    visits = Visits(monkeypatch)
    run = Run(job_with("full", goal, late))
    assert "move-shared-anew" in kept(run)
    visits.check()


def test_a_target_without_memory_is_said_once_and_gets_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visits, places = Visits(monkeypatch), Places(monkeypatch)
    small = {"count = 3\n": "count = 3\n        memory = 100\n"}
    run = Run(job_with("full", "epochs = 3", **small))
    lines = [line for line in run.lines("points-kept") if line["reason"] == "move-no-memory"]
    targets = [line["target"] for line in lines]
    assert targets and len(targets) == len(set(targets))
    assert places.moved == 0
    visits.check()


def test_points_come_back_without_being_sent_if_a_worker_becomes_fast_again() -> None:
    back = event(30, "slow", "worker-3", "factor = 0.25\n")
    run = Run(job_with("full", 'max_time = "90s"', back))
    again = [line for line in run.lines("points-moved") if line["target"] == 3]
    assert sum(line["free"] for line in again) > 0


def test_there_may_be_fewer_points_than_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    visits = Visits(monkeypatch)
    changes = {"points = 20000": "points = 30", "batch = 32": "batch = 2"}
    run = Run(job_with("full", "epochs = 20", **changes))
    assert not run.end.failed
    visits.check()


def test_the_passes_of_a_blocking_job_are_fewer_because_both_workers_wait() -> None:
    visited = {}
    for migrate in ("full", "blocking"):
        run = Run(job_with(migrate, 'max_time = "20s"'))
        visited[migrate] = run.result["points"]
        assert run.lines("points-moved")
    assert visited["full"] > visited["blocking"]


def test_a_job_that_resumes_from_a_cut_in_the_middle_of_a_window_visits_the_rest_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lead dies while points travel. The job continues from its last checkpoint, in which the
    chunks in flight belong to their old holder."""
    watched: list[Any] = []
    record_chunks = DataPlan.recorded

    def watch(plan: DataPlan, names: dict[Holder, str]) -> Any:
        if any(move.in_flight for move in plan.moves.values()):
            watched.append(record_chunks(plan, names))
        return record_chunks(plan, names)

    monkeypatch.setattr(DataPlan, "recorded", watch)
    text = job_with("full", "epochs = 3").replace(
        "[job]\n", '[job]\ncheckpoint_every = "1rounds"\n'
    )
    first = Run(text)
    (record, *_) = (found for found, _ in checkpoints(first) if found.chunks in watched)
    assert {chunk.holder for chunk in record.chunks} == {f"worker-{n}" for n in range(4)}
    scenario = parse_scenario(job_with("full", "epochs = 3"), "resumed.toml")
    spec = msgspec.structs.replace(
        scenario.job_spec("job"),
        resume="simulated",
        resume_number=record.number,
        resume_round=record.round,
    )
    clock = Clock()
    journal = MemoryJournal(clock.read)
    resumed = Simulation(scenario, spec, clock, journal, check=True, resumed=record)
    assert resumed.run().reason.code == "goal"
    assert summarise(journal.lines)["points"] == 3 * 20000 - visited(record)


@pytest.mark.parametrize("bandwidth", ["2MB", "1MB"])
def test_sending_the_points_costs_less_than_4_percent_of_the_run(bandwidth: str) -> None:
    """Sending points must cost little, also at half the bandwidth, as in Table 2 of the FSP paper.
    With `lease` the same chunks move without their points, so the difference in time between `full`
    and `lease` is the cost of sending."""
    took_s = {}
    for migrate in ("lease", "full"):
        text = job_with(migrate, "epochs = 8").replace('"2MB"', f'"{bandwidth}"')
        run = Run(text.replace('model = "100kB"', 'model = "4kB"'))
        took_s[migrate] = run.result["seconds"]
    assert took_s["full"] < 1.04 * took_s["lease"]


def short_job(fast: int) -> str:
    """Some fast workers and a slow one. Its points travel slowly, and meanwhile their old and new
    holders wait."""
    text = job_with("blocking", "rounds = 40", **{"points = 20000": "points = 2000"})
    return text.replace('"2MB"', '"500kB"').replace("count = 3", f"count = {fast}")


def test_rounds_in_which_all_workers_wait_for_points_do_not_count_for_the_goal() -> None:
    run = Run(short_job(fast=1))
    assert run.end.reason.fields == {"goal": "rounds", "rounds": 40}
    assert run.lines("points-moved")
    assert run.result["contributions"] >= 2 * 40 - 8, "a round has a contribution of each worker"
    assert run.result["rounds"] > 40


def test_workers_that_wait_for_points_have_not_visited_all_of_their_points() -> None:
    run = Run(short_job(fast=3))
    assert run.lines("points-moved")
    assert [line for line in run.lines("policy") if line["reason"] == "points-visited"] == []

"""The lead's process is stopped: workers and servers notice, report, and end or go on."""

import pytest

from polyrhythm.core.effects import Note
from polyrhythm.core.liveness import HEARD, SILENT
from polyrhythm.errors import JobFailed
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.sim.clock import BEGINNING_NS, Clock
from polyrhythm.sim.scenario import parse_scenario
from polyrhythm.sim.simulation import Simulation
from tests.sim.staged_run import Run
from tests.sim.test_worker_faults import SYNCS

JOB = """
[job]
sync = "{sync}"
kind = "{kind}"
rounds = {rounds}
servers = 2
model = "100kB"
timer = "off"
lead_timeout = "10s"
[link]
delay = "1ms"
bandwidth = "{bandwidth}"
[[workers]]
count = 3
step = "{step}"
"""
STOP = '[[events]]\nat = "{at}"\nwhat = "{what}"\nserver = 0\n'


def text(
    sync: str, step: str = "30ms", rounds: int = 170, bandwidth: str = "1Gbit", **events: str
) -> str:
    kind = "local" if sync == "psp" else "gradient"
    job = JOB.format(sync=sync, kind=kind, rounds=rounds, step=step, bandwidth=bandwidth)
    if sync == "fsp":
        job = job.replace("[link]", 'interval = "50ms"\n[link]')
    return job + "".join(STOP.format(what=what, at=at) for what, at in events.items())


def reports(simulation: Simulation) -> dict[str, list[tuple[float, Note]]]:
    processes = {**simulation.workers, "s1": simulation.servers[1]}
    return {
        name: [
            ((at - BEGINNING_NS) / 1e9, note)
            for at, note in process.reports
            if note.what in (SILENT, HEARD)
        ]
        for name, process in processes.items()
    }


@pytest.mark.guarantee("lead-silent", k=(0,))
@pytest.mark.parametrize("sync", SYNCS)
def test_workers_and_servers_report_a_lead_that_is_stopped_and_comes_back(sync: str) -> None:
    run = Run(text(sync, stop="3s", **{"continue": "9s"}))
    for name, told in reports(run.simulation).items():
        assert [note.what for _, note in told] == ["lead-silent", "lead-heard"], name
        (silent_s, _), (heard_s, heard) = told
        assert 4.5 < silent_s < 6.0, "about 2 s after the last beat"
        assert heard_s == pytest.approx(9.0, abs=0.6)
        assert heard.fields["silent_s"] == pytest.approx(6.0, abs=1.1)
    assert not run.end.failed, "and training goes on"


@pytest.mark.guarantee("lead-silent", k=(0,))
@pytest.mark.parametrize("sync", SYNCS)
def test_workers_and_servers_end_when_the_lead_does_not_come_back(sync: str) -> None:
    scenario = parse_scenario(text(sync, stop="3s"), "scenario.toml")
    clock = Clock()
    journal = MemoryJournal(clock.read)
    simulation = Simulation(scenario, scenario.job_spec("job"), clock, journal, check=True)
    with pytest.raises(JobFailed, match="cannot go on"):
        simulation.run()
    ended_s = (clock.now_ns - BEGINNING_NS) / 1e9
    assert ended_s == pytest.approx(13.0, abs=1.0), "10 s after the last beat, and nothing is left"
    for worker in simulation.workers.values():
        assert not worker.alive
        assert worker.failure == "the lead has sent nothing for 10.0 s (--lead-timeout 10)"
    server = simulation.servers[1]
    assert not server.alive
    assert server.outcome is not None and server.outcome.reason.code == "lead-lost"


@pytest.mark.parametrize("sync", SYNCS)
def test_a_worker_in_a_long_step_does_not_suspect_a_lead_that_beats(sync: str) -> None:
    """The worker reads nothing during a step, so heartbeats stay unread for 15 s."""
    run = Run(text(sync, step="15s", rounds=4))
    assert reports(run.simulation) == {"worker-0": [], "worker-1": [], "worker-2": [], "s1": []}
    assert not run.end.failed


def test_slices_that_come_for_seconds_are_signs_of_life() -> None:
    """A version takes 8 s over this link, and the heartbeats wait behind it."""
    job = text("bsp", rounds=3, bandwidth="100kbit").replace(
        'model = "100kB"', 'model = "200kB"\nslice = "10kB"'
    )
    run = Run(job)
    assert [told for told in reports(run.simulation).values() if told] == []


def test_a_worker_that_is_stopped_with_the_lead_reports_nothing_when_both_go_on() -> None:
    both = '[[events]]\nat = "{at}"\nwhat = "{what}"\nworker = "worker-1"\n'
    job = text("bsp", stop="3s", **{"continue": "9s"})
    job += both.format(at="3s", what="stop") + both.format(at="9s", what="continue")
    run = Run(job)
    told = reports(run.simulation)
    assert told["worker-1"] == []
    assert [note.what for _, note in told["worker-0"]] == ["lead-silent", "lead-heard"]


@pytest.mark.parametrize("stop_s", [15, 115])
def test_a_worker_that_was_stopped_for_longer_than_the_timeout_does_not_end_for_it(
    stop_s: int,
) -> None:
    stop = '[[events]]\nat = "{at}"\nwhat = "{what}"\nworker = "worker-1"\n'
    step_ms = 40 if stop_s < 60 else 200
    job = text("asp", step=f"{step_ms}ms", rounds=(stop_s + 8) * 1000 // step_ms)
    job += stop.format(at="3s", what="stop") + stop.format(at=f"{stop_s + 3}s", what="continue")
    run = Run(job, check=False)
    assert run.simulation.workers["worker-1"].failure is None
    assert reports(run.simulation)["worker-1"] == []
    assert [line["name"] for line in run.lines("rejoined")] == ["worker-1"]

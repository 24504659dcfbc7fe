"""Predictions of a run under another policy, from the journal of a recorded run. In these tests the
recorded run is simulated too."""

import json
from pathlib import Path

import pytest

from polyrhythm.cli.simulate import simulate
from polyrhythm.errors import UsageError
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.observe.state import RunState, fold
from polyrhythm.observe.summary import summarise
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.recorded import scenario_of
from polyrhythm.sim.simulation import Simulation
from polyrhythm.wire.messages import JobSpec
from tests.sim.staged_run import Run

RECORDED = """
[job]
sync = "{sync}"
kind = "local"
interval = "100ms"
rounds = 150
batch = 32
servers = 2
model = "1MB"
[link]
delay = "500us"
bandwidth = "1Gbit"
[[workers]]
count = 2
step = "20ms"
step_noise = 0.05
[[workers]]
step = "70ms"
step_noise = 0.05
[[workers]]
step = "30ms"
link = {{ delay = "500us", bandwidth = "300Mbit" }}
"""


def scenario_under(sync: str) -> str:
    return RECORDED.format(sync=sync)


def usage(run: Run) -> float:
    return float(run.result["resource_usage"]["overall"])


@pytest.mark.parametrize(
    ("recorded", "other", "within"),
    [
        ("bsp", "asp", 0.05),
        ("bsp", "psp", 0.05),
        ("bsp", "fsp", 0.05),
        # the tolerance is larger, because a worker waits for the lead's release under ssp, but not
        # under asp
        ("ssp:3", "asp", 0.07),
        ("asp", "bsp", 0.05),
    ],
)
def test_the_run_of_one_policy_predicts_the_usage_of_another(
    recorded: str, other: str, within: float
) -> None:
    known, real = (Run(scenario_under(sync), check=False) for sync in (recorded, other))
    scenario = scenario_of(fold(known.journal.lines), known.simulation.job, other)
    clock = Clock()
    journal = MemoryJournal(clock.read)
    Simulation(scenario, scenario.job_spec("predicted"), clock, journal).run()
    predicted = summarise(journal.lines)["resource_usage"]["overall"]
    assert predicted == pytest.approx(usage(real), abs=within)
    assert abs(usage(known) - usage(real)) > 0.1, (
        "the two policies differ, so the prediction is not trivial"
    )


def test_with_rounds_the_round_trip_time_is_the_wait_of_the_last_worker_to_arrive() -> None:
    """Micro-batches of a round do not end together. Every worker waits for the last of them, and
    this wait is not part of the round-trip time."""
    known = Run(scenario_under("fsp"), check=False)
    state = fold(known.journal.lines)
    assert state.rtt_s is not None
    means_s = [w.totals.wait_s / (w.totals.contributions - 1) for w in state.workers.values()]
    assert state.rtt_s < 0.8 * min(means_s)
    predicted = scenario_of(state, known.simulation.job, "bsp")
    delays = [group.link.delay for group in predicted.workers if group.link is not None]
    assert delays == pytest.approx([state.rtt_s / 2 * 1e9] * 4, abs=1)


def delays_ns(state: RunState, job: JobSpec, near: str = "tcp") -> list[float]:
    state.links = dict.fromkeys(state.links, near)
    predicted = scenario_of(state, job, "bsp")
    return [group.link.delay for group in predicted.workers if group.link is not None]


def test_a_worker_that_joins_late_does_not_change_the_estimated_delays() -> None:
    """A worker that joins late has few exchanges, and there is no exchange before its first
    contribution. Its waits do not change the estimated delays of the others."""
    known = Run(
        scenario_under("ssp:2") + '[[workers]]\nstep = "20ms"\njoin = "11500ms"\n', check=False
    )
    state = fold(known.journal.lines)
    late = state.workers[4]
    assert 1 < late.totals.contributions < 10
    alone = fold(known.journal.lines)
    del alone.workers[4]
    assert delays_ns(state, known.simulation.job)[:4] == delays_ns(alone, known.simulation.job)
    late.measured = {"contributions": 1, "points": 32, "compute_ns": 10**7, "wait_ns": 0}
    assert delays_ns(state, known.simulation.job)[:4] == delays_ns(alone, known.simulation.job)


def test_a_stopped_server_does_not_change_the_round_trip_time() -> None:
    stopped = "".join(
        f'[[events]]\nat = "{at}"\nwhat = "{what}"\nserver = 1\n'
        for at, what in (("3s", "stop"), ("3500ms", "continue"))
    )
    usual = fold(Run(scenario_under("bsp"), check=False).journal.lines).rtt_s
    assert usual is not None
    disturbed = Run(scenario_under("bsp") + stopped, check=False)
    assert fold(disturbed.journal.lines).rtt_s == pytest.approx(usual, rel=0.1)


def test_without_measured_round_trip_times_the_shortest_mean_wait_is_used() -> None:
    known = Run(scenario_under("bsp"), check=False)
    for line in known.journal.lines:
        line.pop("rtt_ms", None)
    state = fold(known.journal.lines)
    assert state.rtt_s is None
    least_s = min(w.totals.wait_s / (w.totals.contributions - 1) for w in state.workers.values())
    assert delays_ns(state, known.simulation.job) == pytest.approx([least_s / 2 * 1e9] * 4, abs=1)


def test_the_rate_of_a_link_is_found_from_quantised_pushes_too() -> None:
    """A quantised push takes a quarter of the time. If the prediction assumed the size of an exact
    push, the link would seem to be faster than it is."""
    found = {}
    for push in ("exact", "int8"):
        text = scenario_under("bsp").replace("[job]", f'[job]\npush = "{push}"')
        known = Run(text, check=False)
        scenario = scenario_of(fold(known.journal.lines), known.simulation.job, "asp")
        assert scenario.job.push == push
        found[push] = [group.link.bandwidth for group in scenario.workers if group.link]
    assert found["int8"] == pytest.approx(found["exact"], rel=0.15)


def test_over_local_links_a_transfer_counts_as_work_of_the_worker() -> None:
    known = Run(scenario_under("ssp:2"), check=False)
    state = fold(known.journal.lines)
    far = scenario_of(state, known.simulation.job, "psp")
    assert {group.handling for group in far.workers} == {0}
    state.links = dict.fromkeys(state.links, "local")
    near = scenario_of(state, known.simulation.job, "psp")
    every = [worker.totals for worker in state.workers.values()]
    each_ns = [totals.transfer_s * 1e9 / (totals.contributions - 1) for totals in every]
    waits_s = [totals.wait_s / (totals.contributions - 1) for totals in every]
    waited_ns = each_ns[waits_s.index(min(waits_s))]
    assert max(each_ns) > waited_ns > 10**6, "a worker that waits is woken by every message"
    expected = [min(own_ns, waited_ns) for own_ns in each_ns]
    assert [group.handling for group in near.workers] == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("sync", ["bsp", "asp", "psp"])
def test_a_worker_does_not_compute_while_it_handles_an_exchange(sync: str) -> None:
    """Each exchange takes a step of 10 ms and 10 ms of handling. The link takes almost no time."""
    run = Run(
        f'''
[job]
sync = "{sync}"
kind = "local"
rounds = 50
model = "4B"
[[workers]]
step = "10ms"
handling = "10ms"
[link]
delay = "1us"
'''
    )
    assert usage(run) == pytest.approx(0.5, abs=0.02)


def test_a_run_without_contributions_cannot_be_simulated() -> None:
    with pytest.raises(UsageError, match="no contributions"):
        scenario_of(RunState(), JobSpec(job=""), "asp")


def test_the_command_simulates_a_file_or_a_recorded_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(scenario_under("bsp"))
    runs = tmp_path / "runs"
    simulate(path, name="known", runs_dir=runs, quiet=True)
    capsys.readouterr()
    simulate(from_run="known", sync="asp", name="predicted", runs_dir=runs, json_=True)
    result = json.loads(capsys.readouterr().out)
    assert (result["job"], result["sync"]) == ("known", "asp")
    assert result["resource_usage"]["overall"] > 0.5
    simulate(path, sync="asp", name="other", runs_dir=runs, json_=True)
    assert json.loads(capsys.readouterr().out)["sync"] == "asp"
    with pytest.raises(UsageError, match="from-run"):
        simulate(runs_dir=runs)
    with pytest.raises(UsageError, match="bps"):
        simulate(path, sync="bps", runs_dir=runs)

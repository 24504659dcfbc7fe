"""The laboratory of network namespaces makes what it says, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.network import best, hosts, pictures, runs, scenarios, shapes
from benchmarks.network.__main__ import table
from benchmarks.network.runs import IdleTime, Setting, polyrhythm

ROOT = Path(__file__).parents[2]
MB = 10**6


@pytest.mark.parametrize(
    ("model", "nbytes"), [("mobilenet", 21), ("resnet50", 94), ("alexnet", 228)]
)
def test_the_models_have_the_sizes_of_the_paper(model: str, nbytes: int) -> None:
    assert shapes.nbytes_of(model) // MB == nbytes
    assert shapes.nbytes_of("4000000") == 4 * MB


def test_equal_rates_have_the_same_bound_as_an_all_reduce() -> None:
    all_reduce_s = 2 * 5 / 6 * 21 * MB / (220 * best.BYTES)
    rates = [220.0] * 6
    assert best.colocated_s(21 * MB, rates) == pytest.approx(all_reduce_s)
    assert best.colocated_apart_s(21 * MB, rates) == pytest.approx(all_reduce_s)
    assert best.colocated_average_s(21 * MB, rates) == pytest.approx(all_reduce_s)


def test_no_bound_is_above_that_of_equal_parts() -> None:
    rates = [20.0, 50.0, 90.0, 150.0, 180.0, 220.0]
    together, apart = best.colocated_s(MB, rates), best.colocated_apart_s(MB, rates)
    assert together < apart <= 2 * together
    assert together < best.colocated_average_s(MB, rates) <= (2 - 2 / 6) * together
    dedicated = best.dedicated_average_s(MB, rates, 2) / best.dedicated_s(MB, rates, 2)
    assert dedicated == pytest.approx(sum(rates) / 6 / 20)


def test_a_failed_scenario_is_a_row_of_the_table() -> None:
    assert "| equal: failed: s1 died | | | |" in table({"equal": {"failed": "s1 died\nbadly"}})


def window(idle: float, seconds: float = 2.0) -> dict[str, object]:
    told = runs.Window([seconds] * 4, idle).told()
    return told | {"of_best": 0.9, "of_best_apart": 0.95, "speedup": 1.0, "rounds_to_90": 2}


def test_a_run_that_kept_the_processor_busy_does_not_count() -> None:
    rows = table({"unhurt": {"aware": window(0.4) | {"ratio": 1.0}}}).splitlines()[2:]
    assert rows == ["| unhurt: aware, of average | 1.000 | 0.98 | 40% |"]
    rows = table({"unhurt": {"aware": window(0.2) | {"ratio": 1.0}}}).splitlines()[2:]
    assert rows == ["| unhurt: aware, of average | 1.000 | 0.98 | 20%: does not count |"]


def test_what_was_measured_is_drawn(tmp_path: Path) -> None:
    speeds = {"average": window(0.4), "elastic": window(0.4, 1.5), "aware": window(0.4, 1.0)}
    states = {"equal": window(0.4), "drawn 1": window(0.4)}
    results = {
        "speed mobilenet": {"model": "mobilenet", "rates": [20.0, 220.0], **speeds},
        "speed alexnet": {"failed": "s1 died"},
        "elastic resnet50": {"model": "resnet50", "rates": [20.0, 220.0], "elastic": window(0.4)},
        "colocated": {"placements": {"average": [window(0.4)] * 2, "aware": [window(0.4)] * 2}},
        "granularity": {"sizes": {"32kB": states, "4MB": states}},
        "overhead": dict.fromkeys(scenarios.CONDITIONS, window(0.4)),
    }
    told = pictures.draw(results, tmp_path)
    assert len(told) == 4 and "Fig. 4" in told[0]
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(drawn) == {f"network-{name}.svg" for name in ("speeds", "rounds", "sizes", "costs")}
    assert "1.92e+03 points per minute" in drawn["network-speeds.svg"]
    assert "alexnet" not in drawn["network-speeds.svg"]
    assert "new rates after rounds 4" in drawn["network-rounds.svg"]
    assert pictures.draw({}, tmp_path) == []


@pytest.mark.parametrize("without", ["", "probes", "requests", "probes requests"])
def test_parts_are_taken_out_of_every_process(without: str) -> None:
    text = (
        "from polyrhythm.core.lead.servers.placement import Placement\n"
        "from polyrhythm.core.placement import division\n"
        "from polyrhythm.io.stream import StreamLink\n"
        "print(division.PROBES == 0, StreamLink.measure_with.__name__ == '<lambda>',"
        " Placement.on_folded.__name__ == '<lambda>')"
    )
    folder = runs.HERE / "without"
    environment = os.environ | {"PYTHONPATH": str(folder), "POLYRHYTHM_WITHOUT": without}
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True
    )
    probes, requests = "probes" in without, "requests" in without
    assert done.stdout.split() == [str(probes), str(probes), str(requests)]


def test_without_root_the_benchmark_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = hosts.why_not()
    assert reason is not None and "needs Linux, root" in reason and "not root" in reason


laboratory = pytest.mark.skipif(
    hosts.why_not() is not None, reason="network namespaces cannot be made here"
)
SEND = """
import socket, sys
taken = socket.create_connection((sys.argv[1], 7001))
taken.sendall(bytes(int(sys.argv[2])))
taken.shutdown(socket.SHUT_WR)
taken.recv(1)
"""
TAKE = """
import socket, sys, time
listener = socket.create_server(("0.0.0.0", 7001))
print("listens", flush=True)
taken, _ = listener.accept()
taken.recv(1)
began = time.monotonic()
count = 1
while part := taken.recv(1 << 20):
    count += len(part)
print(count / (time.monotonic() - began), flush=True)
"""


def namespaces() -> list[str]:
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    mine = f"polylab{os.getpid()}-"
    return [line for line in told.stdout.splitlines() if line.startswith(mine)]


def rate_between(near: hosts.Host, far: hosts.Host, nbytes: int) -> float:
    """The measured rate in Mbit/s."""
    python = [sys.executable, "-c"]
    with subprocess.Popen([*far.inside, *python, TAKE], stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "listens\n"
        words = [*near.inside, *python, SEND, far.address, str(nbytes)]
        subprocess.run(words, timeout=60, check=True)
        return float(taker.stdout.readline()) / best.BYTES


@laboratory
def test_no_host_sends_or_receives_faster_than_its_rate() -> None:
    with hosts.hosts(2) as (near, far):
        near.shape(80, 80)
        far.shape(400, 400)
        assert rate_between(near, far, 4 * MB) < 90
        assert rate_between(far, near, 4 * MB) < 90
        near.shape(40, 400)
        assert rate_between(near, far, 2 * MB) < 45
        assert near.carried()[0] > 6 * MB
    assert not namespaces()


@laboratory
def test_nothing_is_left_after_an_error() -> None:
    with pytest.raises(RuntimeError), hosts.hosts(2):
        assert len(namespaces()) == 3
        raise RuntimeError
    assert not namespaces()


@laboratory
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_signal(how: signal.Signals) -> None:
    text = "import time\nfrom benchmarks.network.hosts import hosts\n"
    text += "with hosts(2):\n    print('made', flush=True)\n    time.sleep(60)\n"
    with subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        process.send_signal(how)
        process.wait(30)
    if how is signal.SIGKILL:  # the next laboratory deletes what is left
        with hosts.hosts(1):
            pass
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert f"polylab{process.pid}-" not in told.stdout


@laboratory
@pytest.mark.timeout(200)
def test_the_rounds_of_a_job_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment of the tests, so that the warm server of the test run forks the processes."""
    job = f"import sys\nsys.path.append({str(ROOT)!r})\nfrom benchmarks.network.job import main\n"
    (tmp_path / "job.py").write_text(job)
    monkeypatch.setattr(runs, "HERE", tmp_path)
    monkeypatch.setattr(runs, "_environment", lambda _: None)
    monkeypatch.setenv("POLYRHYTHM_LABORATORY", "")
    with hosts.hosts(2) as found:
        for host in found:
            host.shape(400, 400)
        with polyrhythm(found, Setting("400000", (0, 1), (0, 1))) as run:
            window = run.measure(5, 60.0)
            folder = run.folder
        assert len(window.rounds_s) == 5
        # each host sends half of the model twice in a round
        assert min(window.rounds_s) > 0
        assert found[0].carried()[0] > 6 * 400000 * 0.9
        assert scenarios.windows([window.told()])[0]["rounds"] == 5
    assert not folder.exists()


def test_idle_time_is_a_share() -> None:
    with IdleTime() as idle:
        began_s = time.monotonic()
        while time.monotonic() < began_s + 0.1:
            pass
    assert 0 <= idle.between(began_s, time.monotonic()) <= 1

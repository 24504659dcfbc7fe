"""The scenario files of this repository can be read. A scenario that cannot work is refused with
one clear line."""

from pathlib import Path

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.sim.scenario import parse_scenario, read_scenario
from polyrhythm.sim.tables import Duration, Rate, Size

SCENARIOS = Path(__file__).parents[2] / "scenarios"
GOOD = """
[job]
rounds = 3
[[workers]]
count = 2
step = "10ms"
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [("10ms", 10**7), ("2s", 2 * 10**9), ("1.5us", 1500), ("0s", 0), ("1 min", 60 * 10**9)],
)
def test_durations(text: str, value: int) -> None:
    assert Duration.parse(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1MB", 10**6), ("2MiB", 2**21), ("100B", 100), ("1.5kB", 1500)]
)
def test_sizes(text: str, value: int) -> None:
    assert Size.parse(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Gbit", 125 * 10**6),
        ("1GBIT", 125 * 10**6),
        ("100MB", 10**8),
        ("1KB", 1000),
        ("1kB", 1000),
    ],
)
def test_rates(text: str, value: int) -> None:
    assert Rate.parse(text) == value


@pytest.mark.parametrize("text", ["1Mb", "1mb", "1M", "1"])
def test_a_rate_says_whether_it_counts_bits_or_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        Rate.parse(text)


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_files_of_this_repository_are_scenarios(path: Path) -> None:
    scenario = read_scenario(path)
    assert scenario.cast()


def test_the_page_about_simulation_shows_a_scenario() -> None:
    page = (SCENARIOS.parent / "docs" / "simulation.md").read_text()
    shown = page.partition("```toml\n")[2].partition("```")[0]
    assert parse_scenario(shown, "docs/simulation.md").events


def test_groups_become_workers_with_names() -> None:
    scenario = parse_scenario(
        GOOD + '[[workers]]\nname = "late"\nstep = "1s"\njoin = "5s"\n'
        '[[workers]]\nname = "gpu"\ncount = 2\nstep = "1ms"\nlink = {delay = "9ms"}\n',
        "x",
    )
    names = [worker.name for worker in scenario.cast()]
    assert names == ["worker-0", "worker-1", "late", "gpu-0", "gpu-1"]
    assert scenario.cast()[0].link == scenario.link
    assert scenario.cast()[4].link.delay == 9 * 10**6
    assert scenario.job_spec("job").workers == 4, "who comes later is not waited for"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rounds = 3", "rounds = 3\ncolour = 1"), ["colour", "$.job"]),
        (("rounds = 3", ""), ["rounds, epochs, max_points, target, target_change or max_time"]),
        (("rounds = 3", "epochs = 3"), ["points"]),
        (("rounds = 3", "target = 'f1=1'"), ["a simulated job has only the objective"]),
        (("rounds = 3", "target = 'objective'"), ["give NAME=VALUE"]),
        (("rounds = 3", "target = 'objective=1'"), ["give an [objective] table"]),
        (("rounds = 3", "rounds = 0"), ["rounds is 0"]),
        (("rounds = 3", "rounds = 'many'"), ["int", "$.job.rounds"]),
        (("rounds = 3", "rounds = 3\nsync = 'bps'"), ["bps"]),
        (("rounds = 3", "rounds = 3\ntimer = 'soon'"), ["soon"]),
        (("rounds = 3", "rounds = 3\nkind = 'gradients'"), ["gradients"]),
        (("rounds = 3", "rounds = 3\nmodel = '3B'"), ["model"]),
        (("rounds = 3", "rounds = 3\nlocal_steps = 2"), ["local_steps", "kind"]),
        (("rounds = 3", "rounds = 3\nouter = 'sgd'"), ["--outer 'sgd'", "sgd:lr=1"]),
        (("rounds = 3", "rounds = 3\nouter = 'nesterov'\nsync = 'asp'"), ["--outer", "bsp"]),
        (("rounds = 3", "rounds = 3\nouter = 'nesterov'\nkind = 'gradient'"), ["--kind local"]),
        (("rounds = 3", "rounds = 3\npush = 'int4'"), ["push is 'int4'", "exact or int8"]),
        (("rounds = 3", "rounds = 3\nweights = 'all'"), ["weights is 'all'", "points or workers"]),
        (("rounds = 3", "rounds = 3\nweights = 'workers'\nsync = 'asp'"), ["--weights", "bsp"]),
        (
            ("[job]", "[objective]\nhalving = 9\nat_once = 5\n[job]\nweights = 'workers'"),
            ["by the number of points"],
        ),
        (("rounds = 3", "rounds = 3\nservers = 0"), ["servers is 0"]),
        (
            ("rounds = 3", "rounds = 3\nsync = 'psp'\nkind = 'gradient'"),
            ["psp", "gradient", "local"],
        ),
        (("rounds = 3", "rounds = 3\nsync = 'fsp'\ninterval = 'soon'"), ["soon", "250ms"]),
        (("rounds = 3", "rounds = 3\nsync = 'fsp'\ncoordination = 'none'"), ["none", "semi"]),
        (("rounds = 3", "rounds = 3\nsync = 'fsp'\ninterval = '0ms'"), ["0ms", "250ms"]),
        (("rounds = 3", "rounds = 3\nsync = 'fsp'\nabandon = 'now'"), ["now", "50ms"]),
        (("rounds = 3", "rounds = 3\nabandon = '50ms'"), ["--abandon", "fsp"]),
        (("rounds = 3", "rounds = 3\nmost_steps = 0"), ["most_steps is 0"]),
        (("rounds = 3", "rounds = 3\nprobe_points = 0"), ["probe_points is 0"]),
        (("[job]", "[objective]\nhalving = 0\nat_once = 5\n[job]"), ["halving is 0"]),
        (("[job]", "[objective]\nhalving = 9\n[job]"), ["at_once"]),
        (("'10ms'", "'0s'"), ["step is 0s"]),
        (("count = 2", "step_lognormal = -1.0"), ["step_lognormal is -1"]),
        (("count = 2", "step_pareto = 1.0"), ["step_pareto is 1.0", "mean"]),
        (("count = 2", "step_noise = 0.1\nstep_pareto = 2.0"), ["one of step_noise"]),
        (("count = 2", "stall = {pause = '1ms', points = 0}"), ["points is 0", "stall"]),
        (("count = 2", "tenant = {on = '0s', off = '1s', factor = 2.0}"), ["on and off"]),
        (("count = 2", "tenant = {on = '1s', off = '1s', factor = 0.0}"), ["factor is 0"]),
        (("count = 2", "slows = [{at = '1s', factor = -1.0}]"), ["factor is -1", "slows"]),
        (
            ("count = 2", "slows = [{at = '2s', factor = 2.0}, {at = '1s', factor = 2.0}]"),
            ["order of their time"],
        ),
        (("10ms", "-10ms"), ["-10ms", "duration", "$.workers[0].step"]),
        (("'10ms'", "10"), ["10", "duration"]),
        (("10ms", "10 parsecs"), ["parsecs", "duration"]),
        (("count = 2", "count = 0"), ["count is 0"]),
        (("count = 2", "step_noise = 1.5"), ["step_noise"]),
        (("count = 2", "join = '1s'"), ["no worker joins"]),
        (("[[workers]]\ncount = 2\nstep = '10ms'", "workers = []"), ["no workers"]),
        (("[[workers]]\ncount = 2\nstep = '10ms'", ""), ["no workers"]),
        (("[job]", "[link]\nloss = 1.0\n[job]"), ["loss is 1.0"]),
        (("[job]", "[link]\nbandwidth = '0MB'\n[job]"), ["0MB"]),
        (("[job]", "[link]\nbandwidth = 'fast'\n[job]"), ["fast", "rate"]),
        (("[job]", "[job"), ["line 2"]),
    ],
    ids=lambda value: value[1][:30].replace("\n", " ") if isinstance(value, tuple) else "",
)
def test_bad_scenarios(change: tuple[str, str], words: list[str]) -> None:
    good = GOOD.replace('"', "'")
    old, new = change
    assert old in good
    text = good.replace(old, new)
    if "workers = []" in text:
        text = "workers = []\n" + text.replace("workers = []", "")
    assert_refused(text, words)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("at = '1s'\nwhat = 'crash'\nworker = 'worker-9'", ["worker-9"]),
        ("at = '1s'\nwhat = 'explode'\nworker = 'worker-1'", ["explode"]),
        ("at = '1s'\nwhat = 'crash'", ["worker"]),
        ("at = '1s'\nwhat = 'slow'\nworker = 'worker-1'", ["factor"]),
        ("at = '1s'\nwhat = 'stop'\nworker = 'worker-1'\nfactor = 2.0", ["factor"]),
        ("at = '1s'\nwhat = 'slow'\nworker = 'worker-1'\nfactor = -2.0", ["factor is -2"]),
        ("at = '-1s'\nwhat = 'stop'\nworker = 'worker-1'", ["-1s"]),
    ],
)
def test_bad_events(event: str, words: list[str]) -> None:
    assert_refused(f"{GOOD}[[events]]\n{event}\n", words)


def assert_refused(text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_scenario(text, "mine.toml")
    line = str(caught.value)
    assert line.startswith("mine.toml: ") and "\n" not in line
    assert all(word in line for word in words), line


HOST = """
[[hosts]]
outgoing = "1Mbit"
incoming = "1Mbit"
"""
RATE = '[[events]]\nat = "1s"\nwhat = "rate"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HOST + "servers = [0]" + HOST + "servers = [0]", ["s0 is on two hosts"]),
        (HOST + "workers = ['anna']", ["'anna'", "not a worker's name"]),
        (HOST.replace("1Mbit", "0Mbit"), ["nothing would ever arrive"]),
        (HOST.replace("incoming", "# incoming"), ["incoming", "$.hosts[0]"]),
        (HOST + RATE + "host = 1\noutgoing = '1Mbit'", ["host 1, which does not exist"]),
        (HOST + RATE + "host = 0", ["give host, and outgoing or incoming"]),
        (HOST + RATE + "outgoing = '1Mbit'", ["give host, and outgoing or incoming"]),
        (HOST + RATE + "host = 0\nincoming = '1Mbit'\nserver = 0", ["give no worker"]),
        ("[[events]]\nat = '1s'\nwhat = 'end'\nhost = 0", ["only with what = 'rate'"]),
    ],
)
def test_bad_hosts(text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_scenario(GOOD + text, "some.toml")
    assert all(word in str(caught.value) for word in words)


def test_two_workers_of_one_name() -> None:
    assert_refused(GOOD + '[[workers]]\nname = "worker-1"\nstep = "1ms"\n', ["worker-1", "two"])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_scenario(tmp_path / "none.toml")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="binary.toml"):
        read_scenario(path)

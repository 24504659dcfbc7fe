"""`status --links` and `why`: the measured rates of links, and the link that a job waits for."""

from typing import Any

import pytest
from rich.cells import cell_len

from polyrhythm.observe.measured import links_in_words
from polyrhythm.observe.state import RunState, fold
from polyrhythm.observe.why import explain, in_sentences
from polyrhythm.wire.messages import JobSpec
from tests.observe.journals import Line, line, opened, rounds, waiting
from tests.sim.staged_run import Run

HOSTS = {"a": ["s0"], "b": ["s1", "w0"], "c": ["w1"]}
RATES = {"b": {"a": 12_500_000, "c": 2_400_000}, "c": {"b": 110_000_000, "a": 2_000_000}, "a": {}}


def links(**fields: Any) -> Line:
    given = {"rates": RATES, "throughputs": {"a": 12_500_000}, "hosts": HOSTS, **fields}
    return line(3.0, "links", **given)


def placed() -> Line:
    held = {"s0": 3_000_000, "s1": 1_000_000}
    return line(0.6, "placed", nbytes=4_000_000, slices=[3, 1], held=held)


def shown(lines: list[Line], columns: int = 80) -> list[str]:
    told = links_in_words(fold(lines), columns)
    assert all(cell_len(each) <= columns for each in told), told
    return told


def test_the_matrix_and_what_servers_hold() -> None:
    assert shown([*opened(0, 1), placed(), links(slowest="s0", seconds=0.48)]) == [
        "measured at 3.0 s, in MB/s; the host of a row sends to the host of a column:",
        "   host  processes     1    2     3",
        "1  a     s0            -    ?     ?",
        "2  b     s1, w0     12.5    -  2.40",
        "3  c     w1         2.00  110     -",
        "the transfers of a round take longest on s0: about 0.5 s",
        "",
        "server  host  slices   holds  of all",
        "s0      a          3  3.0 MB     75%",
        "s1      b          1  1.0 MB     25%",
    ]


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_many_hosts_fit_into_any_width(columns: int) -> None:
    hosts = {f"a-long-name-of-a-host-{n}": [f"s{n}", f"w{n}", f"w{n + 50}"] for n in range(40)}
    rates = {row: {col: 1e6 + n for n, col in enumerate(hosts)} for row in hosts}
    told = shown([*opened(0), links(hosts=hosts, rates=rates)], columns)
    assert sum(each.split()[:1] == ["40"] for each in told) >= 1
    numbers = [word for each in told if each.startswith("    host") for word in each.split()[2:]]
    assert numbers == [str(number) for number in range(1, 41)], "every column is shown once"


def test_without_measurements_it_says_why() -> None:
    (first, *_) = shown([*opened(0), placed()])
    assert first == "no rates: all known processes of the job are on one host"
    other = line(0.3, "joined", worker=5, name="x", epoch=2, pid=7, host="elsewhere")
    here = line(0.2, "server-joined", server=0, pid=5, host="here")
    (first, *_) = shown([here, *opened(0), other, placed()])
    assert first == "no rates yet: a link is measured when 8 KiB or more arrive without a pause"
    assert shown([]) == ["no rates: all known processes of the job are on one host"]


def test_moves_change_what_servers_hold() -> None:
    moved = line(
        4.0, "rerouted", lost=[], promoted={"s1": 2}, seconds=0.1, slices={"s0": 1, "s1": 3},
        held={"s0": 1_000_000, "s1": 3_000_000},
    )  # fmt: skip
    told = shown([*opened(0), placed(), moved])
    assert told[-2:] == [
        "s0                 1  1.0 MB     25%",
        "s1                 3  3.0 MB     75%",
    ]


# -- why ---------------------------------------------------------------------------------------------


def asked(lines: list[Line], **job: Any) -> list[str]:
    spec = JobSpec(**{"job": "x", "servers": 2, "workers": 2, **job})
    return in_sentences(explain(fold(lines), job=spec))


def test_a_contribution_that_is_on_its_way_names_its_link() -> None:
    late = {"reason": "unreported", "fields": {"held": [0, 1], "servers": [0]}}
    said = asked([*opened(0, 1), links(), waiting(9.0, 2.0, [], **late)])
    expected = "contributions come over the link from c (worker-1) to a (s0): 2.0 MB/s"
    assert f"link: {expected} when it was last measured" in said
    nothing = asked([*opened(0, 1), waiting(9.0, 2.0, [], **late)])
    assert not any(each.startswith("link: ") for each in nothing), "nothing was measured"


def working(seconds: float | None) -> list[Line]:
    """A job whose rounds take 2 s, and their transfers so long on s0."""
    measured = links(**({} if seconds is None else {"slowest": "s0", "seconds": seconds}))
    return [*opened(0, 1), measured, *(rounds(3.0 + 2 * n, n) for n in range(1, 5))]


def test_rounds_that_wait_for_links_name_the_slowest() -> None:
    said = asked(working(1.5))
    assert said[0].startswith("links slow the rounds down")
    (link,) = [each for each in said if each.startswith("link: ")]
    assert link == (
        "link: the links of a (s0), which carry 12.5 MB/s, take about 1.5 s of the 2.0 s of a round;"
        " the slowest is from c to a, with 2.0 MB/s"
    )
    assert any("--placement aware" in each for each in said)
    assert any("--wire-dtype bf16" in each for each in said)
    followed = asked(working(1.5), placement="aware", wire_dtype="bf16")
    assert not any("--placement" in each or "--wire-dtype" in each for each in followed)


@pytest.mark.parametrize("seconds", [0.5, None])
def test_links_that_are_not_the_limit_are_not_named(seconds: float | None) -> None:
    said = asked(working(seconds))
    assert said[0].startswith("waiting for nothing")
    assert not any(each.startswith("link: ") for each in said)


def test_without_rounds_no_link_is_named() -> None:
    assert not any(each.startswith("link: ") for each in asked(working(1.5), sync="asp"))


SCENARIO = """
[job]
servers = 2
rounds = 12
heartbeat = "10s"
model = "12MB"
slice = "200kB"
[link]
bandwidth = "10Gbit"
[[workers]]
count = 2
step = "100ms"
[[hosts]]
servers = [0]
outgoing = "50Mbit"
incoming = "50Mbit"
[[hosts]]
servers = [1]
outgoing = "200Mbit"
incoming = "200Mbit"
"""


def test_a_simulated_job_tells_which_host_is_slow() -> None:
    state: RunState = fold(list(Run(SCENARIO).journal.lines)[:-1])
    assert state.measured is not None and state.measured.slowest == "s0"
    host = state.measured.host_of("s0")
    assert host is not None and state.measured.throughputs[host] == pytest.approx(6.25e6, rel=0.1)
    (link,) = [each for each in links_in_words(state, 80) if "longest" in each]
    assert "on s0" in link

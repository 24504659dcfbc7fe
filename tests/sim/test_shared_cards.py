"""Jobs on hosts whose network cards their servers and workers share."""

import pytest

from tests.sim.staged_run import Run

HOSTS, MODEL, RATE = 4, 8 * 10**6, 10**7
ROUNDS = 6
JOB = f"""
[job]
sync = "bsp"
rounds = {ROUNDS}
servers = {HOSTS}
model = "{MODEL}B"
slice = "500kB"
fold_rate = "1000GB"
[[workers]]
count = {HOSTS}
step = "1ms"
"""


def host(number: int, rate: int = RATE) -> str:
    return f"""
[[hosts]]
servers = [{number}]
workers = ["worker-{number}"]
outgoing = "{rate}B"
incoming = "{rate}B"
"""


def test_a_round_takes_as_long_as_the_busiest_card() -> None:
    run = Run(JOB + "".join(map(host, range(HOSTS))))
    longest = [line["longest_s"] for line in run.lines("rounds")][2:]
    # in each half of a round a card carries the slices of its server for all workers of other hosts
    # one way, and the slices of all other servers for its worker the other way
    loads = [sum(server.memory.slices.values()) for server in run.simulation.servers]
    busiest = max(max((HOSTS - 1) * load, sum(loads) - load) for load in loads)
    assert longest == pytest.approx([2 * busiest / RATE] * len(longest), rel=0.12)
    assert min(longest) >= 2 * busiest / RATE


def test_processes_of_one_host_do_not_use_its_card() -> None:
    everybody = host(0).replace("[0]", f"{list(range(HOSTS))}")
    names = [f"worker-{number}" for number in range(HOSTS)]
    together = everybody.replace('["worker-0"]', f"{names}")
    bare, shared = Run(JOB), Run(JOB + together)
    assert shared.journal.lines == bare.journal.lines


def test_a_changed_rate_changes_the_rounds() -> None:
    text = JOB + "".join(map(host, range(HOSTS)))
    faster = "".join(
        f"""
[[events]]
at = "5s"
what = "rate"
host = {number}
outgoing = "{4 * RATE}B"
incoming = "{4 * RATE}B"
"""
        for number in range(HOSTS)
    )
    longest = [line["longest_s"] for line in Run(text + faster).lines("rounds")]
    assert longest[-1] == pytest.approx(longest[2] / 4, rel=0.1)


@pytest.mark.parametrize("what", ["crash", "stop"])
def test_a_host_that_fails_does_not_hold_up_the_others(what: str) -> None:
    fault = f"""
[[events]]
at = "3s"
what = "{what}"
worker = "worker-2"
"""
    text = JOB.replace('sync = "bsp"', 'sync = "bsp"\ntimer = "3s"')
    run = Run(text + "".join(map(host, range(HOSTS))) + fault)
    assert not run.end.failed
    assert run.lines("rounds")[-1]["round"] == ROUNDS


@pytest.mark.parametrize("sync", ["asp", "ssp:2", "psp", "fsp"])
def test_all_policies_train_over_shared_cards(sync: str) -> None:
    text = JOB.replace('"bsp"', f'"{sync}"').replace(
        f"rounds = {ROUNDS}", 'max_time = "20s"\npoints = 600'
    )
    run = Run(text + "".join(map(host, range(HOSTS))))
    assert not run.end.failed
    assert run.result["contributions"] > HOSTS

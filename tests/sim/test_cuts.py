"""Cuts in the simulator: every slice of a checkpoint has the same contributions, under every policy."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.record import Record
from tests.sim.staged_run import Run

POLICIES = ["bsp", "ssp:2", "ssp-restart:2", "asp", "psp", "fsp"]
JOB = """
[job]
sync = "{sync}"
epochs = 2
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
    text = JOB.format(sync=sync, every=every, workers=len(steps), more=more)
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
    """The timer closes rounds while the slow worker is pushing: such a fold is no cut."""
    slow = 'timer = "10ms"\n'
    finished = run("bsp", "1rounds", [3, 3, 23], jitter=0.6, more=slow, seed=3)
    assert check_cuts(finished) >= 3

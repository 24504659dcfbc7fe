"""Jobs with a time limit whose workers hang in a step, in virtual time."""

import pytest

from tests.sim.staged_run import Run

LIMIT_S = 2.0
LATEST_S = LIMIT_S + 31
"""The patience is 10 s, twice, and contributions to the open round are waited for 10 s. All steps
before the limit together are shorter than a second."""
SYNCS = ["bsp", "asp", "ssp:0", "ssp:3", "ssp-restart:2", "psp", "fsp"]
JOB = """
[job]
max_time = "{limit}s"
points = 2000
batch = 10
servers = 2
model = "100kB"
timer = "{timer}"
sync = "{sync}"
save_model = true
{more}
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
count = 3
step = "{step}"
step_noise = 0.2
"""
HANG = '[[events]]\nat = "{at}"\nwhat = "slow"\nworker = "worker-{worker}"\nfactor = 1e6\n'


def run(
    sync: str,
    hanging: int,
    *,
    at: str = "205ms",
    step: str = "10ms",
    timer: str = "off",
    **more: str,
) -> Run:
    """Run a job in which the first workers hang (`hanging`: how many): a step that one of them begins
    after the time `at` takes hours."""
    settings = "\n".join(f'{name} = "{value}"' for name, value in more.items())
    text = JOB.format(sync=sync, limit=LIMIT_S, step=step, timer=timer, more=settings)
    return Run(text + "".join(HANG.format(at=at, worker=worker) for worker in range(hanging)))


def assert_ended(found: Run, hanging: int) -> None:
    assert found.end.reason.code == "goal" and found.end.reason.fields["goal"] == "seconds"
    assert not found.end.failed and found.lines("saved")
    hung = {line["name"] for line in found.lines("left") if line["reason"] == "hung"}
    assert hung == {f"worker-{number}" for number in range(hanging)}
    assert LIMIT_S < found.lines("ended")[0]["at_s"] < LATEST_S


@pytest.mark.parametrize("hanging", [1, 3])
@pytest.mark.parametrize("sync", SYNCS)
def test_a_job_ends_although_workers_hang(sync: str, hanging: int) -> None:
    found = run(sync, hanging)
    assert_ended(found, hanging)
    assert found.lines("ended")[0]["rounds"] > 1


@pytest.mark.parametrize("sync", ["bsp", "asp", "fsp"])
def test_a_job_ends_although_all_workers_hang_in_their_first_step(sync: str) -> None:
    assert_ended(run(sync, 3, at="0s", step="1h"), 3)


def test_a_timer_ends_the_round_but_does_not_end_the_worker() -> None:
    found = run("bsp", 1, timer="1s")
    assert_ended(found, 1)
    assert not found.lines("overtime"), "rounds go on without the worker that hangs"


def test_a_job_of_kind_statistics_ends_although_a_worker_hangs() -> None:
    assert_ended(run("bsp", 1, kind="statistics"), 1)


@pytest.mark.parametrize("sync", SYNCS)
def test_a_healthy_job_ends_with_the_first_fold_after_its_limit(sync: str) -> None:
    """Steps take longer than half of the limit, and psp makes several of them in a round."""
    found = run(sync, 0, step="1.5s")
    assert_ended(found, 0)
    assert not found.lines("overtime")
    assert {line["reason"] for line in found.lines("left")} == {"done"}
    assert found.lines("ended")[0]["at_s"] < LIMIT_S + 10

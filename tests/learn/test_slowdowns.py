"""Staged heterogeneity (workers and servers that are slowed on purpose): the plan, the parsing of
its flags, and runs that follow the plan."""

import os
import select
import subprocess
import sys
import time

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import UsageError
from polyrhythm.learn.slowdowns import Pacer, Slowdown, Slowdowns
from polyrhythm.wire.messages import JobSpec

MS = 10**6
SECOND = 10**9


def plan(**flags: str) -> Slowdowns:
    return Slowdowns.parse({flag.replace("_", "-"): text for flag, text in flags.items()}, 4)


def test_without_flags_steps_are_not_padded() -> None:
    assert plan().pad_ns(0, 0, 5 * MS, 100) == 0


def test_steps_are_padded_to_the_minimum_step_time() -> None:
    slowdowns = plan(min_step="10ms")
    assert slowdowns.pad_ns(0, 0, 3 * MS, 32) == 7 * MS
    assert slowdowns.pad_ns(0, 0, 12 * MS, 32) == 0


def test_the_slowness_factor_applies_to_the_padded_time() -> None:
    slowdowns = plan(min_step="10ms", slow="3=4x,1=1.5x")
    assert slowdowns.pad_ns(3, 0, 3 * MS, 32) == 37 * MS
    assert slowdowns.pad_ns(3, 0, 12 * MS, 32) == 36 * MS
    assert slowdowns.pad_ns(1, 0, 10 * MS, 32) == 5 * MS
    assert slowdowns.pad_ns(0, 0, 10 * MS, 32) == 0


def test_a_machine_becomes_slower_and_normal_again() -> None:
    slowdowns = plan(slow="3=2x", slow_at="90s:3=1x,60s:3=4x")
    pads = [slowdowns.pad_ns(3, s * SECOND, MS, 1) for s in (0, 59, 60, 89, 90)]
    assert pads == [MS, MS, 3 * MS, 3 * MS, 0]


def test_a_stall_comes_after_every_given_number_of_points() -> None:
    """The FSP paper, section 7: a worker is suspended for t milliseconds after every 1,000 data
    points."""
    slowdowns = plan(stall="3=32ms/1000")
    pads = [slowdowns.pad_ns(3, 0, MS, 400, visited) for visited in range(0, 2400, 400)]
    assert pads == [0, 0, 32 * MS, 0, 32 * MS, 0]
    assert slowdowns.pad_ns(3, 0, MS, 5000) == 5 * 32 * MS
    assert slowdowns.pad_ns(2, 0, MS, 5000) == 0


def test_worker_names_are_mapped_to_numbers() -> None:
    slowdowns = plan(min_step="10ms", tenant="2")
    assert slowdowns.of("worker-2").tenant
    assert not slowdowns.of("worker-12").tenant
    assert slowdowns.of("somebody-else") == Slowdown(min_step_ns=10 * MS)


def test_flags_of_a_worker_command_apply_to_that_worker() -> None:
    job = plan(min_step="10ms", slow="3=4x").of("worker-3")
    assert job.amended({"slow": "2x", "tenant": ""}) == Slowdown(10 * MS, 2.0, tenant=True)
    with pytest.raises(UsageError, match="--slow '3=4x' is not understood: give FACTOR"):
        job.amended({"slow": "3=4x"})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"min_step": "10"}, "--min-step '10' is not understood: give a duration such as 10ms"),
        ({"slow": "4x"}, "--slow '4x' is not understood: give WORKER=FACTOR such as 3=4x"),
        ({"slow": "3=fast"}, "--slow '3=fast' .* from 1 to 1000"),
        ({"slow": "3=0.5x"}, "from 1 to 1000"),
        ({"slow": "3=nanx"}, "from 1 to 1000"),
        ({"slow": "1=2x,1=3x"}, "--slow '1=3x': worker 1 has a --slow already"),
        ({"slow": "4=2x"}, "--slow '4=2x': there is no worker 4; with --workers 4 .* 0 to 3"),
        ({"slow": "60s:3=2x"}, "--slow '60s:3=2x' is not understood"),
        ({"slow_at": "3=4x"}, "--slow-at '3=4x' .* TIME:WORKER=FACTOR such as 60s:3=4x"),
        ({"slow_at": "soon:3=4x"}, "--slow-at 'soon:3=4x' .* such as 10ms"),
        ({"stall": "3=32ms"}, "--stall '3=32ms' .* whole number of at least 1"),
        ({"stall": "3=32/1000"}, "--stall '3=32/1000' .* such as 10ms"),
        ({"tenant": "x"}, "--tenant 'x' is not understood: give a worker's number"),
        ({"tenant": "2=3x"}, "--tenant '2=3x' is not understood"),
        ({"tenant": "9"}, "there is no worker 9"),
    ],
)
def test_flags_that_cannot_be_parsed_are_refused(flags: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(**flags)


def test_a_pacer_never_ends_a_step_early() -> None:
    began_ns = time.monotonic_ns()
    pacer = Pacer(plan(min_step="3ms").of("worker-0"))
    for step in range(1, 6):
        pacer.pace(step)
        assert time.monotonic_ns() - began_ns >= step * 3 * MS
    pacer.resume(time.monotonic_ns())


WITH_TENANT = """
import sys
from polyrhythm.learn.tenant import tenant
with tenant() as pid:
    print(pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True], ids=["by itself", "killed"])
def test_a_tenant_ends_with_its_worker(killed: bool) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WITH_TENANT], text=True, **pipes) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        pid = int(worker.stdout.readline())
        tenant = os.pidfd_open(pid)
        try:
            assert not select.select([tenant], [], [], 0)[0], "it is there"
            if killed:
                worker.kill()
            else:
                worker.stdin.close()
            assert select.select([tenant], [], [], 30)[0], "it has ended"
        finally:
            os.close(tenant)


@pytest.mark.parametrize("kind", ["gradient", "local"])
def test_padding_counts_as_computing(kind: str) -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        while not worker.stopped:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step(points=2)

    steps = 3 if kind == "local" else 1
    flags = {"min-step": "4ms", "slow": "1=3x"}
    job = JobSpec(
        job="staged",
        workers=2,
        kind=kind,
        local_steps=steps,
        rounds=4,
        timer="off",
        slowdowns=flags,
    )
    run = run_inline(job, main, timeout_s=20)
    names = {line["worker"]: line["name"] for line in run.journal if line["what"] == "joined"}
    totals = [line for line in run.journal if line["what"] == "rounds"][-1]["workers"]
    computed_ns = {names[worker]: totals[worker]["compute_ns"] for worker in totals}
    assert computed_ns["worker-0"] >= 4 * steps * 4 * MS
    assert computed_ns["worker-1"] >= 4 * steps * 12 * MS


def test_excluded_time_does_not_count_as_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, slept = [0], []

    def sleep_until(until_ns: int) -> None:
        slept.append(until_ns - now_ns[0])
        now_ns[0] = until_ns

    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr("polyrhythm.learn.slowdowns._sleep_until", sleep_until)
    pacer = Pacer(plan(min_step="10ms").of("worker-0"))
    now_ns[0] += 2 * MS
    pacer.pace(1)
    pacer.resume(time.monotonic_ns())
    # 5 ms of these 7 ms are evaluation, which does not count as computing
    now_ns[0] += 7 * MS
    pacer.exclude_time(5 * MS)
    pacer.pace(1)
    assert slept == [8 * MS, 8 * MS]


def test_slow_fold_gives_the_pause_of_each_server() -> None:
    slowdowns = Slowdowns.parse({"slow-fold": "0=500ms,2=1s"}, 1, 3)
    assert [slowdowns.fold_pause_s(server) for server in range(3)] == [0.5, 0.0, 1.0]


@pytest.mark.parametrize("text", ["500ms", "0=", "0=soon", "3=500ms"])
def test_a_slow_fold_with_an_unknown_server_or_a_bad_pause_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slow-fold"):
        Slowdowns.parse({"slow-fold": text}, 1, 3)


@pytest.mark.parametrize("sync", ["bspb", "bspv", "fsp"])
def test_a_step_is_padded_in_proportion_to_its_points_where_the_policy_chooses_them(
    sync: str,
) -> None:
    seen: list[tuple[int, float]] = []

    def main(worker: Worker) -> None:
        _, _, pacer = worker.inside
        assert pacer is not None
        model = torch.nn.Linear(1, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for (x,) in worker.batches((torch.ones(40, 1),), 16):
            seen.append((len(x), pacer.share))
            loss = model(x).sum()
            loss.backward()
            optimizer.step(objective=loss)

    job = JobSpec(job="staged", sync=sync, interval="20ms", rounds=4, slowdowns={"min-step": "1ms"})
    run_inline(job, main, timeout_s=60)
    assert any(points < 16 for points, _ in seen)
    assert all(share == points / 16 for points, share in seen)

"""`--engine inline` runs a job in the process of the command, so that a debugger can be used."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.processes import Command, call, wait_until
from tests.commands.terminal import Terminal

JOB = """
import sys
import torch


def main(worker):
    print("begins")
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    step = 0
    while not worker.stopped:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
        step += 1
        if step == 5:
            x = 41
            {HERE}
"""
INLINE = ("train", "job.py", "--engine", "inline", "--workers", 1, "--servers", 1, "--name", "run")


def write_job(folder: Path, here: str) -> None:
    (folder / "job.py").write_text(JOB.replace("{HERE}", here))


def journal(folder: Path) -> list[str]:
    lines = (folder / "runs" / "run" / "journal.jsonl").read_text().splitlines()
    return [json.loads(line)["what"] for line in lines]


def test_a_breakpoint_of_an_inline_job_has_the_terminal(tmp_path: Path) -> None:
    """The worker stays in the debugger for longer than the suspicion time, and for longer than a
    round waits. The worker is not evicted, and nothing is written over the prompt."""
    write_job(tmp_path, "breakpoint()")
    args = (*INLINE, "--rounds", 30, "--timer", "1s")
    with Terminal(*args, cwd=tmp_path) as terminal:
        terminal.wait_for(lambda: "(Pdb) " in terminal.raw, "the prompt")
        terminal.type("p x + 1\n")
        terminal.wait_for_text("42")
        terminal.wait_for(lambda: terminal.raw.endswith("(Pdb) "), "the prompt")
        before = len(terminal.raw)
        terminal.type("import time; time.sleep(4)\n")
        terminal.wait_for(lambda: terminal.raw[before:].endswith("(Pdb) "), "the prompt")
        assert terminal.raw[before:].split() == ["import", "time;", "time.sleep(4)", "(Pdb)"]
        terminal.type("c\n")
        assert terminal.end() == 0, terminal.raw
    assert "\x1b[?25l" not in terminal.raw, "there is no live table"
    told = journal(tmp_path)
    assert "left" in told and "evicted" not in told and told.count("joined") == 1
    assert "the job reached its goal: 30 rounds" in terminal.raw


def test_leaving_the_debugger_ends_the_job(tmp_path: Path) -> None:
    write_job(tmp_path, "breakpoint()")
    with Terminal(*INLINE, "--rounds", 30, cwd=tmp_path) as terminal:
        terminal.wait_for(lambda: "(Pdb) " in terminal.raw, "the prompt")
        terminal.type("q\n")
        assert terminal.end() == 1, terminal.raw
    assert "worker-0 failed: its debugger was ended" in terminal.raw
    assert "Traceback" not in terminal.raw


@pytest.mark.parametrize(
    ("here", "status", "line"),
    [
        ("sys.exit()", 1, "all workers left before the job reached its goal"),
        ("sys.exit(3)", 1, "worker-0 failed: exit status 3"),
        ("raise ValueError('on purpose')", 1, "worker-0 failed: ValueError: on purpose"),
    ],
)
def test_the_end_of_main_ends_an_inline_job(
    here: str, status: int, line: str, tmp_path: Path
) -> None:
    write_job(tmp_path, here)
    done = call(*INLINE, "--rounds", 30, "--json", cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert line in done.stderr
    assert done.stderr.count("Traceback") == ("raise" in here)
    json.loads(done.stdout)
    assert "begins" in done.stderr, "what workers print is not on stdout"


def test_an_exit_before_the_first_step_ends_an_inline_job(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def main(worker):\n    raise SystemExit\n")
    done = call(*INLINE, "--rounds", 30, cwd=tmp_path)
    assert done.returncode == 1
    assert "without calling worker.attach" in done.stderr, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_inline_job_in_order(number: signal.Signals, tmp_path: Path) -> None:
    write_job(tmp_path, "print('step 5', flush=True)")
    args = ("job.py", "--engine", "inline", "--workers", 1, "--servers", 1, "--rounds", 1_000_000)
    with Command(*args, cwd=tmp_path, trace=False) as command:
        wait_until(lambda: "step 5" in (tmp_path / "stderr.txt").read_text(), "it trains")
        os.kill(command.process.pid, number)
        assert command.process.wait(60) == 128 + number
        assert (command.run_dir / "model.safetensors").exists()
        assert (command.run_dir / "result.json").exists()


def test_the_inline_engine_refuses_processes_elsewhere(tmp_path: Path) -> None:
    write_job(tmp_path, "pass")
    done = call(*INLINE, "--local-workers", 0, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "polyrhythm: the inline engine runs all servers and workers of a job itself"
    )
    assert not (tmp_path / "runs").exists()


def test_the_inline_engine_refuses_to_restart_processes(tmp_path: Path) -> None:
    write_job(tmp_path, "pass")
    done = call(*INLINE, "--respawn", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "polyrhythm: --respawn restarts processes that have died, and --engine inline runs the job in"
        " one process: leave one of the two out"
    ]
    assert not (tmp_path / "runs").exists()


def test_the_titles_of_processes_name_the_run(tmp_path: Path, long_job: Path) -> None:
    with Command(long_job, "--workers", 2, "--rounds", 1_000_000, cwd=tmp_path) as command:
        command.await_round(1)
        shown = subprocess.run(
            ["ps", "-o", "args=", "-p", ",".join(map(str, command.pids()))],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        titles = sorted(re.findall(r"^polyrhythm: .*?(?= *$)", shown.stdout, re.MULTILINE))
        assert titles == [
            "polyrhythm: fork server of run",
            "polyrhythm: s0 (the lead) of run",
            "polyrhythm: s1 of run",
            "polyrhythm: worker-0 of run",
            "polyrhythm: worker-1 of run",
        ]
        short = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in command.pids()}
        assert {"s0", "s1", "worker-0", "worker-1"} <= short
        command.join("--name", "visitor")
        wait_until(lambda: command.joined("visitor"), "a worker joins")
        wait_until(
            lambda: any(
                b"polyrhythm: visitor of " in Path(f"/proc/{pid}/cmdline").read_bytes()
                for pid in command.pids()
            ),
            "its title",
        )
        worker = command.workers()[0]
        os.kill(worker, 10)  # SIGUSR1: write the stack of every thread
        logs = [command.run_dir / "logs" / f"worker-{n}.log" for n in (0, 1)]
        wait_until(lambda: any("long_job.py" in log.read_text() for log in logs), "the stack")

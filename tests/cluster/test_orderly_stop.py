"""A stop ends every worker's training loop in an orderly way: the code after the loop runs.

The tests stop one job under each of four policies. With POLYRHYTHM_TORTURE=N they stop N jobs under
every policy.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.processes import SHOWN_ELSEWHERE, Command, call, wait_until

POLICIES = (
    *("bsp", "psp", "fsp", "asp"),
    *(pytest.param(s, marks=SHOWN_ELSEWHERE) for s in ("ssp:3", "ssp-restart:3", "bspb", "bspv")),
)
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPS = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
WORKERS = 2
LONG_S = 60

JOB = '''
"""Trains on leased points; the code after the loop saves what this worker has."""
import os, time
import torch


def main(worker):
    torch.manual_seed(worker.seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    inputs = torch.randn(4000, 16)
    targets = inputs.sum(1, keepdim=True)
    open(f"began-{worker.name}", "w").close()
    if worker.options.get("own-loop"):
        while not worker.stopped:
            torch.nn.functional.mse_loss(model(inputs[:8]), targets[:8]).backward()
            optimizer.step(points=8)
    else:
        for x, y in worker.batches((inputs, targets), batch_size=8):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step(objective=loss)
    assert worker.stopped
    open(f"over-{worker.name}", "w").close()
    while worker.options.get("gate") and not os.path.exists("go"):
        time.sleep(0.01)
    torch.save(model.state_dict(), f"after-{worker.name}.tmp")
    os.rename(f"after-{worker.name}.tmp", f"after-{worker.name}.pt")
'''


NOTE_VERSION = """
            if worker.stopped and not os.path.exists(f"final-{worker.name}.pt"):
                torch.save(model.state_dict(), f"final-{worker.name}.tmp")
                os.rename(f"final-{worker.name}.tmp", f"final-{worker.name}.pt")
            while not worker.stopped and _ == 20:
                model(inputs[:8]).sum().backward()
                optimizer.step(points=8)
"""
"""A job that makes 20 steps and then trains until it is stopped. Steps that a worker makes after
the stop must change nothing."""


def start(cwd: Path, sync: str, *flags: object, job: str = JOB) -> Command:
    path = cwd / "job.py"
    path.write_text(job)
    sizes = ("--workers", WORKERS, "--servers", 2, "--threads", 1)
    return Command(path, "--sync", sync, "--max-seconds", 600, *sizes, *flags, cwd=cwd)


def await_training(command: Command) -> None:
    """Wait until every worker is in its training loop."""

    def begun() -> bool:
        command.assert_alive()
        names = [f"began-worker-{number}" for number in range(WORKERS)]
        return all((command.cwd / name).exists() for name in names)

    wait_until(begun, "every worker trains")


def saved(command: Command) -> list[dict[str, torch.Tensor]]:
    """Return, for each worker that has run the code after its loop, the objects that this code has
    saved."""
    paths = sorted(command.cwd.glob("after-*.pt"))
    return [torch.load(path, weights_only=True) for path in paths]


def assert_stopped(command: Command, number: signal.Signals) -> None:
    assert command.wait(LONG_S) == 128 + number, command.stderr()
    errors = command.stderr()
    assert "failed" not in errors and "Traceback" not in errors, errors
    (ended,) = command.journal("ended")
    assert ended["reason"] == "stopped" and not ended["failed"]
    wait_until(lambda: not command.pids(), "every process ended", LONG_S)


@pytest.mark.parametrize("stop", range(STOPS))
@pytest.mark.parametrize("sync", POLICIES)
def test_the_code_after_the_loop_runs_on_every_worker(tmp_path: Path, sync: str, stop: int) -> None:
    draw = random.Random(f"{sync} {stop}")
    moment_s = draw.uniform(0.0, 0.5)
    number = draw.choice(SIGNALS)
    own_loop = draw.choice([(), ("--set", "own-loop=1")])
    with start(tmp_path, sync, *own_loop) as command:
        await_training(command)
        time.sleep(moment_s)  # the stop comes at a random moment of the training
        os.kill(command.process.pid, number)
        assert_stopped(command, number)
        states = saved(command)
        assert len(states) == WORKERS, "the code after the loop did not run on every worker"
        model = load_file(command.run_dir / "model.safetensors")
        for state in states:
            assert state.keys() == model.keys()
            assert all(torch.equal(state[key], model[key]) for key in model)


def over(command: Command) -> bool:
    names = [f"over-worker-{number}" for number in range(WORKERS)]
    return all((command.cwd / name).exists() for name in names)


def test_the_job_waits_for_the_code_after_the_loop_and_reports_it(tmp_path: Path) -> None:
    with start(tmp_path, "bsp", "--set", "gate=1") as command:
        await_training(command)
        os.kill(command.process.pid, signal.SIGINT)
        wait_until(lambda: over(command), "every worker left its loop")
        wait_until(lambda: "press Ctrl-C again" in command.stderr(), "it says that it waits")
        command.assert_alive()
        assert not saved(command)
        (tmp_path / "go").touch()
        assert_stopped(command, signal.SIGINT)
        assert len(saved(command)) == WORKERS
        assert "stopped" in call("runs", cwd=tmp_path).stdout


def test_a_second_signal_ends_the_job_at_once(tmp_path: Path) -> None:
    with start(tmp_path, "bsp", "--set", "gate=1") as command:
        await_training(command)
        os.kill(command.process.pid, signal.SIGINT)
        wait_until(lambda: over(command), "every worker left its loop")
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait(LONG_S) == 128 + signal.SIGINT
        wait_until(lambda: not command.pids(), "every process ended", LONG_S)
        assert not saved(command), "the code after the loop was still waiting"
        assert "Traceback" not in command.stderr()
        assert "  at least " in command.stdout()


def test_steps_after_a_stop_do_not_change_the_final_parameters(tmp_path: Path) -> None:
    """The loop ignores `worker.stopped` and continues. With kind local, its steps would change the
    worker's own copy of the parameters."""
    text = JOB.replace("while not worker.stopped:", "for _ in range(40):")
    text = text.replace("optimizer.step(points=8)", "optimizer.step(points=8)\n" + NOTE_VERSION)
    with start(tmp_path, "bsp", "--kind", "local", "--set", "own-loop=1", job=text) as command:
        await_training(command)
        os.kill(command.process.pid, signal.SIGTERM)
        wait_until(lambda: len(list(tmp_path.glob("final-*.pt"))) == WORKERS, "the job stopped")
        (tmp_path / "go").touch()
        assert_stopped(command, signal.SIGTERM)
        states = saved(command) + [
            torch.load(path, weights_only=True) for path in tmp_path.glob("final-*.pt")
        ]
        assert len(states) == 2 * WORKERS
        for state in states[1:]:
            assert all(torch.equal(state[key], states[0][key]) for key in state)

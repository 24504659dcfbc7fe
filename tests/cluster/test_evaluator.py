"""When the worker that evaluates is killed, another one takes over: the job still reaches its
target, and still keeps its best model."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cluster.processes import Command, wait_until

JOB = '''
"""The accuracy is low until the file `go` exists."""
from pathlib import Path

import torch


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.001))
    while not worker.stopped:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step(points=2)
        worker.evaluate(accuracy=lambda: 0.95 if Path("go").exists() else 0.5)
    worker.report(last=1.0)
'''
FLAGS = ("--workers", 3, "--servers", 2, "--threads", 1, "--json", "--min-step", "20ms")
GOALS = ("--target-accuracy", 0.9, "--keep-best", "accuracy", "--max-seconds", 300)


@pytest.mark.guarantee("evaluator-killed", k=(0,))
@pytest.mark.parametrize(("sync", "more"), [("bsp", ()), ("asp", ("--respawn",))])
def test_the_target_and_the_best_model_survive_the_evaluator(
    tmp_path: Path, sync: str, more: tuple[str, ...]
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    with Command("job.py", *FLAGS, *GOALS, "--sync", sync, *more, cwd=tmp_path) as command:

        def reports(name: str) -> list[float]:
            lines = [line for line in command.journal("reported") if line["name"] == name]
            return [line["metrics"]["accuracy"] for line in lines if "accuracy" in line["metrics"]]

        wait_until(lambda: reports("worker-0"), "worker-0 evaluates")
        os.kill(command.joined("worker-0")[0]["pid"], signal.SIGKILL)
        wait_until(lambda: reports("worker-1"), "worker-1 evaluates")
        if more:
            wait_until(lambda: len(command.joined("worker-0")) > 1, "worker-0 is back")
            before = len(reports("worker-1"))
            wait_until(lambda: len(reports("worker-1")) > before, "worker-1 still evaluates")
        (tmp_path / "go").touch()
        command.wait()
        chosen = [line["name"] for line in command.journal("evaluator")]
        result = json.loads(command.stdout())
        last = {line["name"] for line in command.journal("reported") if "last" in line["metrics"]}
    assert chosen == ["worker-0", "worker-1"], "worker-0 does not take over again"
    assert "accuracy" in result["ended"] and result["failed"] is None
    assert result["best_model"]["value"] == 0.95
    assert Path(result["best_model"]["path"]).is_file()
    assert {"worker-1", "worker-2"} <= last

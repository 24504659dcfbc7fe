"""`polyrhythm.train` in Python programs: in a script, in a notebook cell, after Ctrl-C, and with
workers that fail."""

import contextlib
import json
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas
import pytest
import torch

import polyrhythm as pr
from tests.cluster.processes import wait_until
from tests.commands.start import Process, start_script

MAIN = """
import os, time
import torch
import polyrhythm as pr

NOISE = torch.zeros(400_000)  # more than a message to the fork server may have

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.inner(x)

def main(worker: pr.Worker) -> None:
    if worker.name in worker.options.get("fail", ""):
        raise ValueError(f"{worker.name} fails on purpose")
    torch.manual_seed(worker.seed)
    x = torch.randn(64, 2) + NOISE[0]
    y = x.sum(1, keepdim=True)
    model = Line()
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in worker.batches((x, y), batch_size=8):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step(objective=loss)
    open(f"over-{worker.name}", "w").close()
    while worker.options.get("gate") and not os.path.exists("go"):
        time.sleep(0.01)
    worker.report(error=float(torch.nn.functional.mse_loss(model(x), y)))
"""

SCRIPT = """
import json
result = pr.train(main, workers=2, servers=1, sync="bsp", epochs=20, name="run", set={"a": 1})
model = Line()
model.load_state_dict(result.state_dict())
weight = model.inner.weight.tolist()
print(json.dumps([weight, result.metrics, result.history, str(result.run), result.stopped]))
"""

INTERRUPTED = """
try:
    result = pr.train(main, workers=2, servers=1, max_seconds=1000, name="run", set={"gate": GATE})
except KeyboardInterrupt as error:
    print("ended at once", error.result.stopped)
else:
    print("stopped", result.stopped, sorted(result.state_dict()))
"""


@contextlib.contextmanager
def started(code: str, folder: Path) -> Iterator[Process]:
    """Run a script, forked from the warm server. It is killed at the end if it still runs, and its
    processes end with it."""
    path, pipe = folder / "mine.py", subprocess.PIPE
    path.write_text(MAIN + code)
    with (folder / "stderr.txt").open("w") as stderr:
        process = start_script(path, cwd=folder, stdout=pipe, stderr=stderr)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


def output(process: Process, folder: Path) -> str:
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0, (folder / "stderr.txt").read_text()
    return out


def began(folder: Path) -> bool:
    journal = folder / "runs" / "run" / "journal.jsonl"
    return journal.is_file() and '"what":"rounds"' in journal.read_text()


def test_a_script_trains_a_function_of_its_own(tmp_path: Path) -> None:
    with started(SCRIPT, tmp_path) as process:
        weight, metrics, history, run, stopped = json.loads(output(process, tmp_path))
    assert torch.allclose(torch.tensor(weight), torch.ones(1, 2), atol=0.05)
    assert metrics["error"] < 0.01
    assert history[-1]["error"] < 0.01 and history[-1]["worker"].startswith("worker-")
    assert history[-1]["passes"] == 20
    assert any("objective" in record for record in history)
    table = pandas.DataFrame(history)
    assert len(table) == len(history) and table["error"].iloc[-1] < 0.01
    assert run == str(tmp_path / "runs" / "run") and not stopped
    assert "round 1 opened with 2 workers" in (tmp_path / "stderr.txt").read_text()


@pytest.mark.parametrize("module", ["__main__", "cell"])
def test_code_without_a_file_trains_its_function(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook runs its cells in `__main__`. Other programs make modules without a file."""
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "__main__"}
    if module != "__main__":
        made = types.ModuleType(module)
        monkeypatch.setitem(sys.modules, module, made)
        space = vars(made)
    exec(compile(MAIN, "<cell 1>", "exec"), space)
    result = pr.train(space["main"], workers=2, servers=1, epochs=20, quiet=True)
    assert result.run.name.startswith("python-")
    assert result.metrics["error"] < 0.01
    assert torch.allclose(result.state_dict()["inner.weight"], torch.ones(1, 2), atol=0.05)


def test_the_function_is_in_no_file_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "__main__"}
    exec(MAIN, space)
    result = pr.train(space["main"], workers=1, servers=1, epochs=1, quiet=True, trace=True)
    written = b"".join(path.read_bytes() for path in result.run.rglob("*") if path.is_file())
    assert b"fails on purpose" not in written
    assert b"cloudpickle" not in written


def test_ctrl_c_stops_in_order_and_returns_the_result(tmp_path: Path) -> None:
    with started(INTERRUPTED.replace("GATE", '""'), tmp_path) as process:
        wait_until(lambda: began(tmp_path), "training begins")
        process.send_signal(signal.SIGINT)
        assert output(process, tmp_path) == "stopped True ['inner.bias', 'inner.weight']\n"


def test_a_second_ctrl_c_raises_keyboard_interrupt(tmp_path: Path) -> None:
    with started(INTERRUPTED.replace("GATE", '"yes"'), tmp_path) as process:
        wait_until(lambda: began(tmp_path), "training begins")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: (tmp_path / "over-worker-0").exists(), "worker-0 leaves its loop")
        process.send_signal(signal.SIGINT)
        assert output(process, tmp_path) == "ended at once True\n"


def test_a_failed_worker_is_in_the_result_and_all_failed_workers_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "__main__"}
    exec(MAIN, space)
    main = space["main"]
    result = pr.train(main, workers=2, servers=1, epochs=2, quiet=True, set={"fail": "worker-1"})
    assert list(result.worker_failures) == ["worker-1"]
    assert "ValueError: worker-1 fails on purpose" in result.worker_failures["worker-1"]
    with pytest.raises(pr.errors.JobFailed, match="worker-0 fails on purpose") as caught:
        pr.train(main, workers=1, servers=1, epochs=2, quiet=True, set=["fail=worker-0"])
    assert caught.value.result.failed
    with pytest.raises(pr.errors.StoreError, match=r"has no model.safetensors"):
        caught.value.result.state_dict()


def test_a_thread_can_train(tmp_path: Path) -> None:
    """Only the main thread of Python handles signals."""
    space = {"__name__": "__main__"}
    exec(MAIN.replace('open(f"over-{worker.name}", "w").close()', ""), space)
    options = {"workers": 1, "servers": 1, "epochs": 1, "quiet": True, "runs_dir": tmp_path}
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(pr.train, space["main"], **options).result(90)
    assert result.status == "ended"


def test_the_program_in_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    assert "pr.train(" in program
    curve = '[print(row["passes"]) for row in result.history if row["what"] == "pass"]'
    path, pipe = tmp_path / "program.py", subprocess.PIPE
    path.write_text(program + curve)
    process = start_script(path, cwd=tmp_path, stdout=pipe, stderr=pipe)
    out, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    metrics, *drawn = str(out).splitlines()
    assert "'error': " in metrics
    assert [line.split()[0] for line in drawn] == ["1", "2", "3", "4", "5"]

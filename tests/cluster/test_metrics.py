"""Metrics of users in real jobs: all output shows them, a job can end at a target for them, and they
choose the best model."""

import ast
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pandas
import pytest

import polyrhythm as pr
from tests.cluster.processes import Command, call, wait_until
from tests.commands.start import run

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).parent / "jobs" / "metrics.py"
SIZES = ("--workers", 2, "--servers", 1, "--threads", 1)


def train(cwd: Path, *flags: object) -> dict[str, Any]:
    with Command(JOB, *SIZES, "--json", *flags, cwd=cwd) as job:
        assert job.wait() == 0, job.stderr()
    result: dict[str, Any] = json.loads(job.stdout())
    return result


def test_every_value_is_shown_everywhere(tmp_path: Path) -> None:
    result = train(tmp_path)
    assert result["passes"] == 4
    expected = {"f1": 0.4, "val_loss": 0.25, "visited": 0.5}
    assert result["metrics"] == pytest.approx(expected)
    assert result["per_worker"]["worker-1"]["reported"] == {"visited": 0.0}
    status = json.loads(call("status", "run", "--json", cwd=tmp_path).stdout)
    assert status["metrics"] == pytest.approx(expected)
    assert "reported: f1 0.4000, val_loss 0.2500, visited 0.5000" in (
        call("status", "run", cwd=tmp_path).stdout
    )
    assert "f1 0.4000, val_loss 0.2500" in call("runs", cwd=tmp_path).stdout
    (listed,) = json.loads(call("runs", "--json", cwd=tmp_path).stdout)
    assert listed["metrics"] == pytest.approx(expected)
    (recorded,) = pr.runs(tmp_path / "runs")
    assert recorded.metrics["val_loss"] == 0.25
    assert "val_loss 0.2500" in str(recorded)
    table = pandas.DataFrame(recorded.history)
    assert table["val_loss"].dropna().tolist() == pytest.approx([1.0, 1 / 2, 1 / 3, 1 / 4])
    assert {"f1", "visited", "objective", "at_s", "worker"} <= set(table.columns)


@pytest.mark.parametrize(
    ("target", "value", "ended"),
    [
        ("val_loss=0.5", 0.5, "val_loss 0.5000, wanted at most 0.5"),
        ("f1>=0.3", 0.3, "f1 0.3000, wanted at least 0.3"),
    ],
)
def test_a_metric_ends_the_job(tmp_path: Path, target: str, value: float, ended: str) -> None:
    result = train(tmp_path, "--target", target, "--max-seconds", 60)
    assert result["ended"] == f"the job reached its goal: {ended}"
    assert result["seconds_to_target"] is not None
    name = re.split("[>=]", target)[0]
    assert result["metrics"][name] == pytest.approx(value)


def test_a_python_program_and_a_file_name_targets_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"workers": 1, "servers": 1, "threads": 1, "quiet": True, "max_seconds": 60}
    result = pr.train(JOB, target={"val_loss": 0.5, "f1": 9}, **sizes)
    assert result.metrics["val_loss"] == 0.5
    (tmp_path / "polyrhythm.toml").write_text('target = "f1=0.3"\n')
    assert train(tmp_path, "--max-seconds", 60)["metrics"]["f1"] == pytest.approx(0.3)


def test_a_misspelt_target_ends_the_job_with_the_names_that_are_reported(tmp_path: Path) -> None:
    with Command(JOB, *SIZES, "--target", "val_los=0.1", cwd=tmp_path) as job:
        assert job.wait() == 1
    assert job.stderr().count("--target names val_los, which no worker has reported yet") == 1
    assert (
        "the job cannot reach its goal: no worker reports val_los, and workers report f1, val_loss;"
        in job.stderr()
    )


def test_the_best_model_is_chosen_by_any_metric(tmp_path: Path) -> None:
    result = train(tmp_path, "--keep-best", "val_loss")
    best = result["best_model"]
    assert (best["metric"], best["value"]) == ("val_loss", 0.25)
    assert (tmp_path / "runs" / "run" / "model-best.safetensors").is_file()
    shown = call("status", "run", cwd=tmp_path).stdout
    assert f"best model: {os.path.relpath(best['path'], tmp_path)} (val_loss 0.2500)" in shown


def stop_after_a_checkpoint(cwd: Path, *flags: object) -> int:
    """Stop a job when it has a checkpoint. Return the round of the newest checkpoint."""
    with Command(
        JOB, *SIZES, "--epochs", 10**6, "--checkpoint-every", "2rounds", *flags, cwd=cwd
    ) as job:
        wait_until(lambda: job.journal("checkpoint"), "a checkpoint")
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130, job.stderr()
    return int(job.journal("checkpoint")[-1]["round"])


def test_a_resumed_job_gets_a_target(tmp_path: Path) -> None:
    stop_after_a_checkpoint(tmp_path)
    flags = ("--rounds", 10**6, "--target", "f1=0.2", "--json")
    done = run("resume", "run", *flags, cwd=tmp_path, timeout_s=90, spares=1)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ended"].endswith("f1 0.2000, wanted at least 0.2")


def test_a_job_with_replicas_is_resumed_on_one_server(tmp_path: Path) -> None:
    round_ = stop_after_a_checkpoint(tmp_path, "--servers", 2, "--replicas", 1)
    flags = ("--rounds", round_ + 4, "--servers", 1, "--json")
    done = run("resume", "run", *flags, cwd=tmp_path, timeout_s=90, spares=1)
    assert done.returncode == 0, done.stderr
    assert "--replicas is lowered from 1 to 0: there are too few other servers" in done.stderr
    assert json.loads(done.stdout)["servers"] == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--servers", 1, "--replicas", 1),
            "--replicas is 1: each copy of a slice needs another server, and --servers is 1; give 0",
        ),
        (("--target", "val_loss"), "--target 'val_loss' is not understood: give NAME=VALUE"),
        (("--target", "f1=x"), "--target 'f1=x' is not understood: 'x' is not a number"),
        (
            ("--target", "accuracy=0.9", "--target-accuracy", 0.8),
            "there are 2 targets for accuracy: give only one",
        ),
        (("--keep-best", "objective"), "--keep-best is 'objective': give a metric that workers"),
        (("--keep-best", "a b"), "--keep-best is 'a b': 'a b' is not the name of a metric"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, flags: tuple[object, ...], words: str
) -> None:
    done = call("train", JOB, *flags, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"polyrhythm: {words}")
    assert not (tmp_path / "runs").exists()


# -- the recipes of docs/metrics.md ------------------------------------------------------------

RECIPES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.DOTALL)
WRITER = """
import json
import pathlib

class SummaryWriter:
    def __init__(self, folder):
        self.path = pathlib.Path(folder)
        self.path.mkdir()  # fails in a second process
        self.lines = []
    def add_scalar(self, name, value, step):
        self.lines.append([name, value, step])
    def close(self):
        (self.path / "lines.json").write_text(json.dumps(self.lines))
"""


def with_recipe(recipe: str) -> str:
    """The code of the job with the lines of a recipe added: imports at the top, and the other lines
    in `main`."""
    lines = recipe.strip().splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    calls = [f"    {line}" for line in lines if line.startswith("worker.")]
    head, body = JOB.read_text().split("    torch.manual_seed", 1)
    ast.parse(recipe)
    return "\n".join([*imports, head, *calls, "    torch.manual_seed" + body])


def recipe_with(word: str) -> str:
    (found,) = [recipe for recipe in RECIPES if word in recipe and "log_to" in recipe]
    return str(found)


def logged(cwd: Path, text: str) -> None:
    (cwd / "job.py").write_text(text)
    with Command("job.py", *SIZES, cwd=cwd) as job:
        assert job.wait() == 0, job.stderr()
    assert "could not write" not in job.stderr(), job.stderr()


def test_the_recipe_for_tensorboard_writes_every_evaluation(tmp_path: Path) -> None:
    """The test replaces TensorBoard by a module with the same interface."""
    text = with_recipe(recipe_with("SummaryWriter"))
    (tmp_path / "board.py").write_text(WRITER)
    logged(tmp_path, text.replace("torch.utils.tensorboard", "board"))
    lines = json.loads((tmp_path / "tensorboard" / "lines.json").read_text())
    losses = [(value, step) for name, value, step in lines if name == "val_loss"]
    assert [value for value, _ in losses] == pytest.approx([1.0, 1 / 2, 1 / 3, 1 / 4])
    steps = [step for _, step in losses]
    assert steps == sorted(set(steps)) and steps[0] > 0


def test_the_recipe_for_tensorboard_with_tensorboard(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logged(tmp_path, with_recipe(recipe_with("SummaryWriter")))
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    events = loading.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    values = [event.value for event in events.Scalars("val_loss")]
    assert values == pytest.approx([1.0, 1 / 2, 1 / 3, 1 / 4])


def test_the_recipe_for_wandb_with_wandb(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    logged(tmp_path, with_recipe(recipe_with("wandb")))
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1


def test_the_recipe_for_a_history(tmp_path: Path) -> None:
    train(tmp_path)
    (recipe,) = [recipe for recipe in RECIPES if "result.history" in recipe]
    logger = _Logger()
    (result,) = pr.runs(tmp_path / "runs")
    exec(recipe, {"result": result, "logger": logger})
    assert {"val_loss", "f1", "objective"} <= {name for data, _ in logger.lines for name in data}


class _Logger:
    def __init__(self) -> None:
        self.lines: list[tuple[dict[str, float], int]] = []

    def log(self, data: dict[str, float], *, step: int) -> None:
        self.lines.append((data, step))

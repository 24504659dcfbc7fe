"""The comparison of the examples with plain torch: its table, its verdicts, and its file of
results."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.examples.__main__ import (
    PLAIN,
    Kept,
    Run,
    _from_journal,
    measure,
    outside,
    runs_of,
    table,
)
from benchmarks.examples.catalogue import EXAMPLES, FOLDER, POLICIES, Example
from benchmarks.examples.notebook import code_before_training
from benchmarks.examples.stand_in import train

SCRIPT = """
import torch
DEFAULTS = {"epochs": 3}

def main(worker):
    torch.manual_seed(worker.seed)
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), name="line")
    inputs = torch.randn(20, 2)
    sizes = []
    for (x,) in worker.batches((inputs,), batch_size=4):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step(objective=loss)
        sizes.append(len(x))
    worker.report(largest=max(sizes), steps=len(sizes), error=loss.item())
"""


def result(value: float, points: int = 100, seed: int = 0) -> dict[str, Any]:
    return {"value": value, "points": points, "spread": 0.0, "seed": seed}


def test_every_script_is_compared() -> None:
    assert {each.file for each in EXAMPLES.values()} == {
        path.name
        for path in FOLDER.iterdir()
        if path.suffix in (".py", ".ipynb") and "def main(worker" in path.read_text()
    }


def test_the_notebook_is_stored_without_output() -> None:
    for cell in json.loads((FOLDER / "notebook.ipynb").read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_results_worse_than_the_tolerance_are_named() -> None:
    assert EXAMPLES["tabular"].tolerance == 0.02
    results = {
        "tabular": {
            PLAIN: [{**result(0.96), "own_batch": 0.99}, result(0.94)],
            "bsp": [result(0.94), result(0.92, seed=1)],
            "asp": [result(0.97), result(0.95, points=99, seed=1)],
            "psp": [{"failed": "it did not end", "seed": 0}, result(0.95, seed=1)],
            "fsp": [],
        }
    }
    assert outside(results) == [
        "tabular under bsp, seed 1: explained 0.920, plain torch 0.950",
        "tabular under asp, seed 1: 99 points, plain torch 100",
        "tabular under psp, seed 0: it failed: it did not end",
    ]
    (row,) = [line for line in table(results).splitlines() if "`tabular.py`" in line]
    assert "0.930 (0.920 to 0.940), **1 of 2 outside**" in row
    assert row.count("outside") == 3
    assert "0.990 (0.990 to 0.990)" in row
    assert row.endswith("| not run |")


def test_a_measure_can_be_better_when_it_is_lower() -> None:
    example = Example("x.py", "distance", 0.1, lower=True)
    assert example.deficit(0.3, 0.1) == pytest.approx(0.2)
    assert example.deficit(0.1, 0.3) < 0


def test_flags_of_a_script_are_in_its_command_and_below_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = dataclasses.replace(
        EXAMPLES["tabular"],
        flags=("--kind", "local"),
        policy_flags={"asp": ("--async-scale", "none")},
    )
    monkeypatch.setitem(EXAMPLES, "tabular", example)
    flags = " ".join(Run(example, "asp", 2).words)
    assert "--sync asp --kind local --async-scale none --seed 2" in flags
    shown = table({"tabular": {PLAIN: [result(1.0)], "asp": [result(1.0)]}})
    assert "`--kind local` under every policy" in shown
    assert "`--async-scale none` under `asp`" in shown


def test_a_stopped_comparison_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known results are not measured again. Failed runs, and runs of a script that has changed, are
    repeated."""
    script = tmp_path / "mine.py"
    script.write_text("first")
    example = Example(str(script), "accuracy", 0.1)
    made: list[Run] = []

    def make(run: Run) -> dict[str, Any]:
        made.append(run)
        return {"failed": "no reason"} if run.policy == "psp" else result(0.9)

    monkeypatch.setattr("benchmarks.examples.__main__.result_of", make)
    runs = runs_of([example], ("bsp", "psp"), 1)
    file = tmp_path / "results" / "known.json"
    first = measure(runs, 2, Kept(file))
    assert len(made) == 3
    made.clear()
    assert measure(runs, 2, Kept(file)) == first
    assert [run.policy for run in made] == ["psp"]
    made.clear()
    script.write_text("changed")
    measure(runs, 2, Kept(file))
    assert len(made) == 3
    made.clear()
    measure(runs, 2, Kept(file, anew=True))
    assert len(made) == 3
    made.clear()
    script.write_text("changed again")
    assert measure(runs, 0, Kept(file)) == {"mine": {PLAIN: [], "bsp": [], "psp": []}}
    assert not made


def test_the_value_of_a_job_is_the_mean_of_the_last_reports() -> None:
    journal = [
        {"what": "rounds", "points": 60},
        {"what": "reported", "name": "worker-0", "metrics": {"accuracy": 0.1}},
        {"what": "rounds", "points": 40},
        {"what": "reported", "name": "worker-1", "metrics": {"accuracy": 0.8}},
        {"what": "reported", "name": "worker-0", "metrics": {"accuracy": 0.9}},
        {"what": "reported", "name": "worker-0", "metrics": {"other": 5.0}},
    ]
    found = _from_journal(journal, "accuracy")
    assert found == pytest.approx({"value": 0.85, "points": 100, "spread": 0.1})
    assert "failed" in _from_journal(journal, "loss")


@pytest.mark.parametrize(("workers", "largest", "steps"), [(1, 4, 15), (3, 12, 6)])
def test_the_stand_in_visits_every_point_in_every_pass(
    workers: int, largest: int, steps: int, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    worker = train(tmp_path / "script.py", seed=1, workers=workers)
    assert worker.points == 60
    assert (worker.metrics["largest"], worker.metrics["steps"]) == (largest, steps)


def test_the_stand_in_makes_the_steps_of_plain_torch(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    worker = train(tmp_path / "script.py", seed=1, workers=1)
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(20, 2)
    order = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs),
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    for _ in range(3):
        for (x,) in order:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
    assert worker.metrics["error"] == loss.item()


def test_the_stand_in_gets_the_cells_before_training() -> None:
    code = code_before_training(FOLDER / "notebook.ipynb")
    assert "def main(worker)" in code
    assert "pr.train(" not in code


def test_all_required_policies_are_compared() -> None:
    assert POLICIES == ("bsp", "asp", "ssp:4", "psp", "fsp")

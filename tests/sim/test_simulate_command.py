"""`polyrhythm simulate` makes a summary and a journal like those of a real run, and reports an
error in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyrhythm.cli.simulate import simulate
from polyrhythm.core.server.leases import Versions
from polyrhythm.core.server.slices import HeldSlices, Verdict
from polyrhythm.errors import InvariantBroken
from polyrhythm.observe.journal import read_journal

CLI = Path(sys.executable).with_name("polyrhythm")
SCENARIO = """
[job]
epochs = 1
points = 500
timer = "200ms"
[link]
loss = 0.01
[[workers]]
count = 3
step = "10ms"
step_noise = 0.3
[[workers]]
step = "10ms"
link = { bandwidth = "1MB" }
[[events]]
at = "300ms"
what = "crash"
worker = "worker-1"
"""


def call(cwd: Path, *args: object, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CLI), "simulate", *(str(arg) for arg in args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def test_a_run_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    results = []
    for name, hash_seed in (("one", "1"), ("two", "2")):
        args = ("mine.toml", "--seed", 7, "--json", "--check", "--name", name)
        done = call(tmp_path, *args, hash_seed=hash_seed)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    journals = [
        (tmp_path / "runs" / name / "journal.jsonl").read_bytes() for name in ("one", "two")
    ]
    assert journals[0] == journals[1]
    assert results[0] == results[1]
    assert results[0]["points"] == 500
    assert results[0]["seed"] == 7
    assert results[0]["failed"] is None


def test_the_summary_is_that_of_a_real_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    simulate(tmp_path / "mine.toml", name="run", runs_dir=tmp_path / "runs")
    out, err = capsys.readouterr()
    assert out.startswith("mine: the job reached its goal: 1 pass over the data\n")
    assert "\n  worker-0 " in out and "over simulated links" not in out
    assert "worker-1 died: its link ended" in err
    kinds = {line["what"] for line in read_journal(tmp_path / "runs" / "run" / "journal.jsonl")}
    assert {"server-joined", "joined", "linked", "placed", "rounds", "left", "ended"} <= kinds


@pytest.mark.parametrize(
    ("text", "args", "words"),
    [
        ("[job]\nrounds = 1\n", (), ["mine.toml", "workers"]),
        (SCENARIO + "colour = 1\n", (), ["mine.toml", "colour"]),
        (SCENARIO, ("--seed", "-1"), ["--seed is -1"]),
        (SCENARIO, ("--name", "a/b"), ["--name 'a/b'"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, text: str, args: tuple[str, ...], words: list[str]
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    done = call(tmp_path, "mine.toml", *args)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("polyrhythm: ") and all(word in line for word in words), line
    assert not (tmp_path / "runs").exists()


def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        "[job]\nrounds = 100\n[[workers]]\nstep = '10ms'\n"
        "[[events]]\nat = '100ms'\nwhat = 'crash'\nworker = 'worker-0'\n"
    )
    done = call(tmp_path, "mine.toml", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["failed"] == "all workers left before the job reached its goal"
    assert done.stderr == "polyrhythm: all workers left before the job reached its goal\n"


def test_a_broken_invariant_names_the_command_that_shows_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Versions, "leased", lambda *_: False)
    monkeypatch.setattr(HeldSlices, "judge", lambda *_: Verdict.NEW)
    path = tmp_path / "mine.toml"
    path.write_text(SCENARIO.replace("epochs = 1", "epochs = 20"))
    with pytest.raises(InvariantBroken) as caught:
        simulate(path, seed=3, check=True, runs_dir=tmp_path / "runs")
    line = str(caught.value)
    assert f"polyrhythm simulate {path} --seed 3" in line
    assert "\n" not in line

"""Runs the commands that benchmarks measure, and reads their results."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import readme

Runner = Callable[[list[str], float], subprocess.CompletedProcess[str]]
"""A function that runs a command to its end. The number is a time limit in seconds."""


def execute(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=readme.ROOT
    )


def call(command: list[str], timeout_s: float, runner: Runner = execute) -> dict[str, Any]:
    """Run a command. Returns the last line that it printed, which is JSON. If the command fails,
    the result has the reason as `failed`."""
    try:
        done = runner(command, timeout_s)
    except subprocess.TimeoutExpired:
        return {"failed": f"it had not ended after {timeout_s:.0f} s"}
    if done.returncode:
        return {"failed": done.stderr.strip()[-500:] or f"it ended with status {done.returncode}"}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def train(*words: str, timeout_s: float, runner: Runner = execute) -> dict[str, Any]:
    """Run `polyrhythm train`. Returns its JSON result, with the lines of the run's journal."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "polyrhythm"), "train", *words]
        told = call([*command, "--runs-dir", folder, "--json"], timeout_s, runner)
        journals = list(Path(folder).glob("*/journal.jsonl"))
        told["journal"] = (
            [json.loads(line) for line in journals[0].read_text().splitlines()] if journals else []
        )
    return told


def train_seeded(
    job: str,
    workers: int,
    *flags: str,
    epochs: int | None,
    seed: int,
    timeout_s: float,
    runner: Runner = execute,
) -> dict[str, Any]:
    """Run `polyrhythm train` with one server and one thread per worker. Returns the result, which
    has an accuracy. `epochs`: None keeps the number of the job."""
    passes = () if epochs is None else ("--epochs", str(epochs))
    told = train(
        *(job, "--workers", str(workers), "--servers", "1", *flags, *passes),
        *("--seed", str(seed), "--threads", "1"),
        timeout_s=timeout_s,
        runner=runner,
    )
    if told.get("failed") or told.get("accuracy") is None:
        raise SystemExit(f"{job} failed: {told.get('failed') or 'it reported no accuracy'}")
    return told

"""Runs one job with real processes until its objective has reached the target, and returns the
measurements."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks import readme
from benchmarks.fsp.problems import Evaluate
from benchmarks.fsp.recording import Copies, visits_of
from benchmarks.fsp.specs import WORKERS, Spec
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.state import fold

_JOB = Path(__file__).parent / "job.py"
_POLL_S = 0.2
_START_S = 90.0
"""How long the start and the end of a job may take, in addition to training."""
_MOST_CURVE = 80


def command(spec: Spec, data: Path, folder: Path, max_s: float) -> list[str]:
    """The command of a run, with a folder for its results."""
    return [
        *(sys.executable, "-m", "polyrhythm", "train", str(_JOB)),
        *("--workers", str(WORKERS), "--servers", "1", "--threads", "1", "--devices", "cpu"),
        *(*spec.flags, "--set", f"problem={spec.problem}", "--set", f"batch={spec.batch}"),
        *("--set", f"data={data.resolve()}", "--set", f"out={folder}"),
        *("--max-seconds", f"{max_s:g}", "--seed", str(spec.rep)),
        *("--runs-dir", str(folder / "runs"), "--name", "run", "--quiet"),
    ]


def run(
    spec: Spec,
    data: Path,
    target: float,
    evaluate: Evaluate,
    max_s: float,
    prefix: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run a job until its objective is at most `target`, or until `max_s` seconds of training are
    over. `prefix`: words to put before the command, such as `ip netns exec NAME`."""
    with tempfile.TemporaryDirectory(prefix="fsp-") as name:
        folder = Path(name)
        words = [*prefix, *command(spec, data, folder, max_s)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with (folder / "output").open("w+") as output:
            process = subprocess.Popen(
                words, stdout=output, stderr=output, cwd=readme.ROOT, env=environment
            )
            watch = Watch(Copies(folder), target, evaluate)
            try:
                _follow(process, watch, max_s)
            finally:
                _end(process)
            output.seek(0)
            said = output.read().strip()
        watch.look()
        found = measured(folder)
        if not watch.curve or not found.get("rounds"):
            return {"spec": spec.described, "failed": said[-500:] or "the job has made no round"}
        return {
            "spec": spec.described,
            "seconds": watch.reached_s,
            "limit_s": max_s,
            "target": target if isfinite(target) else None,
            "curve": watch.thinned(_MOST_CURVE),
            **found,
        }


def _follow(
    process: "subprocess.Popen[str] | subprocess.Popen[bytes]", watch: "Watch", max_s: float
) -> None:
    deadline_s = time.monotonic() + max_s + _START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        if watch.look() is not None:
            process.send_signal(signal.SIGINT)
            break
    try:
        process.wait(max(1.0, min(_START_S, deadline_s - time.monotonic())))
    except subprocess.TimeoutExpired:
        pass


def _end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """End the command with SIGTERM. If it does not end within 20 s, kill it; its processes then end
    too."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Watch:
    """Evaluates the objective of a run from the copies of its parameters."""

    def __init__(self, copies: Copies, target: float, evaluate: Evaluate) -> None:
        self._copies = copies
        self._target = target
        self._evaluate = evaluate
        self.curve: list[tuple[float, float]] = []
        self.reached_s: float | None = None
        """When the objective first reached the target; None if it did not."""

    def look(self) -> float | None:
        """Evaluate the newest copy. If it has reached the target, evaluate all copies since the
        last call too, to find the first one that has. Returns `reached_s`."""
        new = list(self._copies.new())
        if not new:
            return self.reached_s
        last_s, last = new[-1]
        objective = self._evaluate(last)
        if objective <= self._target and self.reached_s is None:
            self.reached_s = self._first(new[:-1], last_s)
        self.curve.append((last_s, objective))
        return self.reached_s

    def _first(self, earlier: list[tuple[float, Arrays]], last_s: float) -> float:
        for at_s, parameter in earlier:
            objective = self._evaluate(parameter)
            self.curve.append((at_s, objective))
            if objective <= self._target:
                return at_s
        return last_s

    def thinned(self, most: int) -> list[list[float]]:
        """The curve with at most about this many points."""
        every = -(-len(self.curve) // most)
        kept = [*self.curve[:-1:every], self.curve[-1]]
        return [[round(at_s, 3), float(f"{value:.7g}")] for at_s, value in kept]


def measured(folder: Path) -> dict[str, Any]:
    """The measurements of a run from its journal and from the files of its workers."""
    journal = folder / "runs" / "run" / "journal.jsonl"
    if not journal.exists():
        return {}
    lines = list(read_journal(journal))
    state = fold(lines)
    opened_s = state.opened_s or 0.0
    intervals = [
        [round(line["at_s"] - opened_s, 3), round(line["fields"]["interval_ms"], 2)]
        for line in lines
        if line["what"] == "policy" and "interval_ms" in line["fields"]
    ]
    moves = [
        [round(line["at_s"] - opened_s, 3), line["points"]]
        for line in lines
        if line["what"] == "chunks"
    ]
    own = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("worker-*.json"))}
    workers = []
    for worker in sorted(state.workers.values(), key=lambda worker: worker.name):
        total = worker.totals
        told = {"compute_s": total.compute_s, "wait_s": total.wait_s + total.transfer_s}
        told = {name: round(value, 4) for name, value in told.items()}
        workers.append({"name": worker.name, **told, **own.get(worker.name, {})})
    used = [each for each in own.values() if each["seconds"] > 0]
    return {
        "rounds": state.round,
        "trained_s": round(state.seconds, 3),
        "intervals": intervals[-40:],
        "moved_points": state.moved_points,
        "moves": moves[:20],
        "usage": state.usage,
        "spread_ms": state.spread_ms,
        "workers": workers,
        "visits": visits_of(folder),
        "cores": round(sum(each["cpu_s"] / each["seconds"] for each in used), 3),
    }

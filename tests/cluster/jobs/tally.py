"""A point-wise job whose statistics show every point: how often it is in the sum, and the number that
it has added.

A visit of a point adds the square of the number of the last M-step. *In every version every point
must be in the sum at most once, and the number that it has added must be a square.* A difference
that is added twice, or lost, gives another number. The two statistics of a point are far apart, in
slices of different servers. So a version that differs between servers is noticed too. A worker that
sees a fault writes it to a file and ends with an error.

`--set drift=1`: the M-step of every worker but worker-0 is wrong. `--set slow=S`: each step takes S
seconds longer. `--set stop=N`: the algorithm ends at M-step number N. `--set die=N`: worker-1 kills
itself at its N-th visit. `--set points=N`: the number of points. The file `finish` ends the job. A
worker writes a line to its book for every version (`tests/cluster/job_workers.py`).
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.runner import run_pointwise
from polyrhythm.learn.pointwise.source import ArraySource

POINTS = 600


class Tally(Algorithm):
    sample_points = 1

    def __init__(self, worker):
        self.worker = worker
        self.points = int(worker.options.get("points", POINTS))
        self.slow_s = float(worker.options.get("slow", 0))
        self.drift = bool(worker.options.get("drift")) and worker.name != "worker-0"
        self.stop = int(worker.options.get("stop", 0))
        self.die = int(worker.options.get("die", 0)) if worker.name == "worker-1" else 0
        self.visits = 0
        self.versions = 0
        self.book = Path(f"{worker.name}.book")

    def init_parameter(self, sample, rng):
        return {"number": np.asarray(1.0), "points": np.asarray(0.0)}

    def statistics(self, parameter):
        return {"count": (self.points,), "value": (self.points,)}

    def memory(self, count):
        return {"value": np.zeros(count)}

    def update_points(self, batch, parameter, memory):
        self.visits += 1
        if self.visits == self.die:
            os.kill(os.getpid(), signal.SIGKILL)
        count, value = np.zeros(self.points), np.zeros(self.points)
        points, square = batch.x[:, 0].astype(int), float(parameter["number"]) ** 2
        count[points[memory["value"] == 0]] = 1
        value[points] = square - memory["value"]
        memory["value"][:] = square
        time.sleep(self.slow_s)
        return {"count": count, "value": value}

    def update_parameter(self, statistics, old):
        count, value = statistics["count"], statistics["value"]
        root = np.sqrt(np.maximum(value, 0))
        faulty = (
            (count != 0) & (count != 1) | ((value > 0) != (count == 1)) | (root != root.round())
        )
        if faulty.any():
            at = int(np.flatnonzero(faulty)[0])
            fault = f"point {at} is in the sum {count[at]} times with {value[at]}"
            Path(f"{self.worker.name}.fault").write_text(f"{fault}, version {self.worker.version}")
            raise RuntimeError(fault)
        self.versions += 1
        with self.book.open("a") as book:
            book.write(f"sent {self.versions}\nacknowledged {self.versions}\n")
        if os.path.exists("finish"):
            self.worker.report(accuracy=1.0)
        number = float(old["number"]) + (2.0 if self.drift else 1.0)
        return {"number": np.asarray(number), "points": np.asarray(count.sum())}

    def objective(self, statistics, parameter):
        return float(self.points - statistics["count"].sum())

    def terminated(self, check):
        return bool(self.stop) and float(check.new["number"]) >= self.stop


def main(worker):
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    tally = Tally(worker)
    source = ArraySource(Batch(np.arange(tally.points, dtype=float).reshape(-1, 1)))
    fit = run_pointwise(worker, tally, source, batch=int(worker.options.get("batch", 30)))
    number, points = float(fit.parameter["number"]), float(fit.parameter["points"])
    Path(f"{worker.name}.result").write_text(f"{number} {points} {fit.terminated}")

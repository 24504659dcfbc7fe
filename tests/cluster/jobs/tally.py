"""A point-wise job whose statistics show every point: how often it is in the sum, and the number that
it has added.

A visit of a point adds the number of the last M-step. *In every version every point must be in the sum
at most once, with a number that is not larger than that of the last M-step.* The two statistics of a
point are far apart, in slices of different servers, so a version that is torn between servers shows
too. A worker that sees a fault writes it to a file and ends with an error.

`--set drift=1`: the M-step of every worker but worker-0 is wrong. `--set slow=S`: each step takes S
seconds longer. `--set stop=N`: the algorithm ends after N M-steps.
"""

import os
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
        self.slow_s = float(worker.options.get("slow", 0))
        self.drift = bool(worker.options.get("drift")) and worker.name != "worker-0"
        self.stop = int(worker.options.get("stop", 0))

    def init_parameter(self, sample, rng):
        return {"number": np.asarray(1.0), "points": np.asarray(0.0)}

    def statistics(self, parameter):
        return {"count": (POINTS,), "value": (POINTS,)}

    def memory(self, count):
        return {"value": np.zeros(count)}

    def update_points(self, batch, parameter, memory):
        count, value = np.zeros(POINTS), np.zeros(POINTS)
        points = batch.x[:, 0].astype(int)
        new = memory["value"] == 0
        count[points[new]] = 1
        value[points] = parameter["number"] - memory["value"]
        memory["value"][:] = parameter["number"]
        time.sleep(self.slow_s)
        return {"count": count, "value": value}

    def update_parameter(self, statistics, old):
        count, value, number = statistics["count"], statistics["value"], float(old["number"])
        faulty = (count != 0) & (count != 1) | ((value != 0) != (count == 1)) | (value > number)
        if (faulty | (value < 0)).any():
            at = int(np.flatnonzero(faulty | (value < 0))[0])
            fault = f"point {at} is in the sum {count[at]} times with {value[at]}; {number=}"
            Path(f"{self.worker.name}.fault").write_text(
                f"{fault} in version {self.worker.version}"
            )
            raise RuntimeError(fault)
        step = 2.0 if self.drift else 1.0
        return {"number": np.asarray(number + step), "points": np.asarray(count.sum())}

    def objective(self, statistics, parameter):
        return float(POINTS - statistics["count"].sum())

    def terminated(self, check):
        return bool(self.stop) and float(check.new["number"]) > self.stop


def main(worker):
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    source = ArraySource(Batch(np.arange(POINTS, dtype=float).reshape(-1, 1)))
    fit = run_pointwise(worker, Tally(worker), source, batch=int(worker.options.get("batch", 30)))
    number, points = float(fit.parameter["number"]), float(fit.parameter["points"])
    Path(f"{worker.name}.result").write_text(f"{number} {points} {fit.terminated}")

"""What it costs to hold M-steps while points are missing from the sum, and what that prevents.

    python -m benchmarks.held_steps [--seeds 3] [--json FILE]

Three workers, one of them four times slower than the others, fit small data sets in turns of equal time.
In turn 40 a fast worker dies, and the others visit its points first; in every third turn a chunk moves
from the slow worker to a fast one, and is missing from one version. Three ways are compared:

- `held`: no M-step is made while points are missing (what polyrhythm does);
- `at once`: M-steps are made with the points that are in the sum;
- `kept`: what missing points had added stays in the sum until they are visited again. No M-step is
  held, and F does not rise; but servers would have to keep what each lost chunk had added.

Printed are the turns until the objective of all points stays within 0.2% of the best one that a way has
reached, and the largest rise of F from one whole sum to a later one, relative to F. Nothing depends on
time or on the machine.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, median

import numpy as np
import numpy.typing as npt

from benchmarks import report
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Memory
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.layout import Array
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm

CLUSTERS, FEATURES, POINTS, CHUNK = 8, 3, 3_000, 30
CHUNKS = POINTS // CHUNK
SPEEDS = (8, 8, 2)
"""How many chunks each worker visits in a turn."""
TURNS, DEATH, MOVE_EVERY, FIRST_MOVE = 120, 40, 3, 20
WAYS = ("held", "at once", "kept")
WITHIN = 0.002
FAULTS = ((True, False), (False, True), (True, True))
"""Whether a worker dies, and whether chunks move."""
MAKES: dict[str, Callable[[], Algorithm]] = {
    "k-means": lambda: KMeansAlgorithm(CLUSTERS),
    "mixture": lambda: GaussianMixtureAlgorithm(CLUSTERS, covariance="full"),
    "fuzzy c-means": lambda: FuzzyCMeansAlgorithm(CLUSTERS),
}


def points_of(seed: int, *, ordered: bool) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(CLUSTERS, FEATURES))
    x = centres[rng.integers(0, CLUSTERS, POINTS)] + rng.normal(size=(POINTS, FEATURES))
    return np.asarray(x[np.argsort(x[:, 0])] if ordered else x)


@dataclass
class Outcome:
    objectives: list[float] = field(default_factory=list)
    """Per turn, the objective of all points at the parameters after it."""
    rise: float = 0.0
    held: int = 0

    def turns_to(self, target: float) -> int:
        """After how many turns the objective stays at or below the target."""
        above = [turn for turn, value in enumerate(self.objectives) if value > target]
        return above[-1] + 1 if above else 0


class Fit:
    def __init__(self, algorithm: Algorithm, x: npt.NDArray[np.float64], seed: int) -> None:
        self._algorithm = algorithm
        self._x = x
        rng = np.random.default_rng((seed, 1))
        self._parameter = algorithm.init_parameter(Batch(x), rng)
        self._layout = algorithm.layout(self._parameter)
        self._added = np.zeros((CHUNKS, self._layout.size))
        """What each chunk adds to the sum."""
        self._memories: list[Memory] = [algorithm.memory(CHUNK) for _ in range(CHUNKS)]
        self._in_sum = np.zeros(CHUNKS, np.bool_)
        self._kept: dict[int, Array] = {}
        """What lost chunks had added."""
        self._order = rng.permutation(CHUNKS)
        self._rng = rng

    def run(self, way: str, *, deaths: bool, moves: bool) -> Outcome:
        own = [list(self._order[worker::3]) for worker in range(3)]
        todo: list[list[int]] = [[], [], []]
        moving: dict[int, Array] = {}
        outcome, was_whole, last = Outcome(), False, np.inf
        for turn in range(TURNS):
            for chunk, added in moving.items():
                self._added[chunk], self._in_sum[chunk] = added, True
            moving = {}
            if deaths and turn == DEATH:
                lost, own[1], todo[1] = own[1], [], []
                self._lose(lost, keeps=way == "kept")
                for at, chunk in enumerate(lost):
                    own[2 * (at % 2)].append(chunk)
                    todo[2 * (at % 2)].insert(0, chunk)
            for worker, speed in enumerate(SPEEDS):
                self._visit(own[worker], todo[worker], speed)
            if moves and turn >= FIRST_MOVE and turn % MOVE_EVERY == 0 and len(own[2]) > 1:
                chunk = own[2].pop(0)
                own[0].append(chunk)
                todo[2] = [each for each in todo[2] if each != chunk]
                if self._in_sum[chunk] and way != "kept":
                    moving[chunk] = self._added[chunk].copy()
                    self._added[chunk], self._in_sum[chunk] = 0.0, False
            whole = bool(self._in_sum.all())
            was_whole = was_whole or whole
            if way == "held" and was_whole and not whole:
                outcome.held += 1
            else:
                value = self._m_step()
                if whole:
                    outcome.rise = max(outcome.rise, (value - last) / abs(value))
                    last = value
            outcome.objectives.append(self._objective_of_all())
        return outcome

    def _lose(self, chunks: list[int], *, keeps: bool) -> None:
        for chunk in chunks:
            if keeps and self._in_sum[chunk]:
                self._kept[chunk] = self._added[chunk].copy()
            self._added[chunk], self._in_sum[chunk] = 0.0, False
            self._memories[chunk] = self._algorithm.memory(CHUNK)

    def _visit(self, own: list[int], todo: list[int], speed: int) -> None:
        for _ in range(min(speed, len(own))):
            if not todo:
                todo.extend(self._rng.permutation(own))
            chunk = todo.pop(0)
            rows, memory = slice(chunk * CHUNK, (chunk + 1) * CHUNK), self._memories[chunk]
            found = self._algorithm.update_points(Batch(self._x[rows]), self._parameter, memory)
            change = self._layout.flat(found)
            self._added[chunk] = self._added[chunk] + change if memory else change
            self._in_sum[chunk] = True
            self._kept.pop(chunk, None)

    def _m_step(self) -> float:
        total = self._added.sum(axis=0) + sum(self._kept.values())
        statistics = self._layout.views(total)
        self._parameter = self._algorithm.update_parameter(statistics, self._parameter)
        value = self._algorithm.objective(statistics, self._parameter)
        assert value is not None
        return value

    def _objective_of_all(self) -> float:
        memory = self._algorithm.memory(POINTS)
        found = self._algorithm.update_points(Batch(self._x), self._parameter, memory)
        statistics = self._layout.views(self._layout.flat(found))
        value = self._algorithm.objective(statistics, self._parameter)
        assert value is not None
        return value


def compare(
    name: str, *, ordered: bool, deaths: bool, moves: bool, seeds: int
) -> dict[str, dict[str, float]]:
    turns: dict[str, list[int]] = {way: [] for way in WAYS}
    rises, held = dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0)
    for seed in range(seeds):
        x = points_of(seed, ordered=ordered)
        found = {
            way: Fit(MAKES[name](), x, seed).run(way, deaths=deaths, moves=moves) for way in WAYS
        }
        best = min(outcome.objectives[-1] for outcome in found.values())
        for way, outcome in found.items():
            turns[way].append(outcome.turns_to(best + WITHIN * abs(best)))
            rises[way] = max(rises[way], outcome.rise)
            held[way] += outcome.held
    return {
        way: {
            "turns": mean(turns[way]),
            "median": median(turns[way]),
            "rise": rises[way],
            "held": held[way] / seeds,
        }
        for way in WAYS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of holding M-steps while points are missing")
    parser.add_argument("--seeds", type=report.at_least_one, default=3)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    given = parser.parse_args()
    lines = ["| | faults | " + " | ".join(WAYS) + " |", "|---|---|" + "---|" * len(WAYS)]
    results = []
    for name, ordered, (deaths, moves) in product(MAKES, (True, False), FAULTS):
        found = compare(name, ordered=ordered, deaths=deaths, moves=moves, seeds=given.seeds)
        job = f"{name}, {'sorted' if ordered else 'in random order'}"
        faults = " and ".join(["a death"] * deaths + ["moves"] * moves)
        cells = [f"{each['turns']:.1f} ({each['rise']:.0e})" for each in found.values()]
        lines.append(f"| {job} | {faults} | " + " | ".join(cells) + " |")
        report.say(lines[-1])
        results.append({"job": job, "faults": faults, "ways": found})
    report.give({"seeds": given.seeds, "results": results}, "\n".join(lines), given.json)


if __name__ == "__main__":
    main()

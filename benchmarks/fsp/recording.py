"""What a worker writes down during a run: copies of the parameters with their times, its processor
time, and how often it has visited each point.

Copies are made by the first worker alone, at most every 50 ms. The process that has started the run
evaluates the objective of these copies, so measuring it costs the workers nothing.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from polyrhythm.learn.pointwise.layout import Arrays

_EVERY_S = 0.05
_VISITS_EVERY_S = 1.0
FIRST = "worker-0"
COPIES, SHAPES = "copies.bin", "shapes.json"


class Recorder:
    def __init__(self, folder: Path, worker: str, points: int) -> None:
        self._folder = folder
        self._worker = worker
        self._copies: BinaryIO | None = None
        self._last_s = self._began_s = self._cpu_s = 0.0
        self._visits = np.zeros(points, np.int32)
        self._history: list[tuple[float, npt.NDArray[np.int32]]] = []
        self.points = 0

    def visited(self, numbers: npt.NDArray[np.int64]) -> None:
        """Record that the worker visits the points with these numbers. The clock of the run starts
        with the first call."""
        now_s = time.monotonic()
        if not self._began_s:
            self._began_s, self._cpu_s = now_s, time.process_time()
        elif now_s >= self._began_s + _VISITS_EVERY_S * (len(self._history) + 1):
            self._history.append((now_s, self._visits.copy()))
        self._visits[numbers] += 1
        self.points += len(numbers)

    @property
    def due(self) -> bool:
        """Whether it is time for another copy of the parameters."""
        return self._worker == FIRST and time.monotonic() >= self._last_s + _EVERY_S

    def keep(self, parameter: Arrays) -> None:
        """Record that the worker has these parameters from now on."""
        now_s = time.monotonic()
        if self._copies is None:
            shapes = {name: np.shape(array) for name, array in parameter.items()}
            (self._folder / SHAPES).write_text(json.dumps(shapes))
            self._copies = (self._folder / COPIES).open("wb", buffering=0)
        self._last_s = now_s
        flat = [np.ravel(array) for array in parameter.values()]
        self._copies.write(np.concatenate([[now_s - (self._began_s or now_s)], *flat]).tobytes())

    def close(self) -> None:
        """End the recording: write the visits, the seconds and the processor time to files."""
        if self._copies is not None:
            self._copies.close()
        now_s = time.monotonic()
        if not self._began_s:
            return
        history = [*self._history, (now_s, self._visits)]
        np.savez(
            self._folder / f"{self._worker}.npz",
            seconds=np.array([at_s - self._began_s for at_s, _ in history]),
            visits=np.stack([visits for _, visits in history]),
        )
        told = {
            "cpu_s": time.process_time() - self._cpu_s,
            "seconds": now_s - self._began_s,
            "points": self.points,
        }
        (self._folder / f"{self._worker}.json").write_text(json.dumps(told))


class Copies:
    """Reads the copies of the parameters that a run writes, while it writes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._at = 0

    def new(self) -> Iterator[tuple[float, Arrays]]:
        """Yield, for each copy since the last call, the seconds of training before it and the
        parameters."""
        path = self._folder / COPIES
        if not path.exists():
            return
        if self._shapes is None:
            found = json.loads((self._folder / SHAPES).read_text())
            self._shapes = {name: tuple(shape) for name, shape in found.items()}
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        nbytes = 8 * (1 + sum(sizes))
        with path.open("rb") as file:
            file.seek(self._at)
            read = file.read()
        for first in range(0, len(read) - nbytes + 1, nbytes):
            self._at += nbytes
            row = np.frombuffer(bytearray(read[first : first + nbytes]))
            parts = np.split(row[1:], np.cumsum(sizes)[:-1])
            yield (
                float(row[0]),
                {
                    name: part.reshape(shape)
                    for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
                },
            )


def visits_of(folder: Path) -> dict[str, float]:
    """How often the least and the most visited point of a run were visited by all workers together,
    in the whole run and in its second half."""
    files = [np.load(path) for path in sorted(folder.glob("worker-*.npz"))]
    if not files:
        return {}
    whole = sum(file["visits"][-1].astype(np.int64) for file in files)
    half_s = max(file["seconds"][-1] for file in files) / 2
    early = sum(
        file["visits"][max(0, int(np.searchsorted(file["seconds"], half_s)) - 1)].astype(np.int64)
        for file in files
    )
    late = whole - early
    found = {"least": whole.min(), "most": whole.max(), "late_least": late.min()}
    return {name: int(value) for name, value in {**found, "late_most": late.max()}.items()}

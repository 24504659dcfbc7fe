"""Makes the data folder of the measurements from the public data sets, small enough to be sent to
another machine (2 MB in all), and opens it there."""

import gzip
import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.fsp.problems import LARGE, PROBLEMS, SORTED, target_of

_SEED = 22
_IMAGES = 3_000
_LEAST_RATINGS = 5
_COPIES, _CHANGE = 100, 0.3
"""The large data set has each event this many times, with normally distributed changes of this standard
deviation. The features of all events have a standard deviation of 1."""
_MASS = 25
"""The column of HIGGS's m_bb, on which the label depends."""
RATINGS, TARGETS = "ratings.npz", "targets.json"


def prepare(source: Path, folder: Path) -> None:
    """Read HIGGS, MovieLens and MNIST from `source`, as `polyrhythm data` describes their files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(_SEED)
    with gzip.open(source / "higgs" / "higgs_10984.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1)
    features = table[:, :-1]
    table[:, :-1] = (features - features.mean(0)) / features.std(0)
    np.save(folder / "higgs.npy", table.astype(np.float32)[rng.permutation(len(table))])
    path = source / "movielens-latest-small" / "ratings.csv"
    rated = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1, 2))
    person = np.unique(rated[:, 0], return_inverse=True)[1].astype(np.uint16)
    film = np.unique(rated[:, 1], return_inverse=True)[1].astype(np.uint16)
    stars = (2 * rated[:, 2]).astype(np.uint8)
    np.savez_compressed(folder / RATINGS, person=person, film=film, half_stars=stars)
    images = _idx(source / "mnist" / "train-images-idx3-ubyte.gz", 16, _IMAGES * 784)
    labels = _idx(source / "mnist" / "train-labels-idx1-ubyte.gz", 8, _IMAGES)
    np.savez_compressed(
        folder / "digits.npz", images=images.reshape(-1, 28, 28), labels=labels.copy()
    )
    open_folder(folder)


Targets = dict[str, dict[str, dict[str, float]]]
"""For each problem and each of its starting points: the first objective, and the target."""


def open_folder(folder: Path, wanted: Iterable[tuple[str, int]] = (), parallel: int = 1) -> Targets:
    """Make the files that are too large to be sent, and the targets of these problems and starting
    points, if they are missing. Returns all targets."""
    if not (folder / "films.npy").exists():
        np.save(folder / "films.npy", _films(folder / RATINGS))
    if not (folder / SORTED).exists():
        table = np.load(folder / "higgs.npy")
        np.save(folder / SORTED, table[table[:, _MASS].argsort(kind="stable")])
    if not (folder / LARGE).exists():
        np.save(folder / LARGE, _large(np.load(folder / "higgs.npy")))
    path = folder / TARGETS
    found: Targets = json.loads(path.read_text()) if path.exists() else {}
    missing = [(name, at) for name, at in wanted if str(at) not in found.get(name, {})]
    if not missing:
        return found
    with ProcessPoolExecutor(parallel, get_context("spawn")) as pool:
        made = [pool.submit(_target, name, folder, at) for name, at in missing]
        for (name, at), target in zip(missing, made, strict=True):
            found.setdefault(name, {})[str(at)] = target.result()
    path.write_text(json.dumps(found, indent=1))
    return found


def _target(name: str, folder: Path, start: int) -> dict[str, float]:
    torch.set_num_threads(1)
    return target_of(PROBLEMS[name], folder, start)


def _large(table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(_SEED)
    found = np.tile(table, (_COPIES, 1))
    found[:, :-1] += _CHANGE * rng.standard_normal(found[:, :-1].shape, np.float32)
    return found


def _films(path: Path) -> npt.NDArray[np.float32]:
    """A row of ratings for each film that has enough ratings. The films are in a random order,
    because the numbers of the films follow the time at which the films were made."""
    found = np.load(path)
    person, film = found["person"], found["film"]
    table = np.zeros((int(film.max()) + 1, int(person.max()) + 1), np.float32)
    table[film, person] = found["half_stars"] / 2
    table = table[np.bincount(film) >= _LEAST_RATINGS]
    return table[np.random.default_rng(_SEED).permutation(len(table))]


def _idx(path: Path, header: int, nbytes: int) -> npt.NDArray[np.uint8]:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(header + nbytes)[header:], np.uint8)

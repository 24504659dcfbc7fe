"""Where a data set is searched, in which order, and the error if it is not found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.learn.data.catalogue import DataSet, Form

VARIABLE = "POLYRHYTHM_DATA"
DEBIAN = Path("/usr/share/datasets")
DATA_DIR = "data_dir"
"""The job's option that carries `--data-dir` to its workers."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A folder of data sets, and its name in messages. None: the folder was not given."""

    label: str
    path: Path | None
    ours: bool = True
    """Whether a fetched set may be put there."""


@dataclass(frozen=True, slots=True)
class Found:
    place: DataFolder
    folder: Path
    form: Form


def places(data_dir: str | Path | None, environ: Mapping[str, str]) -> tuple[DataFolder, ...]:
    """Return all places, given or not, in the order in which they are searched."""
    named = environ.get(VARIABLE)
    return (
        DataFolder("--data-dir", Path(data_dir).expanduser() if data_dir else None),
        DataFolder(f"${VARIABLE}", Path(named).expanduser() if named else None),
        DataFolder("the cache", _cache(environ)),
        DataFolder("Debian's data sets", DEBIAN, ours=False),
    )


def _cache(environ: Mapping[str, str]) -> Path:
    """Return XDG's cache folder. Its specification says that a relative path is ignored."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(environ.get("HOME") or Path.home()) / ".cache"
    return base / "polyrhythm"


def find(dataset: DataSet, where: Sequence[DataFolder]) -> Found | None:
    """Return the first place that holds one of the set's forms; the complete form is preferred."""
    for place in where:
        if place.path is None:
            continue
        folder = place.path / dataset.name
        for form in dataset.forms:
            if all((folder / file.name).is_file() for file in form.files):
                return Found(place, folder, form)
    return None


def home(where: Sequence[DataFolder]) -> Path:
    """Return the folder for fetched sets: the first place that was given."""
    return next(place.path for place in where if place.ours and place.path is not None)


def nowhere(dataset: DataSet, where: Sequence[DataFolder], why_not_fetched: str) -> str:
    looked = ", ".join(
        f"{place.label} ({place.path / dataset.name if place.path else 'not given'})"
        for place in where
    )
    return (
        f"the data set {dataset.name!r} is in none of its places: {looked}; and it was not"
        f" downloaded: {why_not_fetched}; fetch it with 'polyrhythm data fetch {dataset.name}'"
    )

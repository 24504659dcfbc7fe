"""The folders in which a data set is searched, their order, and the error if it is not found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.learn.data.catalogue import DataSet, Form

VARIABLE = "POLYRHYTHM_DATA"
DEBIAN = Path("/usr/share/datasets")
DATA_DIR = "data_dir"
"""The name of the job's option that carries `--data-dir` to the workers."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A folder of data sets, and its name in messages. The path is None if the user has not given
    this folder."""

    label: str
    path: Path | None
    ours: bool = True
    """Whether downloaded sets may be written to this folder."""


@dataclass(frozen=True, slots=True)
class FoundFolder:
    place: DataFolder
    folder: Path
    form: Form


def places(data_dir: str | Path | None, environ: Mapping[str, str]) -> tuple[DataFolder, ...]:
    """Return all folders in the order in which they are searched. Folders that the user has not
    given are included, without a path."""
    named = environ.get(VARIABLE)
    return (
        DataFolder("--data-dir", Path(data_dir).expanduser() if data_dir else None),
        DataFolder(f"${VARIABLE}", Path(named).expanduser() if named else None),
        DataFolder("the cache", _cache(environ)),
        DataFolder("Debian's data sets", DEBIAN, ours=False),
    )


def _cache(environ: Mapping[str, str]) -> Path:
    """Return the cache folder. A relative XDG_CACHE_HOME is ignored, as the XDG specification
    requires."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(environ.get("HOME") or Path.home()) / ".cache"
    return base / "polyrhythm"


def find(dataset: DataSet, where: Sequence[DataFolder]) -> FoundFolder | None:
    """Return the first folder that holds all files of one form of the data set (the complete set,
    or a smaller copy). In each folder, the complete form is preferred."""
    for place in where:
        if place.path is None:
            continue
        folder = place.path / dataset.name
        for form in dataset.forms:
            if all((folder / file.name).is_file() for file in form.files):
                return FoundFolder(place, folder, form)
    return None


def home(where: Sequence[DataFolder]) -> Path:
    """Return the folder for downloaded sets: the first one that has a path."""
    return next(place.path for place in where if place.ours and place.path is not None)


def nowhere(dataset: DataSet, where: Sequence[DataFolder], why_not_fetched: str) -> str:
    looked = ", ".join(
        f"{place.label} ({place.path / dataset.name if place.path else 'not given'})"
        for place in where
    )
    return (
        f"the data set {dataset.name!r} is in none of these folders: {looked}; and it was not"
        f" downloaded: {why_not_fetched}; fetch it with 'polyrhythm data fetch {dataset.name}'"
    )

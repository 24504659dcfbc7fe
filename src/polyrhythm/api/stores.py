"""Finds the store that the user names, by its URL, by a run or by a folder, and refuses a store
that a running job uses."""

from pathlib import Path

from polyrhythm.errors import UsageError
from polyrhythm.observe.runs import find_run, load_run, running
from polyrhythm.store.checkpoints import FOLDER
from polyrhythm.store.objects import folder_of


def url_of(target: str | None, runs_dir: Path) -> str:
    """The URL of the store that the user names: by its URL, by a run, or by a folder. Without a
    name, the URL of the newest run's store."""
    if target is not None and "://" in target:
        return target
    try:
        run = find_run(runs_dir, target)
    except UsageError:
        if target is None or not Path(target).is_dir():
            raise
        return str(Path(target).resolve())
    return url_of_run(run)


def url_of_run(run: Path) -> str:
    """The store of a run. If the folder of the run has checkpoints, that folder is the store, even
    if it was moved. Otherwise it is the store in the settings of the job."""
    job = load_run(run).job
    if (run / FOLDER).is_dir() or job is None or not job.store:
        return str(run.resolve())
    return job.store


def check_unused(url: str, runs_dir: Path) -> None:
    """Raise UsageError if a running job of this folder of runs writes its checkpoints to this
    store. Two jobs in one store would delete checkpoints that the other needs."""
    for path, job in running(runs_dir):
        if job.store and is_same_store(job.store, url):
            raise UsageError(
                f"the run {path.name!r} is still running and writes its checkpoints to {url}: stop"
                " it first"
            )


def is_same_store(one: str, other: str) -> bool:
    return _place(one) == _place(other)


def _place(url: str) -> Path | str:
    """A key that identifies a store, because different URLs may name the same folder."""
    folder = folder_of(url)
    return url.rstrip("/") if folder is None else folder.resolve()

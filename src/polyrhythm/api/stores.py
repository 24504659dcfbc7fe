"""Finds the store that the user names, by its URL, by a run or by a folder, and refuses a store
that a running job uses."""

from pathlib import Path

from polyrhythm.api.folders import runs_named
from polyrhythm.errors import UsageError
from polyrhythm.observe.runs import find_run, load_run, running
from polyrhythm.store.checkpoints import FOLDER
from polyrhythm.store.listing import listing
from polyrhythm.store.objects import folder_of, open_store


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


def continuable(name: str | None, store: str | None, runs_dir: Path) -> str | None:
    """The store from which a job continues when a launcher starts it again (`train --resume`): the
    job's own store, or that of its newest run with a checkpoint. None: no checkpoint is whole, so
    the job begins."""
    if store is not None:
        return store if _has_checkpoint(store) else None
    if name is None:
        raise UsageError("--resume needs --name or --store, by which the job finds its checkpoints")
    urls = (url_of_run(run) for run in runs_named(runs_dir, name))
    return next(filter(_has_checkpoint, urls), None)


def _has_checkpoint(url: str) -> bool:
    folder = folder_of(url)
    if folder is not None and not folder.is_dir():
        return False
    return any(each.fault is None for each in listing(open_store(url)))


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

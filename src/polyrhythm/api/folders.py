"""Makes the folder of a run, and reports in one line why a file cannot be written there."""

import contextlib
import datetime
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from polyrhythm.errors import PolyrhythmError, UsageError


def make_run_dir(runs_dir: Path, name: str | None, job: str) -> Path:
    """Make a new folder for a run. Without a name, its name is made from the job and the time."""
    if name is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{Path(job).stem}-{stamp}-{uuid.uuid4().hex[:4]}"
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"--name {name!r} cannot be a folder's name")
    path = runs_dir / name
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(
            f"there is a run {name!r} already: choose another --name, or delete {path}"
        ) from None
    except OSError as error:
        raise PolyrhythmError(f"cannot make {path}: {error.strerror}") from None
    return path


def next_run_dir(run_dir: Path) -> Path:
    """Make another folder for the same job, beside the folder of its earlier run: `mine-2` beside
    `mine`, and `mine-3` beside `mine-2`."""
    first, _, last = run_dir.name.rpartition("-")
    if last.isdigit() and (run_dir.parent / first).is_dir():
        run_dir = run_dir.with_name(first)
    number = 2
    while True:
        path = run_dir.with_name(f"{run_dir.name}-{number}")
        with writing(path):
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return path


def runs_named(runs_dir: Path, name: str) -> list[Path]:
    """The folders of the runs of one job, as `next_run_dir` names them: the newest first."""
    found = [runs_dir / name] if (runs_dir / name).is_dir() else []
    while (path := runs_dir / f"{name}-{len(found) + 1}").is_dir() and found:
        found.append(path)
    return found[::-1]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the body into an error that names the folder."""
    try:
        yield
    except OSError as error:
        raise PolyrhythmError(f"cannot write to {path}: {error.strerror}") from None


@contextlib.contextmanager
def discarded_if_not_started(run_dir: Path) -> Iterator[None]:
    """Delete the folder of a run if the body raises an error, or is interrupted, before the job had
    a journal. In that case no process of the job has done anything yet."""
    try:
        yield
    except (PolyrhythmError, KeyboardInterrupt):
        if not (run_dir / "journal.jsonl").exists():
            shutil.rmtree(run_dir, ignore_errors=True)
            with contextlib.suppress(OSError):  # the folder has other runs, so it stays
                run_dir.parent.rmdir()
        raise

"""The folder of a run: made once, and what cannot be written there in one line."""

import contextlib
import datetime
import uuid
from collections.abc import Iterator
from pathlib import Path

from polyrhythm.errors import UsageError


def make_run_dir(runs_dir: Path, name: str | None, job: str) -> Path:
    if name is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{Path(job).stem}-{stamp}-{uuid.uuid4().hex[:4]}"
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"--name {name!r} cannot be a folder's name")
    path = runs_dir / name
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"there is a run {name!r} already: choose another --name") from None
    except OSError as error:
        raise UsageError(f"cannot make {path}: {error.strerror}") from None
    return path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}") from None

"""Downloads the data sets that a job names, with a progress bar for each file."""

import os
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from polyrhythm.errors import UsageError
from polyrhythm.learn.data.catalogue import File, known
from polyrhythm.learn.data.fetch import obtain


class Bars:
    """One progress bar on stderr for each file that is downloaded."""

    def __init__(self, *, quiet: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._bars = Progress(*columns, console=Console(stderr=True), disable=quiet)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_: object) -> None:
        if self._tasks:
            self._bars.stop()

    def __call__(self, file: File, done_nbytes: int) -> None:
        if not self._tasks:
            self._bars.start()
        if file.name not in self._tasks:
            self._tasks[file.name] = self._bars.add_task(escape(file.name), total=file.nbytes)
        self._bars.update(self._tasks[file.name], completed=done_nbytes)


def fetch_for(job: str, defaults: dict[str, Any], data_dir: str | None, *, quiet: bool) -> None:
    """Download the data sets that a job names in its DEFAULTS, before any process is started."""
    names = defaults.get("data", [])
    if not isinstance(names, list | tuple):
        raise UsageError(f'{job}: DEFAULTS["data"] must be a list of names, such as ["mnist"]')
    for name in names:
        with Bars(quiet=quiet) as bars:
            obtain(known(name), data_dir, os.environ, bars)

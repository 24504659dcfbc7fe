"""`polyrhythm data`: lists, downloads and checks public data sets."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from polyrhythm.cli import flags
from polyrhythm.cli.flags import Debug
from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.data.catalogue import SETS, DataSet, File, known
from polyrhythm.learn.data.checksums import is_right
from polyrhythm.learn.data.fetch import fetch as fetch_set
from polyrhythm.learn.data.fetch import obtain
from polyrhythm.learn.data.places import find, home, places

data = typer.Typer(no_args_is_help=True)
_DataDir = Annotated[
    Path | None, typer.Option(help="A folder of data sets, searched before all others.")
]


@data.callback()
def _data() -> None:
    """Public data sets: list, fetch and check them.

    A data set is a folder of its own name. It is searched for in --data-dir,
    in $POLYRHYTHM_DATA, in the cache (~/.cache/polyrhythm) and in
    /usr/share/datasets, where Debian's packages put data sets. A job downloads
    a data set that is in none of them, unless it is large.

    Examples:

      polyrhythm data list

      polyrhythm data fetch mnist fashion-mnist

      polyrhythm data check mnist --data-dir ~/datasets
    """


class _Bars:
    """One progress bar on stderr for each file that is downloaded."""

    def __init__(self, *, quiet: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._bars = Progress(*columns, console=Console(stderr=True), disable=quiet)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Bars":
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
        with _Bars(quiet=quiet) as bars:
            obtain(known(name), data_dir, os.environ, bars)


@data.command("list")
def list_(data_dir: _DataDir = None) -> None:
    """Show every data set that has a name, its size, and where it was found.

    Examples:

      polyrhythm data list

      polyrhythm data list --data-dir ~/datasets
    """
    where = places(data_dir, os.environ)
    width = max(len(name) for name in SETS)
    for dataset in SETS.values():
        found = find(dataset, where)
        there = f"{found.form.what}: {found.folder}" if found else "not here"
        print(f"{dataset.name:{width}}  {_size(dataset.download_nbytes):>6}  {dataset.what}")
        print(f"{'':{width}}          {there}")


@data.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="The sets to fetch: see 'data list'.")],
    data_dir: _DataDir = None,
    quiet: flags.Quiet = False,
    debug: Debug = False,
) -> None:
    """Download data sets and verify them. Files that are complete are not downloaded again.

    Files are written to --data-dir if it is given, else to $POLYRHYTHM_DATA, else to the cache.

    Examples:

      polyrhythm data fetch mnist

      polyrhythm data fetch cifar10 fashion-mnist --data-dir ~/datasets
    """
    into = home(places(data_dir, os.environ))
    for dataset in [known(name) for name in names]:
        with _Bars(quiet=quiet) as bars:
            folder = fetch_set(dataset, into, bars)
        print(f"{dataset.name}: {folder}")


@data.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="The sets to check; default: all that are found.")
    ] = None,
    data_dir: _DataDir = None,
    debug: Debug = False,
) -> None:
    """Compare every file of the data sets with its checksum.

    Examples:

      polyrhythm data check

      polyrhythm data check mnist --data-dir ~/datasets
    """
    where = places(data_dir, os.environ)
    asked = [known(name) for name in names] if names else list(SETS.values())
    wrong: list[str] = []
    for dataset in asked:
        found = find(dataset, where)
        if found is None:
            _note_absent(dataset, bool(names), wrong)
            continue
        for file in found.form.files:
            path = found.folder / file.name
            right = is_right(path, file)
            print(f"{'right' if right else 'WRONG'}  {path}")
            if not right:
                wrong.append(str(path))
    if wrong:
        raise DataError(f"not as they should be: {', '.join(wrong)}; see 'polyrhythm data fetch'")


def _note_absent(dataset: DataSet, asked: bool, wrong: list[str]) -> None:
    """Note that a data set was not found. It is an error only if the user named that set."""
    print(f"absent {dataset.name}")
    if asked:
        wrong.append(f"{dataset.name} (nowhere)")


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"

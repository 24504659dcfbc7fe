"""`polyrhythm data`: lists, downloads and checks public data sets."""

import os
from pathlib import Path
from typing import Annotated

import typer

from polyrhythm.api import flags
from polyrhythm.api.fetching import Bars
from polyrhythm.api.flags import Debug
from polyrhythm.errors import DataError
from polyrhythm.learn.data.catalogue import SETS, DataSet, is_right, known
from polyrhythm.learn.data.fetch import fetch as fetch_set
from polyrhythm.learn.data.places import find, home, places

data = typer.Typer(no_args_is_help=True)
_DataDir = Annotated[
    Path | None, typer.Option(help="A folder of data sets, searched before all others.")
]


@data.callback()
def _data() -> None:
    """Public data sets: list, fetch and check them.

    A data set is a folder with its name. It is searched for in --data-dir,
    in $POLYRHYTHM_DATA, in the cache (~/.cache/polyrhythm) and in
    /usr/share/datasets, where Debian's packages put data sets. A job downloads
    a data set that is in none of them, unless it is large.

    Examples:

      polyrhythm data list

      polyrhythm data fetch mnist fashion-mnist

      polyrhythm data check mnist --data-dir ~/datasets
    """


@data.command("list")
def list_(data_dir: _DataDir = None) -> None:
    """Show the public data sets, their sizes, and where they are.

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
    names: Annotated[
        list[str], typer.Argument(help="The data sets to fetch; 'data list' shows them.")
    ],
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
        with Bars(quiet=quiet) as bars:
            folder = fetch_set(dataset, into, bars)
        print(f"{dataset.name}: {folder}")


@data.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="The data sets to check; default: all found.")
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
        raise DataError(
            f"missing or damaged files: {', '.join(wrong)}; see 'polyrhythm data fetch'"
        )


def _note_absent(dataset: DataSet, asked: bool, wrong: list[str]) -> None:
    """Note that a data set was not found. It is an error only if the user named that set."""
    print(f"absent {dataset.name}")
    if asked:
        wrong.append(f"{dataset.name} (nowhere)")


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"

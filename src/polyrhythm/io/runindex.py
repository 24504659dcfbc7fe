"""An index of this user's runs, by which commands find a run by its name from any folder.

*The index is a folder that only this user can read, with one symbolic link to the folder of each run.*
The links are made and read at once, so no reader sees a part of one. The index keeps the newest runs.
Links to folders that are gone lead nowhere, and are removed when the next run is added. Hosts may
share home folders, so the name of a link has the name of its host, and a host removes only its own
links, and keeps as many as it would keep alone. A job does not need the index: if it cannot be
written, runs are found from their own folder only.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import xxhash

from polyrhythm.io.jobindex import is_private, make_private, state_folders

_MOST = 500
"""The most runs of a host in the index."""


class RunIndex:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._folders = tuple(folder / "runs" for folder in state_folders(environ))
        """Links are made in the first folder that can be used, and read from all."""
        self._host = socket.gethostname()

    def add(self, run_dir: Path) -> None:
        """Add a run. If no folder can be written, nothing is added."""
        path = str(run_dir.absolute())
        name = f"{self._host}-{xxhash.xxh3_64_hexdigest(path.encode())}"
        for folder in self._folders:
            with contextlib.suppress(OSError):
                make_private(folder)
                self._prune(folder)
                part = folder / f"{name}.{os.getpid()}.part"
                part.unlink(missing_ok=True)
                part.symlink_to(path)
                part.replace(folder / name)
                return

    def runs(self) -> list[Path]:
        """The folders of all runs that exist, the newest first."""
        links = (link for folder in self._folders for link in _links(folder))
        newest = sorted(links, reverse=True)
        return list(dict.fromkeys(path for _, _, path in newest if path.is_dir()))

    def find(self, name: str) -> list[Path]:
        """The folders of all runs with this name, the newest first."""
        return [path for path in self.runs() if path.name == name]

    def _prune(self, folder: Path) -> None:
        mine = [found for found in _links(folder) if found[1].name.rpartition("-")[0] == self._host]
        for count, (_, link, path) in enumerate(sorted(mine, reverse=True), 1):
            if count >= _MOST or not path.is_dir():
                link.unlink(missing_ok=True)


def _links(folder: Path) -> Iterator[tuple[int, Path, Path]]:
    """Every link: when it was made, the link, and the folder to which it leads."""
    if not is_private(folder):
        return
    for link in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it meanwhile
            yield link.lstat().st_mtime_ns, link, Path(os.readlink(link))

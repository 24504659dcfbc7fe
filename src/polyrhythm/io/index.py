"""Two indexes of this user on this host.

With `JobIndex` a command finds the secret of the job at HOST:PORT, or of a job whose run's folder
was deleted. With `RunIndex` it finds a run by its name from any folder.
"""

import contextlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import xxhash

from polyrhythm.io.addresses import ANY_HOST
from polyrhythm.io.local import host_identity
from polyrhythm.wire.proof import Secret


class ListedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that listens on this host."""

    host: str
    port: int
    job: str
    run_dir: str
    """The folder of the run. It may have been deleted or moved while the job runs."""
    secret: Secret
    path: str = ""
    """The path of the job's file, as its user wrote it; empty for a built-in job."""
    boot: str = ""
    machine: str = ""
    """The machine, which is the same after a reboot; empty if it is not known."""
    network: str = ""
    """The network namespace in which the job listens."""
    processes: str = ""
    """The process namespace to which `pid` belongs."""
    pid: int = 0
    began: float = 0.0


def state_folders(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """The folders in which polyrhythm may store what it knows about this user's jobs: the usual
    one, and one for users without a home folder."""
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path(environ.get("HOME") or "~").expanduser() / ".local" / "state"
    return state / "polyrhythm", Path(tempfile.gettempdir()) / f"polyrhythm-{os.getuid()}"


class JobIndex:
    """The jobs of this user that run on this host.

    *The index is a folder that belongs to the user and that no other user can read or write
    (mode 0700). A folder with another owner or mode is not used.* While a job runs, it has one file
    in the folder: its entry. Hosts may share home folders, so an entry contains the boot id of its
    host and is found on that host only. The entry of a killed job is ignored, and is removed when
    the next job registers on the same machine, even after a reboot."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._folders = tuple(folder / "jobs" for folder in state_folders(environ))
        """Entries are written to the first folder that can be used, and read from all."""

    @contextlib.contextmanager
    def registered(self, entry: ListedJob) -> Iterator[bool]:
        """Keep the job's entry in the index while the body of the `with` statement runs. Yields
        False if no folder can be used."""
        path = self._register(entry)
        try:
            yield path is not None
        finally:
            if path is not None:
                path.unlink(missing_ok=True)

    def _register(self, entry: ListedJob) -> Path | None:
        boot, network = _this_host()
        entry = msgspec.structs.replace(
            entry,
            boot=boot,
            network=network,
            machine=_machine(),
            processes=_process_namespace(),
            pid=os.getpid(),
            began=time.time(),
        )
        for folder in self._folders:
            try:
                make_private(folder)
                self._prune(folder, entry)
                return _write(folder / f"{entry.port}-{entry.job}.json", entry)
            except OSError:
                continue  # this folder cannot be written: try the next one
        return None

    def find(self, host: str, port: int) -> ListedJob | None:
        """The job of this user that listens at this address of this host; None if there is none."""
        boot, network = _this_host()
        found = [entry for entry in self._running(boot) if entry.port == port]
        addresses = _addresses(host)
        exact = [entry for entry in found if entry.host in addresses]
        matching = exact or [entry for entry in found if entry.host in ANY_HOST]
        return max(
            matching, key=lambda entry: (entry.network == network, entry.began), default=None
        )

    def of_run(self, name: str) -> list[ListedJob]:
        """The jobs of this user on this host whose run has this name, or this folder."""
        path = str(Path(name).resolve())
        boot, _ = _this_host()
        return [
            entry
            for entry in self._running(boot)
            if path == entry.run_dir or name == Path(entry.run_dir).name
        ]

    def jobs(self) -> list[ListedJob]:
        """The jobs of this user that run on this host."""
        return self._running(_this_host()[0])

    def _running(self, boot: str) -> list[ListedJob]:
        return [
            entry
            for folder in self._folders
            if is_private(folder)
            for _, entry in _entries(folder)
            if entry.boot == boot and not _was_killed(entry)
        ]

    def _prune(self, folder: Path, newer: ListedJob) -> None:
        """Remove the entries of killed jobs of this host. A reboot ends all jobs of its machine."""
        for path, entry in _entries(folder):
            rebooted = entry.boot != newer.boot and entry.machine == newer.machine != ""
            if rebooted or (entry.boot == newer.boot and _was_killed(entry)):
                path.unlink(missing_ok=True)


def _this_host() -> tuple[str, str]:
    boot, _, rest = host_identity().partition("/")
    return boot or socket.gethostname(), rest.partition("/")[0]


def _machine() -> str:
    """The name of this machine with its id, because machines with the same name may share home
    folders; empty if it has no id."""
    try:
        number = Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""
    return f"{socket.gethostname()}/{number}" if number else ""


def _process_namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""  # not Linux: all processes are in one namespace


def make_private(folder: Path) -> None:
    """Make the folder, unless it exists, so that only this user can enter it. Raises OSError if it
    belongs to another user."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True, mode=0o700)
    if not is_private(folder):
        raise PermissionError(f"{folder} belongs to another user")


def is_private(folder: Path) -> bool:
    """Whether only this user can enter the folder. The folder above is checked too, because a user
    who owns it could replace this folder."""
    for path in (folder, folder.parent):
        try:
            status = path.lstat()
        except OSError:
            return False
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
    others = stat.S_IRWXG | stat.S_IRWXO
    writable = stat.S_IWGRP | stat.S_IWOTH
    return not (folder.lstat().st_mode & others or folder.parent.lstat().st_mode & writable)


def _write(path: Path, entry: ListedJob) -> Path:
    """Write the entry to another file first, so that readers see it whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(msgspec.json.encode(entry))
    part.replace(path)
    return path


def _entries(folder: Path) -> Iterator[tuple[Path, ListedJob]]:
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(
            OSError, msgspec.DecodeError
        ):  # the file was removed meanwhile, or is damaged
            yield path, msgspec.json.decode(path.read_bytes(), type=ListedJob)


def _was_killed(entry: ListedJob) -> bool:
    """Whether the process of this entry has ended. A process in another namespace cannot be checked
    and counts as running."""
    return entry.processes == _process_namespace() and not _runs(entry.pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _addresses(host: str) -> set[str]:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return {host}  # the attempt to connect will report the error
    return {host, *(str(info[4][0]) for info in infos)}


_MOST = 500
"""The most runs of a host in the index."""


class RunIndex:
    """The newest runs of this user, by their names.

    *The index is a folder that only this user can read, with one symbolic link to the folder of
    each run.* A link is made in one step, so no reader sees a part of it. The index keeps the
    newest runs. Links to deleted folders are removed when the next run is added. Hosts may share
    home folders, so the name of a link contains that of its host, and a host counts and removes
    only its own links. A job does not need the index: if it cannot be written, runs are found only
    in the folder that contains them.
    """

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

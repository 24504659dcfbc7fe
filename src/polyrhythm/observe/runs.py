"""The folder of a run, and what can be read from it: the job, the state of the run, and whether the
run is alive.

The command that trains writes `process.json` when it begins and `result.json` when it ends. *A run
is alive while the process in `process.json` exists: its process id and its start time must both
match.* If that process is gone and there is no result, for example because it was killed, the run
has `ended without a word`.
"""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm.core.lead.progress.progress import STOPPED
from polyrhythm.core.model import RUNS_FOLDER
from polyrhythm.errors import RunDeleted, RunError
from polyrhythm.io.index import JobIndex, RunIndex
from polyrhythm.observe.journal import JournalPart, JournalReader, read_journal
from polyrhythm.observe.learning import ended_in_words
from polyrhythm.observe.state import RunState, fold, reason_of
from polyrhythm.observe.watch import WATCH, Suspect, read_suspects
from polyrhythm.observe.words import listed
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Reason

JOURNAL = "journal.jsonl"
RESULT = "result.json"
_PROCESS, _JOB = "process.json", "job.json"


class RunProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process of the command that trains. `started`: when the kernel started it, in clock
    ticks; None if unknown."""

    pid: int
    host: str
    began: float
    started: int | None = None


class Run(msgspec.Struct, frozen=True):
    path: Path
    job: JobSpec | None
    state: RunState
    process: RunProcess | None
    result: dict[str, Any] | None
    alive: bool | None
    """Whether the run is alive. None: the run is on another host, so this host cannot know."""
    now_s: float
    """The present time on the clock of the journal."""
    suspects: tuple[Suspect, ...] = ()
    """The processes that suspect the silent lead, or have given it up. Empty if the run has
    ended."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def word(self) -> str:
        """The state of the run in a word: `running`, `ended`, `failed`, `stopped`, `ended without a
        word` or `unknown`."""
        if (ended := self.state.ended) is not None:
            if ended.failed:
                return "failed"
            return "stopped" if ended.reason.code == STOPPED.code else "ended"
        if self.result is not None:
            return "failed" if self.result.get("failed") else "stopped"
        if self.alive is None:
            return "unknown"
        return "running" if self.alive else "ended without a word"

    @property
    def failures(self) -> dict[str, str]:
        """The workers that failed and were not started again, with the error."""
        of_result: dict[str, str] = (self.result or {}).get("worker_failures") or {}
        return {**self.state.failed_workers, **of_result}

    @property
    def reason(self) -> str | None:
        """How the run ended, in words; None if it has not ended."""
        if self.state.ended is not None:
            return ended_in_words(self.state)
        if self.result is not None:
            failed = self.result.get("failed")
            return str(failed) if failed else "it was stopped before its goal"
        if self.alive is None and self.process is not None:
            return f"it was started on {self.process.host}: ask there whether it runs"
        return (
            None
            if self.alive
            else "its processes are gone, and its journal does not say how it ended"
        )

    @property
    def described(self) -> str:
        """The state of the run, with the reason if there is one."""
        reason = self.reason
        if reason is None:
            return self.word
        return reason if reason.startswith(f"{self.word} ") else f"{self.word}: {reason}"


# -- written by the command that trains ----------------------------------------------------------


def write_job(run_dir: Path, job: JobSpec) -> None:
    (run_dir / _JOB).write_bytes(msgspec.json.format(msgspec.json.encode(job)))


def write_process(run_dir: Path) -> None:
    """Record this process. The run counts as alive while the process exists, and from now on
    commands find the run by its name from any folder."""
    process = RunProcess(
        pid=os.getpid(), host=socket.gethostname(), began=time.time(), started=_started(os.getpid())
    )
    (run_dir / _PROCESS).write_bytes(msgspec.json.encode(process))
    RunIndex(os.environ).add(run_dir)


def write_result(run_dir: Path, result: dict[str, Any]) -> None:
    """Write the result of the run. The file appears whole or not at all."""
    part = run_dir / f"{RESULT}.part"
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
        part.replace(run_dir / RESULT)
    except OSError:
        part.unlink(missing_ok=True)
        raise


class FolderWatch:
    """Detects whether the folder of a run, or the journal in it, was deleted or replaced."""

    def __init__(self, run_dir: Path) -> None:
        self._paths = (run_dir, run_dir / JOURNAL)
        self._known: dict[Path, tuple[int, int]] = {}

    def gone(self) -> bool:
        for path in self._paths:
            try:
                stat = path.stat()
            except OSError:
                if path in self._known:
                    return True
                continue  # the journal may not exist yet
            identity = stat.st_dev, stat.st_ino
            if self._known.setdefault(path, identity) != identity:
                return True
        return False


# -- read by other commands ----------------------------------------------------------------------


def find_run(runs_dir: Path, name: str | None) -> Path:
    """Find the folder of a run, by its name or path. Without a name: the folder of the newest run.
    If the usual folder of runs lacks the run, search where this user has started runs."""
    if name is not None:
        for path in (runs_dir / name, Path(name)):
            if _is_run(path):
                return path
        if (elsewhere := _elsewhere(runs_dir, name)) is not None:
            return elsewhere
        told = name if runs_dir == Path(RUNS_FOLDER) else str(runs_dir / name)
        if jobs := JobIndex(os.environ).of_run(told):
            raise RunDeleted(
                f"the folder of run {name} was deleted or moved while the job runs, so its state is not"
                f" known here; 'polyrhythm stop {name}' ends the job, and saves its model there",
                jobs,
            )
        raise RunError(f"there is no run {name!r} in {runs_dir}: see 'polyrhythm runs'")
    paths = list(run_dirs(runs_dir))
    if paths:
        return paths[-1]
    if (elsewhere := _elsewhere(runs_dir)) is not None:
        return elsewhere
    raise RunError(f"there is no run in {runs_dir}: start one with 'polyrhythm train'")


def _is_run(path: Path) -> bool:
    return (path / _JOB).is_file() or (path / JOURNAL).is_file()


def _elsewhere(runs_dir: Path, name: str | None = None) -> Path | None:
    """The folder of a run that this user has started in another folder: the run with this name, or
    else the newest one. Of several, prefer one that runs now."""
    if runs_dir != Path(RUNS_FOLDER):
        return None  # the user has said where the run is
    index = RunIndex(os.environ)
    found = [path for path in (index.find(name) if name else index.runs()) if _is_run(path)]
    if name is None or len(found) < 2:
        return found[0] if found else None
    alive = [path for path in found if load_run(path).word == "running"]
    if len(alive) == 1:
        return alive[0]
    folders = listed(str(path) for path in found)
    raise RunError(f"there are {len(found)} runs named {name!r}: give the folder of one: {folders}")


def run_dirs(runs_dir: Path) -> Iterator[Path]:
    """The folders of all runs, oldest first."""
    if runs_dir.is_dir():
        folders = [path for path in runs_dir.iterdir() if (path / _JOB).is_file()]
        yield from sorted(folders, key=lambda path: ((path / _JOB).stat().st_mtime_ns, path.name))


def running(runs_dir: Path) -> Iterator[tuple[Path, JobSpec]]:
    """The folders of the runs that are alive on this host, each with its job."""
    for path in run_dirs(runs_dir):
        process, job = _decode(path / _PROCESS, RunProcess), _decode(path / _JOB, JobSpec)
        if process is None or job is None or (path / RESULT).exists():
            continue
        if is_alive(process):
            yield path, job


def load_run(path: Path) -> Run:
    journal = path / JOURNAL
    process = _decode(path / _PROCESS, RunProcess)
    alive = False if process is None else is_alive(process)
    state = fold(read_journal(journal)) if journal.is_file() else RunState()
    written = journal.stat().st_mtime if journal.is_file() else time.time()
    return Run(
        path=path,
        job=_decode(path / _JOB, JobSpec),
        state=state,
        process=process,
        result=_decode(path / RESULT, dict[str, Any]),
        alive=alive,
        now_s=state.at_s + (max(0.0, time.time() - written) if alive else 0.0),
        suspects=read_suspects(path / WATCH) if alive else (),
    )


def is_alive(process: RunProcess) -> bool | None:
    if process.host != socket.gethostname():
        return None
    if process.started is not None:
        return _started(process.pid) == process.started
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process exists and belongs to another user
    return True


def _started(pid: int) -> int | None:
    """When a process was started, in clock ticks since the host booted. None if the process is
    gone, or if the system has no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] == "Z" else int(stat[19])


def _decode(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


class Members:
    """Reads from the journal of a job which workers are in the job, whether all servers have
    joined, and whether an operator is stopping the job."""

    def __init__(self, journal: Path) -> None:
        self._reader = JournalReader(journal)
        self._names: set[str] = set()
        self._servers: set[int] = set()
        self._most_servers = 0
        self._stopping_for: str | None = None
        self._ended_by: Reason | None = None

    def hand(self, part: JournalPart) -> None:
        """Add lines of the journal that may be missing from its file."""
        self._reader.hand(part)

    def close(self) -> None:
        self._reader.close()

    def present(self) -> frozenset[str]:
        """The names of the workers in the job. Workers that joined with `polyrhythm worker` are
        included."""
        self._read()
        return frozenset(self._names)

    def stopping_for(self) -> str | None:
        """The name of the operator who asked to stop the job; None if no operator did."""
        self._read()
        return self._stopping_for

    def gathered(self, servers: int) -> bool:
        """Whether this many servers have been in the job at the same time."""
        self._read()
        return self._most_servers >= servers

    def ended_by(self) -> Reason | None:
        """Why the lead has ended the job; None if it has not."""
        self._read()
        return self._ended_by

    def has_server(self, server: int) -> bool:
        """Whether this server is in the job, as far as the lead knows."""
        self._read()
        return server in self._servers

    def _read(self) -> None:
        for line in self._reader.new_lines():
            match line["what"]:
                case "joined" | "rejoined":
                    self._names.add(line["name"])
                case "left":
                    self._names.discard(line["name"])
                case "server-joined":
                    self._servers.add(line["server"])
                case "server-left" | "server-lost" | "drained":
                    self._servers.discard(line["server"])
                case "stopping":
                    self._stopping_for = line.get("by")
                case "ended":
                    self._ended_by = reason_of(line)
                    self._stopping_for = line["fields"].get("by")
            self._most_servers = max(self._most_servers, len(self._servers))

"""A `polyrhythm` command as the operating system sees it: its processes, sockets and memory.

Every process of a command inherits a mark in its environment. Tests find the processes in /proc by
this mark. Every command records traces. If a test passes, its traces are replayed into fresh
machines: the recorded events alone must give all recorded effects.
"""

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.observe.journal import read_journal
from polyrhythm.runtime.trace import replay
from tests.commands.start import Process, run, start
from tests.commands.warm_server import MARK

TORTURED = "POLYRHYTHM_TORTURE" in os.environ
SHOWN_ELSEWHERE = pytest.mark.skipif(
    not TORTURED, reason="under POLYRHYTHM_TORTURE: another case shows the same every time"
)
_TCP_LISTEN = "0A"
_WORKERS_FAILED = re.compile(r"polyrhythm: worker-\d.* failed: ")
_LONGEST_PAUSE_S = 0.05
"""The longest pause between two checks of a job. Pauses grow up to this limit, because a check
takes processor time."""
LONGEST_WAIT_S = 180.0
"""The longest wait for anything that a job does. It is far longer than any such wait takes, also on a
machine that does much else, so that it ends only a test whose job has stopped. A wait ends as soon as
the job has done it."""
_SEVERAL_HEARTBEATS_S = 2.5
_MOST_STEPS = 20_000 if TORTURED else 4_000
"""The largest number of steps of a trace that are replayed."""


_FAR = 100_000
_UNHURRIED = ("--min-step", "100ms")
"""The flags that make a job pause between steps. A job that trains until its test stops it would
otherwise keep both cores busy while the test waits."""


def _trains_until_stopped(args: Sequence[object]) -> bool:
    """Whether to add the flags for pauses to a command: its job has no goal that it reaches soon,
    and the test does not set the duration of steps."""
    words = [str(arg) for arg in args]
    if "--min-step" in words or any(word.startswith("--target") for word in words):
        return False
    goals = [
        int(words[at + 1]) for at, word in enumerate(words) if word in ("--rounds", "--epochs")
    ]
    return all(goal >= _FAR for goal in goals)


def wait_until(
    done: Callable[[], Any],
    what: str,
    deadline_s: float = LONGEST_WAIT_S,
    pause_s: float = 0.005,
) -> Any:
    """Call `done` until it returns a true value, and return this value. Fail the test if that takes
    too long. `pause_s`: the first pause; a longer one suits a call that takes processor time."""
    until_s = time.monotonic() + deadline_s
    while True:
        found = done()
        if found:
            return found
        if time.monotonic() > until_s:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(pause_s)
        pause_s = max(pause_s, min(1.2 * pause_s, _LONGEST_PAUSE_S))


def call(
    *args: object, cwd: Path, timeout_s: float = LONGEST_WAIT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return run(*args, cwd=cwd, timeout_s=timeout_s)


def last_word(lines: list[str]) -> str:
    """Return the last line of a failed command. The lines before it may only report workers that
    failed."""
    *before, line = lines
    assert all(_WORKERS_FAILED.match(other) for other in before), lines
    return line


class Command:
    """A running `polyrhythm train ... --name run` in the folder `cwd`. On exit all of its processes
    are killed."""

    def __init__(
        self,
        *args: object,
        cwd: Path,
        verb: str = "train",
        trace: bool = True,
        fresh: bool = False,
        spares: int = 0,
        descriptors: int | None = None,
    ) -> None:
        """`verb`: `train`, or `serve` for a job without code. `trace`: record traces, and replay
        them unless the test fails. `fresh`, `spares` and `descriptors`: see
        `tests.commands.start.start`."""
        self.cwd = cwd
        self._traces = trace
        self.run_dir = cwd / "runs" / "run"
        self._mark = f"{MARK}={uuid.uuid4().hex}".encode()
        name, _, value = self._mark.decode().partition("=")
        self._env = {**os.environ, name: value}
        self._joiners: list[Process] = []
        self._stderr = (cwd / "stderr.txt").open("w+")
        self._stdout = (cwd / "stdout.txt").open("w+")
        # limit the job, so that it ends even if the test process is killed
        bounded = "--rounds" in args or "--epochs" in args
        self.process = start(
            *(verb, *args, "--name", "run", *(["--trace"] if trace else [])),
            *(("--max-seconds", "600") if bounded else ()),
            *(_UNHURRIED if verb == "train" and _trains_until_stopped(args) else ()),
            cwd=cwd,
            env=self._env,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
            fresh=fresh,
            spares=spares,
            descriptors=descriptors,
        )

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        for pid in [self.process.pid, *self.pids()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the command has ended by itself
        for process in (self.process, *self._joiners):
            process.wait(10)
        for joiner in self._joiners:
            assert joiner.stderr is not None
            joiner.stderr.close()
        self._stdout.close()
        self._stderr.close()
        if failure is None and self._traces:
            for trace in sorted(self.run_dir.glob("*.trace")):
                # if the trace is empty, its process was killed before it had written anything
                if trace.stat().st_size:
                    replay(trace, _MOST_STEPS)

    # -- processes -----------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Return all processes of the command, oldest first: the command itself, the fork server,
        servers, workers."""
        return marked(self._mark)

    def servers(self) -> list[int]:
        """Return the processes that listen on a port. The first one is s0. Workers listen too if
        points travel between them (`--migrate full`)."""
        came = [line for line in self.journal() if line["what"] in ("joined", "rejoined")]
        workers = {line.get("pid") for line in came}
        listening = _listening()
        others = [pid for pid in self.pids() if pid not in workers]
        return [pid for pid in others if not _socket_inodes(pid).isdisjoint(listening)]

    def workers(self) -> list[int]:
        mine = self.pids()
        fork_server = mine[1:2]
        listening = self.servers()
        return [p for p in mine if p not in listening and p != self.process.pid][len(fork_server) :]

    def ports(self, pid: int) -> list[int]:
        """Return the TCP ports that a process listens on."""
        inodes = _socket_inodes(pid)
        return [port for inode, port in _listening().items() if inode in inodes]

    def local_names(self, pid: int) -> list[str]:
        """Return the names of a process's abstract Unix sockets, without the @."""
        inodes = _socket_inodes(pid)
        return sorted({name for inode, name in _abstract_sockets() if inode in inodes})

    def memory_files(self) -> set[str]:
        """Return the files of /dev/shm that any process of the command has mapped or open."""
        found = set()
        for pid in self.pids():
            try:
                lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
                paths = [line.split(maxsplit=5)[5] for line in lines if line.count(" ") > 4]
                paths += [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
            except (OSError, IndexError):
                continue
            found.update(path for path in paths if path.startswith("/dev/shm/"))
        return found

    def join(self, *args: object) -> Process:
        """Start a `polyrhythm worker` that joins this command's job. It is killed at the end of the
        test."""
        traces = ["--trace", str(self.run_dir)] if self._traces else []
        return self._start_outside("worker", *args, *traces)

    def serve(self, *args: object, **environ: str) -> Process:
        """Start a `polyrhythm server` for this command's job. It is killed at the end of the
        test."""
        return self._start_outside("server", *args, **environ)

    def _start_outside(self, role: str, *args: object, **environ: str) -> Process:
        joiner = start(
            *(role, "--connect", self.address(), *args),
            cwd=self.cwd,
            env={**self._env, **environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._joiners.append(joiner)
        return joiner

    # -- journal and output --------------------------------------------------------------------

    def journal(self, what: str = "") -> list[dict[str, Any]]:
        path = self.run_dir / "journal.jsonl"
        lines = list(read_journal(path)) if path.exists() else []
        return [line for line in lines if not what or line["what"] == what]

    def address(self) -> str:
        """Return the address at which workers and servers join."""
        listening = wait_until(lambda: self.journal("listening"), "it listens")[0]
        return f"{listening['host']}:{listening['port']}"

    def joined(self, name: str) -> list[dict[str, Any]]:
        """Return the journal lines of every join and rejoin of this worker."""
        came = self.journal("joined") + self.journal("rejoined")
        return [line for line in came if line["name"] == name]

    def left(self, name: str) -> list[str]:
        """Return the codes of the reasons for which workers of this name left."""
        return [line["reason"] for line in self.journal("left") if line["name"] == name]

    def await_round(self, round_: int) -> None:
        """Wait until this round is folded."""

        def reached() -> bool:
            self.assert_alive()
            return any(line["round"] >= round_ for line in self.journal("rounds"))

        wait_until(reached, f"round {round_}")

    def await_heartbeats(self) -> None:
        """Wait until the lead has received several heartbeats of every worker. From then on the
        lead evicts a silent worker after 2 s. Before it has measured the interval of heartbeats, it
        would wait 10 s."""

        def at_s() -> float:
            self.assert_alive()
            return max((line["at_s"] for line in self.journal()), default=0.0)

        seen_s = at_s()
        wait_until(lambda: at_s() > seen_s + _SEVERAL_HEARTBEATS_S, "several heartbeats")

    def assert_alive(self) -> None:
        assert self.process.poll() is None, f"it ended: {self.stderr()}"

    def wait(self, deadline_s: float = LONGEST_WAIT_S) -> int:
        return self.process.wait(deadline_s)

    def stderr(self) -> str:
        return (self.cwd / "stderr.txt").read_text()

    def stdout(self) -> str:
        return (self.cwd / "stdout.txt").read_text()


def marked(mark: bytes) -> list[int]:
    """Return all processes with this mark in their environment, oldest first."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if mark in _content(f"/proc/{name}/environ").split(b"\0"):
                stat = _content(f"/proc/{name}/stat").rpartition(b")")[2].split()
                if stat[0] != b"Z":
                    found.append((int(stat[19]), int(name)))
        except (OSError, ValueError):
            continue  # the process has ended, or belongs to another user
    return [pid for _, pid in sorted(found)]


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _listening() -> dict[str, int]:
    """Return the inode and the port of every TCP socket that listens in this network namespace. The
    kernel takes 2 ms for this."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        fields[9]: int(fields[1].rpartition(":")[2], 16)
        for fields in lines
        if fields[3] == _TCP_LISTEN
    }


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    folder = f"/proc/{pid}/fd"
    try:
        for fd in os.listdir(folder):
            target = os.readlink(f"{folder}/{fd}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass  # the process has ended, so it has no sockets
    return found


def _abstract_sockets() -> list[tuple[str, str]]:
    """Return (inode, name) of every abstract Unix socket of this network namespace."""
    found = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[7].startswith("@"):
            found.append((fields[6], fields[7][1:]))
    return found


def abstract_names() -> set[str]:
    return {name for _, name in _abstract_sockets()}

"""Nodes of a Ray cluster that `ray start` begins, as an operator does. They keep their files in one
folder, and all processes that name this folder end with the test."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RAY = Path(sys.executable).with_name("ray")
_START_S = 90.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
}


def users_of(folder: Path) -> list[int]:
    """The processes whose command line names the folder, and those of Ray and of jobs that have a file
    in it, because they change their command line. This leaves out a process that has only joined the
    cluster."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            files = [os.readlink(each) for each in (process / "fd").iterdir()]
            named = str(folder).encode() in words
            titled = words.startswith((b"ray::", b"polyrhythm: "))
            if named or (titled and any(each.startswith(f"{folder}/") for each in files)):
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def kill_users_of(folder: Path) -> None:
    """Ray's agents would otherwise wait for a minute for a cluster that has ended."""
    until_s = time.monotonic() + 30.0
    while (pids := users_of(folder)) and time.monotonic() < until_s:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


@dataclass
class RayNodes:
    folder: Path
    programs: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(
        self, *args: object, before: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> None:
        """Start a node. `args`: those of `ray start`. `before`: the words of a command that runs it,
        such as one that enters a network namespace."""
        words = [*before, str(RAY), "start", *map(str, args), "--block", "--disable-usage-stats"]
        with (self.folder / "log").open("ab") as log:
            program = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    **_SETTINGS,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "RAY_TMPDIR": str(self.folder),
                    **(environment or {}),
                },
            )
        self.programs.append(program)

    def until_listening(self, host: str, port: int, before: Sequence[str] = ()) -> None:
        """Wait for the control service."""
        dial = f"import socket; socket.create_connection(({host!r}, {port}), 2)"
        until_s = time.monotonic() + _START_S
        while subprocess.run([*before, sys.executable, "-c", dial], capture_output=True).returncode:
            if time.monotonic() > until_s or any(each.poll() is not None for each in self.programs):
                raise RuntimeError(f"a node did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.2)

    def end(self) -> None:
        kill_users_of(self.folder)
        for program in self.programs:
            program.kill()
            program.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """Nodes for one test."""
    nodes = RayNodes(Path(tempfile.mkdtemp(prefix="rn-", dir="/tmp")))
    try:
        yield nodes
    finally:
        nodes.end()

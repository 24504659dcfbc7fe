"""Lets tests use one small Ray cluster (`tests/ray_cluster_process.py`), which the first test that
needs it starts."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("ray_cluster_process.py")
_START_S = 100.0
_SOON_S = 120.0


@dataclass(frozen=True)
class RayCluster:
    folder: Path

    @property
    def address(self) -> str:
        return (self.folder / "address").read_text()

    def _ask(self, request: Any) -> Any:
        with Client(str(self.folder / "requests"), "AF_UNIX") as connection:
            connection.send(request)
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextlib.contextmanager
    def node(self, **how: Any) -> Iterator[tuple[int, str]]:
        """A further node: the process id of its raylet, and its id."""
        pid, node = self._ask(how)
        try:
            yield pid, node
        finally:
            self._ask(pid)


def shared_cluster(folder: Path) -> RayCluster:
    """The cluster of this run of pytest. `folder`: one that all of its processes have in common."""
    note = folder / "ray-cluster"
    with (folder / "ray-cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            parent = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            note.write_text(str(start_cluster(parent).folder))
    return RayCluster(Path(note.read_text()))


@dataclass(frozen=True)
class OwnCluster(RayCluster):
    """A cluster that only one test uses, and may damage."""

    keeper: "subprocess.Popen[bytes]"
    """The cluster ends with this process."""

    def signal_control(self, how: signal.Signals) -> None:
        """Send a signal to the control service (GCS): it dies, or hangs."""
        self._ask(how)

    def restart_control(self) -> None:
        """Start it again, at the same address."""
        self._ask("restart control")

    def end(self) -> None:
        self.keeper.kill()
        self.keeper.wait(60)


@contextlib.contextmanager
def own_cluster(*, environment: dict[str, str] | None = None, **head: Any) -> Iterator[OwnCluster]:
    """A cluster for one test. `head`: arguments of its first node. `environment`: variables of its
    processes."""
    keeper = subprocess.Popen(["sleep", "600"])
    try:
        yield OwnCluster(start_cluster(keeper.pid, head, environment).folder, keeper)
    finally:
        keeper.kill()
        keeper.wait(60)


def start_cluster(
    parent: int, head: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> RayCluster:
    """A cluster that ends with the process `parent`."""
    # the paths of Ray's sockets are long, and at most 107 characters are possible
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    with (folder / "log").open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(folder), str(parent), json.dumps(head or {})],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        )
    until_s = time.monotonic() + _START_S
    while not (folder / "address").exists():
        if program.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"the Ray cluster did not start: {(folder / 'log').read_text()}")
        time.sleep(0.1)
    program.returncode = 0  # it outlives this process: do not warn that it still runs
    return RayCluster(folder)


def soon(holds: Callable[[], bool], what: str, seconds: float = _SOON_S) -> None:
    """Wait until this holds, and fail if it does not hold in the end."""
    until_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)

"""Jobs that continue after the end of their command (`--engine ray --detach`).

A detached actor does the work of the command. It owns all actors of the job, so when it ends, Ray
ends these and removes the group of the servers. *It runs on the node of the command, because the
folder of the run is there.* So `status`, `why` and `stop` find the run as usual.

The actor is connected to the command until the command knows whether the job has begun, or has
itself ended. *Until the job has begun, it ends with its command.* The actor keeps its answer while
the connection lasts.
"""

import os
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from polyrhythm.core.cluster import AUTO, HERE, choose_address, process_end
from polyrhythm.engines.ray_cluster import joined
from polyrhythm.errors import JobFailed, PolyrhythmError, UsageError

LOG = "command.log"
"""The output of the command, in the folder of the run."""
_ASK = "ask"
_ASK_S = 0.5
_OWN = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH")
"""The prefixes of the environment variables that the actor keeps as Ray has set them."""

Job = Callable[[Callable[[], None]], object]
"""Runs the job until it ends, and calls its argument when the lead listens."""


@dataclass(frozen=True, slots=True)
class _BegunRun:
    """Whether the job has begun or has failed, and why it has failed."""

    known: bool
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The parts of the command's environment that the actor uses."""

    user: int
    folder: str
    environment: Mapping[str, str]

    @classmethod
    def of_this_process(cls) -> "_Surroundings":
        kept = {name: os.environ[name] for name in os.environ if not name.startswith(_OWN)}
        return cls(os.getuid(), str(Path.cwd()), kept)

    def enter(self) -> None:
        if self.user != os.getuid():
            raise PolyrhythmError(
                f"--detach: Ray runs as user {os.getuid()} on this node, and this command as user"
                f" {self.user}, so the job could not write into the folder of its run"
            )
        os.environ.update(self.environment)
        os.chdir(self.folder)


class DetachedJob:
    """The actor."""

    def __init__(self, job: Job, log: str, caller: str, surroundings: _Surroundings) -> None:
        """`caller`: the name of the socket of the command."""
        surroundings.enter()
        self._job = job
        self._log = log
        self._begun = threading.Event()
        self._failed: str | None = None
        self._released = threading.Event()
        """Set when the command knows whether the job has begun, or has itself ended."""
        link = socket.socket(socket.AF_UNIX)
        link.connect(caller)
        threading.Thread(target=self._until_released, args=(link,), daemon=True).start()

    def _until_released(self, link: socket.socket) -> None:
        with suppress(OSError):
            link.recv(1)
        self._released.set()
        if not self._begun.is_set():
            os._exit(1)

    def run(self) -> None:
        try:
            with (
                open(self._log, "a", buffering=1) as file,
                redirect_stdout(file),
                redirect_stderr(file),
            ):
                self._failed = self._run()
        except OSError as error:
            self._failed = str(error)
        finally:
            self._begun.set()
            self._released.wait()
            ray.actor.exit_actor()

    def _run(self) -> str | None:
        """Why the job did not begin. A failure after that goes to the log."""
        try:
            self._job(self._begun.set)
            return None
        except PolyrhythmError as error:
            failed = str(error)
        except Exception as error:
            traceback.print_exc()
            failed = f"{type(error).__name__}: {error}"
        if not self._begun.is_set():
            return failed
        print(f"polyrhythm: {failed}")
        return None

    @ray.method(concurrency_group=_ASK)
    def begun(self) -> _BegunRun:
        """Wait a moment for the beginning of the job."""
        return _BegunRun(self._begun.wait(_ASK_S), self._failed)


def detach(job: Job, run_dir: Path, address: str | None) -> None:
    """Let a detached actor run this job. Returns when the job has begun, and shows its output until
    then. Raises JobFailed if the job does not begin; a KeyboardInterrupt ends the job."""
    if (
        not ray.is_initialized()
        and choose_address(address, os.environ.get("RAY_ADDRESS"), None) == HERE
    ):
        raise UsageError(
            "--detach: RAY_ADDRESS is 'local', and that cluster ends with this command"
        )
    log = run_dir / LOG
    with (
        log.open("w+") as shown,
        joined(address or AUTO, 0),
        socket.socket(socket.AF_UNIX) as caller,
    ):
        caller.bind(f"\0polyrhythm-{secrets.token_hex(16)}")  # a function needs no file
        caller.listen()
        actor = None
        try:
            actor = _create(job, run_dir, str(log), caller.getsockname().decode())
            failed = _await_begin(actor, shown)
            if failed is not None:
                raise JobFailed(failed)
        except ray.exceptions.RayError as error:
            _kill(actor)
            how = process_end(str(error), "")
            raise JobFailed(f"the detached job could not be started: {how}") from None
        except BaseException:
            _kill(actor)
            raise


def _create(job: Job, run_dir: Path, log: str, caller: str) -> Any:
    remote: Any = ray.remote  # Ray's types do not know all of its options
    here = ray.get_runtime_context().get_node_id()
    actor = (
        remote(concurrency_groups={_ASK: 1}, max_restarts=0)(DetachedJob)
        .options(
            name=f"polyrhythm: {run_dir.name}",
            namespace=f"polyrhythm-{run_dir.name}-{time.time_ns()}",
            lifetime="detached",
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        )
        .remote(job, log, caller, _Surroundings.of_this_process())
    )
    actor.run.remote()
    return actor


def _kill(actor: Any) -> None:
    if actor is not None:
        with suppress(ray.exceptions.RayError, ValueError):
            ray.kill(actor)


def _await_begin(actor: Any, shown: IO[str]) -> str | None:
    """Why the job did not begin; None if it has begun."""
    while True:
        begun: _BegunRun = ray.get(actor.begun.remote())
        sys.stderr.write(shown.read())
        sys.stderr.flush()
        if begun.known:
            return begun.failed

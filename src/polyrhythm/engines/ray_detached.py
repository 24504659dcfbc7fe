"""Jobs that go on when their command has ended (`--engine ray --detach`).

A detached actor runs what the command would run otherwise. It owns all actors of the job, so Ray ends
these, and removes the group of the servers, when the actor ends. *It runs on the node of the command,
because the folder of the run is there.* So `status`, `why` and `stop` find the run as usual.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from polyrhythm.core.cluster import AUTO
from polyrhythm.engines.ray import joined
from polyrhythm.errors import JobFailed, PolyrhythmError

LOG = "command.log"
"""What the command would print, in the folder of the run."""
_ASK = "ask"
_ASK_S = 0.5
_ASKED_S = 30.0
"""How long the actor of a job that did not begin can be asked why. The command kills it then."""
_OWN = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH")
"""The beginnings of the names of variables that the actor keeps as Ray has set them."""

Job = Callable[[Callable[[], None]], object]
"""Runs the job until it ends, and calls its argument when the lead listens."""


@dataclass(frozen=True, slots=True)
class _BegunRun:
    """Whether the job has begun or has failed, and why it has failed."""

    known: bool
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What the actor takes over from the command."""

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

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._failed: str | None = None

    def run(self, job: Job, log: str, surroundings: _Surroundings) -> None:
        with (
            open(log, "a", buffering=1) as file,
            redirect_stdout(file),
            redirect_stderr(file),
        ):
            try:
                surroundings.enter()
                job(self._begun.set)
            except PolyrhythmError as error:
                self._fail(file, str(error))
            except Exception as error:
                self._fail(file, f"{type(error).__name__}: {error}")
                raise
        ray.actor.exit_actor()

    def _fail(self, log: IO[str], failed: str) -> None:
        if self._begun.is_set():
            log.write(f"polyrhythm: {failed}\n")
            return
        self._failed = failed
        self._begun.set()
        time.sleep(_ASKED_S)

    @ray.method(concurrency_group=_ASK)
    def begun(self) -> _BegunRun:
        """Wait a moment for the beginning of the job."""
        return _BegunRun(self._begun.wait(_ASK_S), self._failed)


def detach(job: Job, run_dir: Path, address: str | None) -> None:
    """Let a detached actor run this job. Returns when the job has begun. Until then, what the job
    prints is shown. Raises JobFailed if it does not begin; a KeyboardInterrupt ends it."""
    log = run_dir / LOG
    with log.open("w+") as shown, joined(address or AUTO, 0):
        context = ray.get_runtime_context()
        remote: Any = ray.remote  # its types do not know all of its options
        actor = (
            remote(concurrency_groups={_ASK: 1}, max_restarts=0)(DetachedJob)
            .options(
                name=f"polyrhythm: {run_dir.name}",
                namespace=f"polyrhythm-{run_dir.name}-{time.time_ns()}",
                lifetime="detached",
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(
                    context.get_node_id(), soft=False
                ),
            )
            .remote()
        )
        try:
            running = actor.run.remote(job, str(log), _Surroundings.of_this_process())
            failed = _await_begin(actor, shown)
        except ray.exceptions.RayError as error:
            raise JobFailed(f"the detached job could not be started: {error}") from None
        except BaseException:
            ray.kill(actor)
            raise
        if failed is not None:
            ray.kill(actor)
            raise JobFailed(failed)
        del running  # the job goes on without anyone who waits for its end


def _await_begin(actor: Any, shown: IO[str]) -> str | None:
    """Why the job did not begin; None if it has begun."""
    while True:
        begun: _BegunRun = ray.get(actor.begun.remote())
        sys.stderr.write(shown.read())
        sys.stderr.flush()
        if begun.known:
            return begun.failed

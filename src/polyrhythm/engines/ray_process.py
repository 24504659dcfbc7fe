"""A server or a worker in the process of a Ray actor (`engines/ray.py` creates the actors).

Methods of three *concurrency groups* run at the same time, each on a thread of Ray: `run` in the
default group, because the user's code holds its thread until the job ends, `hear`, which waits for
messages of the process, and `tell`, which brings messages. Ray keeps the main thread of the process for
itself, so no signal handler can be set here: the engine asks a worker to leave by a message.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import ray

from polyrhythm.core.devices import CudaFound, assign, may_use_cuda
from polyrhythm.core.kinds import steps_on_workers
from polyrhythm.engines.output import flush
from polyrhythm.engines.ray_messages import (
    ActorControl,
    ActorPlace,
    Heard,
    Inbox,
    Outbox,
    OutputReader,
)
from polyrhythm.engines.requests import ChildRequest, Told
from polyrhythm.errors import PolyrhythmError
from polyrhythm.release import VERSION

if TYPE_CHECKING:
    from polyrhythm.engines.process import Run

HEAR, TELL = "hear", "tell"
GROUPS = {HEAR: 1, TELL: 1}
_WAIT_S = 20.0
"""How long `hear` waits for a message before it returns nothing."""


class RayProcess:
    """The actor."""

    def __init__(self, name: str, role: str, kind: str, threads: int) -> None:
        """`kind`: of the job's contributions. `threads`: how many threads torch uses."""
        self._name = name
        self._role = role
        self._steps = role == "worker" and steps_on_workers(kind)
        self._threads = threads
        self._inbox = Inbox()
        self._outbox = Outbox()
        self._place: ActorPlace | None = None

    def __repr__(self) -> str:
        return self._name

    @ray.method(concurrency_group=HEAR)
    def hear(self, confirmed: int) -> Heard:
        """The next messages and output of the process. The first call returns at once, and says where
        the process runs."""
        if self._place is None:
            node = ray.get_runtime_context().get_node_id()
            self._place = ActorPlace(node, ray.util.get_node_ip_address())
            return Heard(confirmed, place=self._place)
        return self._outbox.take(confirmed, _WAIT_S, self._place)

    @ray.method(concurrency_group=TELL)
    def tell(self, number: int, line: bytes) -> None:
        """Take a message of the engine, which numbers its messages."""
        self._inbox.put(number, line)

    def warm(self) -> None:
        """Import what the process needs, and set the number of threads. Ray would derive it from
        the CPUs of the actor, and use all cores if there are none."""
        from polyrhythm.engines.environment import rest_at_once

        # torch reads these variables when it is loaded
        os.environ["OMP_NUM_THREADS"] = str(self._threads)
        if self._threads == 1 or self._role == "server":
            rest_at_once()
        import torch

        from polyrhythm.tensors.compiler import prepare_optimizers

        torch.set_num_threads(self._threads)
        prepare_optimizers(steps=self._steps)
        _role(self._role)

    def run(self, request: bytes, code: bytes, version: str) -> None:
        """Run the process until it ends. `code`: the contents of the job's file, if it has one.
        `version`: the version of polyrhythm that the engine has."""
        status, output = 1, OutputReader(self._outbox)
        address = ray.util.get_node_ip_address()
        control = ActorControl(self._inbox, self._outbox, address)
        try:
            if version != VERSION:
                raise PolyrhythmError(
                    f"node {address} has polyrhythm {VERSION}, and this command {version}: install the"
                    " same version on every node"
                )
            self.warm()
            with tempfile.TemporaryDirectory(
                prefix=f"polyrhythm-{self._name}-", dir=session_dir(), ignore_cleanup_errors=True
            ) as folder:
                decoded = msgspec.json.decode(request, type=ChildRequest)
                status = self._run(decoded, Path(folder), code, control)
        except PolyrhythmError as error:
            control.tell(Told(failed=str(error)))
        except Exception as error:
            control.tell(Told(failed=f"{type(error).__name__}: {error}"))
        finally:
            flush()
            output.end()
            self._outbox.end(status)

    def _run(self, request: ChildRequest, folder: Path, code: bytes, control: ActorControl) -> int:
        from polyrhythm.engines.process import run_process

        return run_process(self._placed(request, folder, code), control, _role(request.role))

    def _placed(self, request: ChildRequest, folder: Path, code: bytes) -> ChildRequest:
        """The request, with the fields that only this node can fill in."""
        copy = ""
        if request.job.path:
            original = Path(request.job.path)
            (folder / original.name).write_bytes(code)
            copy = str(folder / original.name)
            # the file may import modules from its folder, if this node has the folder
            sys.path.append(str(original.parent))
        return msgspec.structs.replace(
            request,
            code=copy,
            folder=str(folder),
            host=ray.util.get_node_ip_address(),
            device=self._device(request.device) if request.role == "worker" else request.device,
        )

    def _device(self, asked: str) -> str:
        """The device of this worker: what it asks for, among the devices that Ray has assigned to this
        actor."""
        if not may_use_cuda(asked):
            return asked
        found = CudaFound(
            missing="Ray has assigned no GPU to this worker; ask for one with"
            " --resources-per-worker GPU=1"
        )
        if ray.get_runtime_context().get_accelerator_ids().get("GPU"):
            from polyrhythm.engines.cuda import look_for_cuda

            found = look_for_cuda()
        return assign([asked], found).devices[0]


def _role(role: str) -> "Run":
    """The function that a process of this role runs. It loads only the modules of this role."""
    if role == "server":
        from polyrhythm.engines.server_process import serve

        return serve
    from polyrhythm.engines.worker_process import work

    return work


def session_dir() -> str | None:
    """The folder of Ray's session on this node, in which Ray keeps all of its files; None if this
    version of Ray does not say."""
    node = getattr(ray._private.worker, "_global_node", None)
    path = None if node is None else node.get_session_dir_path()
    return path if path is not None and os.path.isdir(path) else None

"""A server or a worker in the process of a Ray actor (`engines/ray.py` creates the actors).

Methods of three *concurrency groups* run at the same time, each on a thread of Ray: `run` in the
default group, because the user's code holds its thread until the job ends, `hear`, which waits for
messages of the process, and `tell`, which brings messages. Ray keeps the main thread of the process for
itself, so no signal handler can be set here: the engine asks a worker to leave by a message.

*Nothing that the process has sent is lost while it lives: `hear` returns a message again until the
engine has said that it arrived.*
"""

import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import ray

from polyrhythm.core.cluster import with_node
from polyrhythm.core.devices import CudaFound, assign, may_use_cuda
from polyrhythm.core.kinds import steps_on_workers
from polyrhythm.engines.output import flush
from polyrhythm.engines.requests import ChildRequest, Told, encode
from polyrhythm.errors import PolyrhythmError
from polyrhythm.release import VERSION

if TYPE_CHECKING:
    from polyrhythm.engines.process import Run

HEAR, TELL = "hear", "tell"
GROUPS = {HEAR: 1, TELL: 1}
_WAIT_S = 20.0
"""How long `hear` waits for a message before it returns nothing."""
_MOST_NBYTES = 4 << 20
"""How many bytes of messages one `hear` returns, unless the first one is longer."""
_LOOK_S = 0.1
"""How often the output of the process is read."""
_READ_NBYTES = 256 << 10
_MARKS = (b":job_id:", b":actor_name:", b":task_name:")
"""Ray writes lines that begin so into the output of its processes, for its own use."""


@dataclass(frozen=True, slots=True)
class ActorPlace:
    """Where the process runs."""

    node: str
    """Ray's id of the node."""
    address: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What a process has sent. The entries are lines of `Told`, or bytes that the process has printed.
    `status`: the exit status, if the process has ended and these are its last entries."""

    first: int
    """The number of the first entry; they are numbered from 0."""
    entries: list[tuple[bool, bytes]] = field(default_factory=list)
    """Whether the entry was printed, and its bytes."""
    status: int | None = None
    place: ActorPlace | None = None


class Outbox:
    """What the process has sent and the engine has not confirmed."""

    def __init__(self) -> None:
        self._entries: list[tuple[bool, bytes]] = []
        self._first = 0
        self._nbytes = 0
        self._status: int | None = None
        self._changed = threading.Condition()

    @property
    def full(self) -> bool:
        return self._nbytes > _MOST_NBYTES

    def put(self, data: bytes, *, printed: bool = False) -> None:
        with self._changed:
            self._entries.append((printed, data))
            self._nbytes += len(data)
            self._changed.notify_all()

    def end(self, status: int) -> None:
        """Nothing more is sent."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def take(self, confirmed: int, wait_s: float, place: ActorPlace | None = None) -> Heard:
        """The next entries. `confirmed`: how many entries have arrived."""
        with self._changed:
            gone = confirmed - self._first
            self._nbytes -= sum(len(data) for _, data in self._entries[:gone])
            del self._entries[:gone]
            self._first = confirmed
            self._changed.wait_for(lambda: self._entries or self._status is not None, wait_s)
            nbytes = 0
            entries: list[tuple[bool, bytes]] = []
            for entry in self._entries:
                nbytes += len(entry[1])
                if entries and nbytes > _MOST_NBYTES:
                    break
                entries.append(entry)
            last = len(entries) == len(self._entries)
            return Heard(confirmed, entries, self._status if last else None, place)


class Inbox:
    """The messages of the engine. They are numbered, because Ray may run the calls that bring them in
    another order."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, bytes] = {}
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def put(self, number: int, line: bytes) -> None:
        self._early[number] = line
        while (line := self._early.pop(self._next, b"")) != b"":
            self._lines.put(line)
            self._next += 1

    def get(self) -> bytes:
        return self._lines.get()


class ActorControl:
    """The end of a process in an actor. Ray ends the process when the engine is gone."""

    def __init__(self, inbox: Inbox, outbox: Outbox, address: str) -> None:
        """`address`: that of the node."""
        self._inbox = inbox
        self._outbox = outbox
        self._address = address

    def tell(self, told: Told) -> None:
        if told.failed is not None:
            told = msgspec.structs.replace(told, failed=with_node(told.failed, self._address))
        self._outbox.put(encode(told))

    def hear(self) -> Told:
        return msgspec.json.decode(self._inbox.get(), type=Told)

    def watch(self, handle: Callable[[Told], None] = lambda told: None) -> None:
        def wait() -> None:
            while True:
                handle(self.hear())

        threading.Thread(target=wait, name="lifeline", daemon=True).start()


class OutputReader:
    """Reads what this process prints from the files to which Ray sends it, so that it also reaches the
    log in the folder of the run. What a process prints just before it crashes is in Ray's files
    only."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._files: dict[int, int] = {}
        """Where to read on, in each file. The descriptors are of this reader alone, so a file that is
        deleted is read to its end."""
        self._unread: dict[int, bytes] = {}
        self._ended = threading.Event()
        for number in (1, 2):
            path = f"/proc/self/fd/{number}"
            if Path(path).is_file():
                self._files[os.open(path, os.O_RDONLY)] = os.stat(path).st_size
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            if not self._outbox.full:
                for file in self._files:
                    self._read(file)

    def _read(self, file: int, *, last: bool = False) -> None:
        data = os.pread(file, _READ_NBYTES, self._files[file])
        self._files[file] += len(data)
        lines = (self._unread.pop(file, b"") + data).splitlines(keepends=True)
        if lines and not lines[-1].endswith((b"\n", b"\r")) and not last:
            self._unread[file] = lines.pop()
        shown = b"".join(line for line in lines if not line.startswith(_MARKS))
        if shown:
            self._outbox.put(shown, printed=True)

    def end(self) -> None:
        """Read the rest. A thread of the user's code may go on printing, which is left out."""
        self._ended.set()
        self._thread.join()
        for file in self._files:
            nbytes = os.fstat(file).st_size
            while self._files[file] < nbytes:
                self._read(file)
            self._read(file, last=True)
            os.close(file)


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
        """Bring message `number` of the engine."""
        self._inbox.put(number, line)

    def warm(self) -> None:
        """Import what the process needs. Ray would set the number of threads from the CPUs of the
        actor, and to all cores if it has none."""
        from polyrhythm.engines.environment import rest_at_once

        # torch reads these variables when it is loaded
        os.environ["OMP_NUM_THREADS"] = str(self._threads)
        if self._threads == 1:
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
        """The request with what only this node knows."""
        copy = ""
        if request.job.path:
            original = Path(request.job.path)
            (folder / original.name).write_bytes(code)
            copy = str(folder / original.name)
            # the file may import modules that lie beside it, if this node has its folder
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
    """What runs in a process of this role. Its modules are loaded here, and those of the other role are
    not."""
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

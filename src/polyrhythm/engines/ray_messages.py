"""The messages between a process in a Ray actor and the engine. The engine calls methods of the
actor (`ray_process.py`), which add messages here and take them away.

*While the process lives, nothing that it has sent is lost: an entry is returned again until the
engine has confirmed it.*
"""

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from polyrhythm.core.cluster import with_node
from polyrhythm.engines.requests import Told, encode

_MOST_NBYTES = 4 << 20
"""The most bytes of messages that one `hear` returns. A single longer message is returned too."""
_LOOK_S = 0.1
"""How often the output of the process is read."""
_READ_NBYTES = 256 << 10
_MARKS = (b":job_id:", b":actor_name:", b":task_name:")
"""The prefix of lines that Ray writes into the output of its processes, for its own use."""


@dataclass(frozen=True, slots=True)
class ActorPlace:
    """Where the process runs."""

    node: str
    """Ray's id of the node."""
    address: str


@dataclass(frozen=True, slots=True)
class Heard:
    """The entries that a process has sent: lines of `Told`, or bytes that the process has printed.
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
        """Note that the process ends with this status, and sends nothing more."""
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
    """The messages from the engine. They are numbered, because Ray may run the calls that carry
    them in another order."""

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
    """The actor's end of the connection to the engine. Ray ends the process when the engine is
    gone."""

    def __init__(self, inbox: Inbox, outbox: Outbox, address: str) -> None:
        """`address`: the address of the node."""
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
    """Reads the output of this process from the files to which Ray sends it. So the output also
    reaches the log in the folder of the run. Output just before a crash is in Ray's files only."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._files: dict[int, int] = {}
        """The position in each file. Only this reader uses these descriptors, so it reads a deleted
        file to its end."""
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
        """Read the rest. Output that a thread of the user's code prints later is not read."""
        self._ended.set()
        self._thread.join()
        for file in self._files:
            nbytes = os.fstat(file).st_size
            while self._files[file] < nbytes:
                self._read(file)
            self._read(file, last=True)
            os.close(file)

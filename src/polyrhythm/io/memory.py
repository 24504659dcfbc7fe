"""Links within one process, for the inline engine and for tests. Messages are passed as objects,
and payloads by reference. The rules for the use of a payload's memory are those of other links."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from polyrhythm.core.link_kinds import MEMORY
from polyrhythm.errors import LinkEnded
from polyrhythm.io.link import Measure, Payload, Sendable
from polyrhythm.io.segments import Piece
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import Land, Limits
from polyrhythm.wire.messages import Message

_Item = tuple[Message, memoryview | None] | None


class MemoryLink:
    kind = MEMORY
    host_here = ""
    pollable = None
    arrivals = 0
    unsent = False

    def __init__(
        self, peer: str, inbox: "SimpleQueue[_Item]", outbox: "SimpleQueue[_Item]"
    ) -> None:
        self.peer = peer
        self.incarnation = 0
        self._inbox = inbox
        self._outbox = outbox
        self._waiting: list[tuple[_Item, Callable[[], None] | None]] = []
        self._lock = threading.Lock()
        self._closed = False

    def agree(self, digest: Digest, limits: Limits) -> None:
        pass

    def land_with(self, land: Land) -> None:
        pass

    def measure_with(self, measure: Measure) -> None:
        pass

    def send(
        self,
        message: Message,
        payload: Sequence[Sendable] = (),
        *,
        flush: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        parts = [part.memory if isinstance(part, Piece) else part for part in payload]
        memory = parts[0] if len(parts) == 1 else None
        if len(parts) > 1:
            memory = memoryview(b"".join(parts))
        with self._lock:
            self._waiting.append(((message, memory), done))
        if flush:
            self.flush()

    def outlast(self, seconds: float) -> None:
        pass  # do nothing: both ends are in one process, so no network failure can separate them

    def withdraw(self, segment: int) -> None:
        pass  # the peer, in the same process, has mapped no segment

    def flush(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if not self._closed:
                for item, _ in waiting:
                    self._outbox.put(item)
        for _, done in waiting:
            if done is not None:
                done()

    def receive(self) -> tuple[Message, Payload | None]:
        item = self._inbox.get()
        if item is None:
            self._inbox.put(None)
            raise LinkEnded(f"{self.peer} closed the link")
        message, memory = item
        return message, Payload(memory) if memory is not None else None

    def close(self) -> None:
        self.flush()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._outbox.put(None)
                self._inbox.put(None)

    def dispose(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<memory link to {self.peer}{', closed' if self._closed else ''}>"


def memory_pair(one: str, other: str) -> tuple[MemoryLink, MemoryLink]:
    """The two ends of a link between the peers named `one` and `other`: first the end of `one`,
    then the end of `other`."""
    there: SimpleQueue[_Item] = SimpleQueue()
    back: SimpleQueue[_Item] = SimpleQueue()
    return MemoryLink(other, back, there), MemoryLink(one, there, back)

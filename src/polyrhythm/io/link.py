"""The seam: what every link between two processes can do, whatever carries it."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from polyrhythm.io.segments import Piece
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import Land, Limits
from polyrhythm.wire.messages import Message

Sendable: TypeAlias = memoryview | Piece


class Payload:
    """Borrowed bytes: look at them with `view()`, say `done()` when you need them no more."""

    __slots__ = ("_memory",)

    def __init__(self, memory: memoryview) -> None:
        self._memory: memoryview | None = memory

    def view(self) -> memoryview:
        assert self._memory is not None, "a payload was used after done()"
        return self._memory

    def done(self) -> None:
        self._memory = None


class Link(Protocol):
    peer: str
    """Who is at the other end, for routing and for errors."""
    incarnation: int
    """Of the worker at the other end, once it is known: 0 before, and for others."""
    kind: str
    by_reference: bool
    """Payloads reach the other side without being copied, so the sender must not reuse their
    memory when `done` is called, but when the other side says so."""

    def send(
        self,
        message: Message,
        payload: Sequence[Sendable] = (),
        *,
        flush: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Never blocks. `flush=False`: it may wait for the next thing sent. `done` is called when
        the link needs the payload's memory no more."""

    def flush(self) -> None: ...

    def withdraw(self, segment: int) -> None:
        """This segment will not be sent from any more: the peer need not keep a map of it."""

    def receive(self) -> tuple[Message, Payload | None]:
        """The next message, waiting for it. Its payload is valid until the next call."""

    def agree(self, digest: Digest, limits: Limits) -> None:
        """What hello settled, for all frames from now on."""

    def outlast(self, seconds: float) -> None:
        """End the link only after so long without any sign of the peer's machine: a network may
        fail, and come back, in less."""

    def land_with(self, land: Land) -> None:
        """Let `land` say where payloads that travel as bytes are received."""

    def close(self) -> None:
        """Send what is queued, then end the link: whoever reads it will notice."""

    def dispose(self) -> None:
        """Give its descriptor back. Only for the one who read it, after its end."""

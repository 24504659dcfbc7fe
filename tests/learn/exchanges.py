"""What leaves a worker of an inline job: every trailer, and what was contributed with it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from polyrhythm.io.memory import MemoryLink
from polyrhythm.wire.messages import Contribution, Trailer


@dataclass
class Sent:
    """One contribution. `slices`: the payload of each, as float32 numbers."""

    trailer: Trailer
    slices: dict[int, torch.Tensor] = field(default_factory=dict)
    noted: Any = None


class Exchanges:
    """Contributions by the thread that made them: inline, a thread is a worker."""

    def __init__(self) -> None:
        self._slices: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
        self._trailers: dict[int, list[tuple[Trailer, Any]]] = {}
        self._notes: dict[int, Callable[[], Any]] = {}

    def note(self, what: Callable[[], Any]) -> None:
        """Ask this when a contribution of this thread's worker leaves."""
        self._notes[threading.get_ident()] = what

    def record(self, message: Any, payload: Sequence[Any]) -> None:
        thread = threading.get_ident()
        if isinstance(message, Contribution) and payload:
            data = bytes(getattr(payload[0], "memory", payload[0]))
            tensor = torch.frombuffer(bytearray(data), dtype=torch.float32)
            self._slices.setdefault((thread, message.sequence), {})[message.slice] = tensor
        elif isinstance(message, Trailer):
            noted = self._notes[thread]() if thread in self._notes else None
            self._trailers.setdefault(thread, []).append((message, noted))

    def mine(self) -> list[Sent]:
        """The contributions of the worker whose thread this is, so far."""
        thread = threading.get_ident()
        return [
            Sent(trailer, self._slices.get((thread, trailer.sequence), {}), noted)
            for trailer, noted in self._trailers.get(thread, [])
        ]


def record_exchanges(patch: pytest.MonkeyPatch) -> Exchanges:
    exchanges, send = Exchanges(), MemoryLink.send

    def sending(self: MemoryLink, message: Any, payload: Sequence[Any] = (), **rest: Any) -> None:
        exchanges.record(message, payload)
        send(self, message, payload, **rest)

    patch.setattr(MemoryLink, "send", sending)
    return exchanges

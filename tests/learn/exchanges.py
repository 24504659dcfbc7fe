"""Record the contributions that the workers of an inline job send: the trailer and the slices of
each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.io.memory import MemoryLink
from polyrhythm.wire.messages import Contribution, Trailer


@dataclass
class Sent:
    """One contribution: its trailer and, in `slices`, the payload of each slice as float32
    numbers."""

    trailer: Trailer
    slices: dict[int, torch.Tensor] = field(default_factory=dict)
    noted: Any = None


class Exchanges:
    """The contributions of a job, by worker. All threads may record contributions."""

    def __init__(self) -> None:
        self._slices: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
        self._trailers: dict[int, list[tuple[Trailer, Any]]] = {}
        self._notes: dict[int, Callable[[], Any]] = {}

    def note(self, worker: Worker, what: Callable[[], Any]) -> None:
        """Record a contribution of this worker at the moment it is sent."""
        self._notes[_number(worker)] = what

    def record(self, message: Any, payload: Sequence[Any]) -> None:
        if isinstance(message, Contribution) and payload:
            data = bytes(getattr(payload[0], "memory", payload[0]))
            tensor = torch.frombuffer(bytearray(data), dtype=torch.float32)
            self._slices.setdefault((message.worker, message.sequence), {})[message.slice] = tensor
        elif isinstance(message, Trailer):
            noted = self._notes[message.worker]() if message.worker in self._notes else None
            self._trailers.setdefault(message.worker, []).append((message, noted))

    def of(self, worker: Worker) -> list[Sent]:
        """Return the contributions that this worker has sent so far."""
        number = _number(worker)
        return [
            Sent(trailer, self._slices.get((number, trailer.sequence), {}), noted)
            for trailer, noted in self._trailers.get(number, [])
        ]


def _number(worker: Worker) -> int:
    return worker._node._machine.worker


def record_exchanges(patch: pytest.MonkeyPatch) -> Exchanges:
    exchanges, send = Exchanges(), MemoryLink.send

    def sending(self: MemoryLink, message: Any, payload: Sequence[Any] = (), **rest: Any) -> None:
        exchanges.record(message, payload)
        send(self, message, payload, **rest)

    patch.setattr(MemoryLink, "send", sending)
    return exchanges

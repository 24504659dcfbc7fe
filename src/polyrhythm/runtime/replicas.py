"""What a primary sends to the servers that copy its slices: every step that it makes, and states.

A step leaves under the lock of its slice, so that all who copy it make the same steps in one order.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch

from polyrhythm.core.ledger import Ledger
from polyrhythm.io.link import Sendable
from polyrhythm.io.segments import Piece
from polyrhythm.runtime.copies import SliceState
from polyrhythm.runtime.primary import Primary
from polyrhythm.tensors.dtypes import DTYPES
from polyrhythm.tensors.updaters import Held
from polyrhythm.wire.messages import Contribution, Copy, Message, Route, Row, Stamp, State

Tell = Callable[[int, Message, Sequence[Sendable]], None]


class Replicas:
    def __init__(
        self, server: int, ledger: Ledger, ledger_lock: threading.Lock, tell: Tell
    ) -> None:
        """`tell` sends to another server."""
        self._server = server
        self._ledger = ledger
        self._ledger_lock = ledger_lock
        self._tell = tell

    def fold_too(self, held: Held, piece: Piece, route: Route, routing: int) -> None:
        """Let every copier fold what is about to be folded here."""
        slice_ = held.slice.id
        with self._ledger_lock:
            stamp = self._ledger.stamp(slice_)
            rows = self._ledger.folded_rows(slice_)
            copiers = sorted(self._ledger.copiers(slice_))
        copy = Copy(
            routing=routing,
            server=self._server,
            slice=slice_,
            weight=held.weight,
            stamp=stamp,
            rate=held.rate or 0.0,
            rows=rows,
        )
        for peer in copiers:
            if not held.weight:
                self._tell(peer, copy, ())
            elif peer in route.learners:  # which is not waited for
                self._tell(peer, copy, (memoryview(bytes(piece.memory)),))
            else:
                self._tell(peer, copy, (piece,))

    def forward(self, message: Contribution, data: memoryview, scale: float, routing: int) -> None:
        """Without rounds: let every copier fold the contribution too."""
        with self._ledger_lock:
            stamp = self._ledger.next_step(message.slice)
            copiers = sorted(self._ledger.copiers(message.slice))
        payload = memoryview(bytes(data)) if copiers else memoryview(b"")
        copy = Copy(
            routing=routing,
            server=self._server,
            worker=message.worker,
            incarnation=message.incarnation,
            sequence=message.sequence,
            slice=message.slice,
            weight=message.weight,
            stamp=stamp,
            rate=message.rate,
            scale=scale,
            rows=(Row(message.worker, message.incarnation, message.sequence),),
        )
        for peer in copiers:
            self._tell(peer, copy, (payload,))

    def teach(self, to: int, asked: Sequence[Stamp], primary: Primary, routing: int) -> None:
        """Send the state of what `to` is to copy; every later step goes to it too."""
        ids = [stamp.slice for stamp in asked if stamp.slice in primary.index]
        with self._ledger_lock:
            same = self._ledger.teach(to, ids, asked)
        for id_ in ids:
            parts = {} if same[id_] else primary.export(id_)
            with self._ledger_lock:
                stamp, rows = self._ledger.stamp(id_), self._ledger.folded_rows(id_)
            head = State(
                routing=routing,
                server=self._server,
                slice=id_,
                slices=len(ids),
                stamp=stamp,
                rows=rows,
                parts=len(parts),
            )
            for message, payload in _state_frames(head, parts):
                self._tell(to, message, payload)


def _state_frames(head: State, parts: SliceState) -> Iterator[tuple[State, Sequence[memoryview]]]:
    """A frame for each tensor of the state; one without payload where there is none to send."""
    if not parts:
        yield head, ()
    names = {dtype: name for name, dtype in DTYPES.items()}
    for number, (name, tensor) in enumerate(parts.items()):
        dtype, shape = names[tensor.dtype], tuple(tensor.shape)
        message = msgspec.structs.replace(head, name=name, dtype=dtype, shape=shape, part=number)
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        yield message, (memoryview(bytes(flat.numpy())),)

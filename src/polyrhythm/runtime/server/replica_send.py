"""Sends steps and states from a primary to the replicas of its slices.

A step is sent under the lock of its slice, so that all replicas make the same steps in the same
order.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch

from polyrhythm.core.server.ledger import Ledger
from polyrhythm.io.link import Sendable
from polyrhythm.io.segments import Piece, piece_for_many
from polyrhythm.runtime.server.primary import Primary
from polyrhythm.runtime.server.replica_memory import SliceState
from polyrhythm.tensors.dtypes import DTYPES
from polyrhythm.tensors.updater import Named
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    Message,
    Route,
    Row,
    SliceStep,
    Stamp,
    State,
)

Tell = Callable[[int, Message, Sequence[Sendable]], None]


class ReplicaSender:
    def __init__(
        self, server: int, ledger: Ledger, ledger_lock: threading.Lock, tell: Tell
    ) -> None:
        """`tell` sends a message to another server."""
        self._server = server
        self._ledger = ledger
        self._ledger_lock = ledger_lock
        self._tell = tell

    def fold_too(
        self, slice_: int, step: SliceStep, piece: Piece, route: Route, routing: int
    ) -> None:
        """With rounds: send the step that this server is about to make, and the aggregate, to every
        replica of the slice."""
        copy, copy_targets = self._copy_of_fold(slice_, step, routing)
        apart: Piece | None = None
        for peer in copy_targets:
            if not step.weight:
                self._tell(peer, copy, ())
            # Send a learner a copy, because the primary reuses the aggregate without waiting for
            # learners.
            elif peer in route.learners:
                apart = apart or piece_for_many(memoryview(bytes(piece.memory)))
                self._tell(peer, copy, (apart,))
            else:
                self._tell(peer, copy, (piece,))

    def fold_rows(
        self,
        slice_: int,
        step: SliceStep,
        live: tuple[Row, ...],
        named: Sequence[Named],
        routing: int,
    ) -> None:
        """Kind statistics: send the contributions that the fold names, and the rows of its version,
        to every replica of the slice. Like the primary, replicas keep the single rows and not their
        sum."""
        differences = tuple(row for row, _ in named)
        copy, copy_targets = self._copy_of_fold(slice_, step, routing, live, differences)
        payload: tuple[Sendable, ...] = ()
        if named and copy_targets:
            values = torch.cat([value for _, value in named]).view(torch.uint8)
            payload = (piece_for_many(memoryview(bytes(values.numpy()))),)
        for peer in copy_targets:
            self._tell(peer, copy, payload)

    def _copy_of_fold(
        self,
        slice_: int,
        step: SliceStep,
        routing: int,
        live: tuple[Row, ...] = (),
        differences: tuple[Row, ...] = (),
    ) -> tuple[Copy, list[int]]:
        """The message about the fold of a slice, and the servers to which it is sent."""
        with self._ledger_lock:
            stamp = self._ledger.stamp(slice_)
            rows = self._ledger.folded_rows(slice_)
            copy_targets = sorted(self._ledger.copy_targets(slice_))
        copy = Copy(
            routing=routing,
            server=self._server,
            slice=slice_,
            stamp=stamp,
            step=step,
            rows=rows,
            live=live,
            differences=differences,
        )
        return copy, copy_targets

    def forward(
        self, message: Contribution, data: memoryview, step: SliceStep, stamp: Stamp, routing: int
    ) -> memoryview:
        """Without rounds: send the step that folds this contribution to every replica. Returns a
        copy of `data`, from which this server must make its own step: the worker may overwrite
        `data` meanwhile, and the primary would then differ from its replicas."""
        with self._ledger_lock:
            copy_targets = sorted(self._ledger.copy_targets(message.slice))
        payload = memoryview(bytearray(data)) if copy_targets else data
        copy = Copy(
            routing=routing,
            server=self._server,
            worker=message.worker,
            incarnation=message.incarnation,
            sequence=message.sequence,
            slice=message.slice,
            stamp=stamp,
            step=step,
            rows=(Row(message.worker, message.incarnation, message.sequence),),
            indices=message.indices,
            quantised=message.quantised,
        )
        parts = (piece_for_many(payload),) if copy_targets and len(payload) else ()
        for peer in copy_targets:
            self._tell(peer, copy, parts)
        return payload

    def teach(self, to: int, held: Stamp, slices: int, primary: Primary, routing: int) -> None:
        """Send the state of a slice to the server `to`, which from now on also gets every later
        step of the slice. The tensors are left out if the stamp `held` shows that `to` already has
        an equal copy. `slices`: how many slices `to` asked for."""
        slice_ = held.slice
        with self._ledger_lock:
            same = self._ledger.teach(to, (slice_,), (held,))[slice_]
            stamp, rows = self._ledger.stamp(slice_), self._ledger.folded_rows(slice_)
        parts = {} if same else primary.export(slice_)
        head = State(
            routing=routing,
            server=self._server,
            slice=slice_,
            slices=slices,
            stamp=stamp,
            rows=rows,
            parts=len(parts),
        )
        for message, payload in _state_frames(head, parts):
            self._tell(to, message, payload)


def _state_frames(head: State, parts: SliceState) -> Iterator[tuple[State, Sequence[memoryview]]]:
    """A frame for each tensor of the state, or one frame without payload if there are no
    tensors."""
    if not parts:
        yield head, ()
    names = {dtype: name for name, dtype in DTYPES.items()}
    for number, (name, tensor) in enumerate(parts.items()):
        dtype, shape = names[tensor.dtype], tuple(tensor.shape)
        message = msgspec.structs.replace(head, name=name, dtype=dtype, shape=shape, part=number)
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        yield message, (memoryview(bytes(flat.numpy())),)

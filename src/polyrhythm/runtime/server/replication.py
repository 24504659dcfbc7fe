"""Sends steps and states from a primary to the replicas of its slices.

A step is sent under the lock of its slice, so that all replicas make the same steps in the same
order.

Applies the steps and states that primaries send to the replicas on this server.

A step is recorded in the ledger before it is confirmed to the primary. A slice is changed only
under its lock.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
import torch

from polyrhythm.core.events import SliceSeeded, StateAdopted, StepCopied
from polyrhythm.core.machine import Event
from polyrhythm.core.server import ledger as ledger_events
from polyrhythm.core.server.ledger import Ledger
from polyrhythm.errors import LinkError
from polyrhythm.io.link import Sendable
from polyrhythm.io.segments import Piece, piece_for_many
from polyrhythm.runtime.server.primary import Primary, check_size
from polyrhythm.runtime.server.replica_memory import PARAMETERS, ReplicaMemory, SliceState
from polyrhythm.runtime.server.slots import SliceLocks
from polyrhythm.tensors.dtypes import DTYPES, tensor_over
from polyrhythm.tensors.updater import Named
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    Fetch,
    Message,
    Route,
    Row,
    Seed,
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


Put = Callable[[Event], None]
Told = TypeVar("Told", bound=Event)


class ReplicaApply:
    def __init__(
        self,
        server: int,
        replicas: ReplicaMemory,
        ledger: Ledger,
        ledger_lock: threading.Lock,
        locks: SliceLocks,
        put: Put,
    ) -> None:
        """`put` is called with every event, under the ledger's lock."""
        self.replicas = replicas
        self._locks = locks
        self._server = server
        self._ledger = ledger
        self._ledger_lock = ledger_lock
        self._put = put
        self.incomplete: dict[tuple[int, int, int], SliceState] = {}
        """The tensors of incomplete states that have arrived so far, by primary, routing epoch and
        slice."""
        self._incomplete_lock = threading.Lock()

    def seed(self, message: Seed, data: memoryview) -> SliceSeeded:
        check_size(data, message.slice, self.replicas.nbytes(message.slice))
        with self._locks.of(message.slice):
            self.replicas.seed(message.slice, tensor_over(data, self.replicas.wire(message.slice)))
        return SliceSeeded(message.slice, message.routing)

    def step(self, message: Copy, data: memoryview | None) -> StepCopied | None:
        """Make a step that a primary has made. Returns an event when all replicas of that primary's
        slices on this server have made the step."""
        with self._locks.of(message.slice):
            with self._ledger_lock:
                if not self._ledger.accepts(message.server, message.slice):
                    # ignore the step: its sender is not the primary of this slice, or the slice's
                    # state has not arrived yet
                    return None
                new = self._ledger.may_copy(message.server, message.stamp)
            if new:
                if data is not None:
                    check_size(data, message.slice, self.replicas.step_nbytes(message))
                self.replicas.step(message, data)
            with self._ledger_lock:
                if new:
                    self._ledger.copied(message.stamp, message.rows)
                return self._said(ledger_events.copied(self._ledger, message))

    def fetch(self, slices: Sequence[int], routing: int) -> Fetch:
        with self._ledger_lock:
            return ledger_events.fetch(self._ledger, self._server, slices, routing)

    def adopt(self, message: State, data: memoryview | None) -> StateAdopted | None:
        """Take one tensor of a slice's state, which a primary has sent. Returns an event when all
        slices that were fetched from this primary are complete. *A state is read and kept only if
        its sender is the slice's primary and if this server asked the sender for it under the
        current routes.*"""
        primary, slice_ = message.server, message.slice
        with self._locks.of(slice_):
            with self._ledger_lock:
                wanted = self._ledger.awaits(primary, slice_, message.routing)
            if not wanted:
                if message.part + 1 < message.parts:
                    return None
            elif data is not None:
                state = self._keep_part(message, data)
                if state is None:
                    return None
                self.replicas.adopt(slice_, state)
            with self._ledger_lock:
                if wanted:
                    self._ledger.adopt(message.stamp, message.rows)
                return self._said(ledger_events.adopted(self._ledger, message))

    def _keep_part(self, message: State, data: memoryview) -> SliceState | None:
        """Keep one tensor until the other tensors of the state have arrived. Returns the whole
        state if this was the last one."""
        slice_ = message.slice
        whole = (message.server, message.routing, slice_)
        tensor = self.replicas.checked(message, data).clone()
        with self._incomplete_lock:
            if whole not in self.incomplete:
                self._drop_older(slice_, message.routing)
            state = self.incomplete.setdefault(whole, {})
            state[message.name] = tensor
            if len(state) < message.parts:
                return None
            del self.incomplete[whole]
        if PARAMETERS not in state or len(state) > message.parts:
            raise LinkError(f"the peer sent a state of slice {slice_} that is not valid")
        return state

    def forget(self, primary: int) -> None:
        """Drop the incomplete states of this primary: the link to this primary has ended, so the
        missing tensors will not arrive."""
        with self._incomplete_lock:
            for key in [key for key in self.incomplete if key[0] == primary]:
                del self.incomplete[key]

    def _drop_older(self, slice_: int, routing: int) -> None:
        """Drop incomplete states of this slice from earlier routes. Their primary may have died
        while it sent them."""
        for key in [k for k in self.incomplete if k[2] == slice_ and k[1] < routing]:
            del self.incomplete[key]

    def _said(self, event: Told | None) -> Told | None:
        if event is not None:
            self._put(event)
        return event

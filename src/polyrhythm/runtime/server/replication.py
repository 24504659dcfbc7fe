"""Sends steps and states from a primary to the replicas of its slices, and applies those that other
primaries send to the replicas on this server. `core/server/slices.py` decides what is sent to whom,
and what is applied.

A step is sent under the lock of its slice, so that all replicas make the same steps in the same
order. A slice is judged, changed and recorded while its lock is held.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
import torch

from polyrhythm.core.events import StateAdopted, StepCopied
from polyrhythm.core.machine import Event
from polyrhythm.core.server.slices import OnArrivalSlices, RoundsSlices, Verdict
from polyrhythm.errors import LinkError
from polyrhythm.io.link import Sendable
from polyrhythm.io.segments import Piece, piece_for_many
from polyrhythm.runtime.server.primary import Primary, check_size
from polyrhythm.runtime.server.replica_memory import ReplicaMemory
from polyrhythm.runtime.server.slots import SliceLocks
from polyrhythm.runtime.slice_state import (
    PARAMETERS,
    SliceState,
    parts_of_state,
)
from polyrhythm.tensors.dtypes import tensor_over
from polyrhythm.tensors.updater import Named
from polyrhythm.wire.messages import (
    Copy,
    Fetch,
    Message,
    Row,
    SliceStep,
    Stamp,
    State,
)

Tell = Callable[[int, Message, Sequence[Sendable]], None]


Rules = RoundsSlices | OnArrivalSlices


class ReplicaSender:
    def __init__(self, rules: Rules, rules_lock: threading.Lock, tell: Tell) -> None:
        """`tell` sends a message to another server."""
        self._rules = rules
        self._rules_lock = rules_lock
        self._tell = tell

    def fold_too(self, slice_: int, step: SliceStep, piece: Piece, *, shared: bool) -> None:
        """With rounds: send the step that this server is about to make, and the aggregate, to every
        replica of the slice. `shared`: replicas may read the aggregate in place until they have
        confirmed the step."""
        with self._rules_lock:
            copy, copy_targets = self._rules.copy_of_fold(slice_, step)
            learners = self._rules.held(slice_).route.learners
        apart: Piece | None = None
        for peer in copy_targets:
            if not step.weight:
                self._tell(peer, copy, ())
            # Send a learner a copy, because the primary reuses the aggregate without waiting for
            # learners.
            elif peer in learners or not shared:
                apart = apart or piece_for_many(memoryview(bytes(piece.memory)))
                self._tell(peer, copy, (apart,))
            else:
                self._tell(peer, copy, (piece,))

    def fold_rows(
        self, slice_: int, step: SliceStep, live: tuple[Row, ...], named: Sequence[Named]
    ) -> None:
        """Kind statistics: send the contributions that the fold names, and the rows of its version,
        to every replica of the slice. Like the primary, replicas keep the single rows and not their
        sum."""
        differences = tuple(row for row, _ in named)
        with self._rules_lock:
            copy, copy_targets = self._rules.copy_of_fold(slice_, step, live, differences)
        payload: tuple[Sendable, ...] = ()
        if named and copy_targets:
            values = torch.cat([value for _, value in named]).view(torch.uint8)
            payload = (piece_for_many(memoryview(bytes(values.numpy()))),)
        for peer in copy_targets:
            self._tell(peer, copy, payload)

    def forward(self, copy: Copy, copy_targets: Sequence[int], data: memoryview) -> memoryview:
        """Without rounds: send the step that folds a contribution to every replica. Returns a copy
        of `data`. This server must make its own step from the copy: the worker may overwrite
        `data`, and the primary would then differ from its replicas."""
        payload = memoryview(bytearray(data))
        parts = (piece_for_many(payload),) if len(payload) else ()
        for peer in copy_targets:
            self._tell(peer, copy, parts)
        return payload

    def teach(self, to: int, held: Stamp, slices: int, primary: Primary, routing: int) -> None:
        """Send the state of a slice to the server `to`, which from now on also gets every later
        step of the slice. The tensors are left out if the stamp `held` shows that `to` already has
        an equal copy. `slices`: how many slices `to` asked for."""
        with self._rules_lock:
            head = self._rules.teach(to, held, slices, routing)
        parts = primary.version_of(held.slice) if head.parts else {}
        for message, payload in _state_frames(head, parts):
            self._tell(to, message, payload)


def _state_frames(head: State, parts: SliceState) -> Iterator[tuple[State, Sequence[memoryview]]]:
    """A frame for each tensor of the state, or one frame without payload if there are no
    tensors."""
    if not parts:
        yield head, ()
    for fields, data in parts_of_state(parts):
        yield msgspec.structs.replace(head, **fields), (data,)


Put = Callable[[Event], None]
Told = TypeVar("Told", bound=Event)


class ReplicaApply:
    def __init__(
        self,
        replicas: ReplicaMemory,
        rules: Rules,
        rules_lock: threading.Lock,
        locks: SliceLocks,
        put: Put,
    ) -> None:
        """`put` is called with every event, under the lock of the rules."""
        self.replicas = replicas
        self._locks = locks
        self._rules = rules
        self._rules_lock = rules_lock
        self._put = put
        self.incomplete: dict[tuple[int, int, int], SliceState] = {}
        """The tensors of incomplete states, by primary, routing epoch and slice."""
        self._incomplete_lock = threading.Lock()

    def seed(self, slice_: int, data: memoryview) -> None:
        """Store the initial parameters of a slice, whose lock the caller holds."""
        check_size(data, slice_, self.replicas.nbytes(slice_))
        self.replicas.seed(slice_, tensor_over(data, self.replicas.wire(slice_)))

    def step(self, message: Copy, data: memoryview | None) -> StepCopied | None:
        """Make the same step as the primary. Returns an event when all replicas of that primary's
        slices on this server have made it."""
        with self._locks.of(message.slice):
            with self._rules_lock:
                verdict = self._rules.judge_step(message)
            if verdict is Verdict.NEW:
                if data is not None:
                    check_size(data, message.slice, self.replicas.step_nbytes(message))
                self.replicas.step(message, data)
            with self._rules_lock:
                return self._said(self._rules.on_copied(message, verdict))

    def fetch(self, slices: Sequence[int], routing: int) -> Fetch:
        with self._rules_lock:
            return self._rules.fetch(slices, routing)

    def adopt(self, message: State, data: memoryview | None) -> StateAdopted | None:
        """Receive one tensor of a slice's state from a primary. Returns an event when all slices
        that were fetched from this primary are complete. *A state is read and kept only if its
        sender is the slice's primary and this server has requested it under the current routes.*"""
        slice_ = message.slice
        with self._locks.of(slice_):
            with self._rules_lock:
                verdict = self._rules.judge_state(message)
            if verdict is not Verdict.NEW:
                if message.part + 1 < message.parts:
                    return None
            elif data is not None:
                state = self._keep_part(message, data)
                if state is None:
                    return None
                self.replicas.adopt(slice_, state)
            with self._rules_lock:
                return self._said(self._rules.on_adopted(message, verdict))

    def _keep_part(self, message: State, data: memoryview) -> SliceState | None:
        """Keep one tensor until the rest of the state has arrived. Returns the whole state with the
        last tensor."""
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
        """Drop the incomplete states of this primary: its link has ended, so the missing tensors
        will not arrive."""
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

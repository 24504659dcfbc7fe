"""A server's copies of others' slices follow their primaries: step after step, or from a state.

What is made here is in the ledger before anybody hears of it. The lock is held by whoever changes
the copies, and by a change of routes.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from polyrhythm.core.events import SliceSeeded, StateAdopted, StepCopied
from polyrhythm.core.machine import Event
from polyrhythm.core.server import ledger_events
from polyrhythm.core.server.ledger import Ledger
from polyrhythm.errors import LinkError
from polyrhythm.runtime.server.primary import check_size
from polyrhythm.runtime.server.replica_memory import PARAMETERS, ReplicaMemory, SliceState
from polyrhythm.tensors.dtypes import tensor_over
from polyrhythm.wire.messages import Copy, Fetch, Seed, State

Put = Callable[[Event], None]
Told = TypeVar("Told", bound=Event)


class ReplicaApply:
    def __init__(
        self,
        server: int,
        copies: ReplicaMemory,
        ledger: Ledger,
        ledger_lock: threading.Lock,
        put: Put,
    ) -> None:
        """`put` is handed what happened, under the lock under which it did."""
        self.copies = copies
        self.lock = threading.Lock()
        self._server = server
        self._ledger = ledger
        self._ledger_lock = ledger_lock
        self._put = put
        self.half_told: dict[tuple[int, int, int], SliceState] = {}
        """Per primary, epoch and slice, what has come of a state."""

    def seed(self, message: Seed, data: memoryview) -> SliceSeeded:
        check_size(data, message.slice, self.copies.nbytes(message.slice))
        with self.lock:
            self.copies.seed(message.slice, tensor_over(data, self.copies.wire(message.slice)))
        return SliceSeeded(message.slice, message.routing)

    def step(self, message: Copy, data: memoryview | None) -> StepCopied | None:
        """Make a step that a primary made; an event once that is made in all that is copied."""
        with self.lock:
            with self._ledger_lock:
                if not self._ledger.accepts(message.server, message.slice):
                    return None  # it is not the primary, or not yet copied: it does not count
                new = self._ledger.may_copy(message.server, message.stamp)
            if new:
                self.copies.step(message, data)
            with self._ledger_lock:
                if new:
                    self._ledger.copied(message.stamp, message.rows)
                event = ledger_events.copied(self._ledger, message)
            return self._said(event)

    def fetch(self, slices: Sequence[int], routing: int) -> Fetch:
        with self._ledger_lock:
            return ledger_events.fetch(self._ledger, self._server, slices, routing)

    def adopt(self, message: State, data: memoryview | None) -> StateAdopted | None:
        """Take one tensor of a slice's state; an event once all that is copied from its primary is
        here. *Nothing of a state is looked at, or kept, unless its sender is the slice's primary and
        was asked for it by the routes that hold now.*"""
        primary, slice_ = message.server, message.slice
        with self.lock:
            with self._ledger_lock:
                awaited = self._ledger.awaits(primary, slice_, message.routing)
            if not awaited:
                if message.part + 1 < message.parts:
                    return None
            elif data is not None:
                if not self._keep_part(message, data):
                    return None
                state = self.half_told.pop((primary, message.routing, slice_))
                self.copies.adopt(slice_, state)
            with self._ledger_lock:
                if awaited:
                    self._ledger.adopt(message.stamp, message.rows)
                event = ledger_events.adopted(self._ledger, message)
            return self._said(event)

    def _keep_part(self, message: State, data: memoryview) -> bool:
        """Keep one tensor until the others are here; True if this was the last."""
        slice_ = message.slice
        whole = (message.server, message.routing, slice_)
        tensor = self.copies.checked(message, data)
        if whole not in self.half_told:
            self._drop_older(slice_, message.routing)
        state = self.half_told.setdefault(whole, {})
        state[message.name] = tensor.clone()
        if len(state) < message.parts:
            return False
        if PARAMETERS not in state or len(state) > message.parts:
            del self.half_told[whole]
            raise LinkError(f"the peer sent a state of slice {slice_} that is not one")
        return True

    def forget(self, primary: int) -> None:
        """Its link has ended: what has come of states is of no use."""
        with self.lock:
            for key in [key for key in self.half_told if key[0] == primary]:
                del self.half_told[key]

    def _drop_older(self, slice_: int, routing: int) -> None:
        """Who began to send the slice by older routes may have died in the middle of it."""
        for key in [k for k in self.half_told if k[2] == slice_ and k[1] < routing]:
            del self.half_told[key]

    def _said(self, event: Told | None) -> Told | None:
        if event is not None:
            self._put(event)
        return event

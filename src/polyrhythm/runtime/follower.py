"""A server's copies of others' slices follow their primaries: step after step, or from a state.

What is made here is in the ledger before anybody hears of it. The lock is held by whoever changes
the copies, and by a change of routes.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from polyrhythm.core import statements
from polyrhythm.core.events import SliceSeeded, StateAdopted, StepCopied
from polyrhythm.core.ledger import Ledger
from polyrhythm.core.machine import Event
from polyrhythm.runtime.copies import Copies, SliceState
from polyrhythm.runtime.primary import check_size
from polyrhythm.tensors.dtypes import DTYPES, tensor_over
from polyrhythm.wire.messages import Copy, Fetch, Seed, State

Put = Callable[[Event], None]
Told = TypeVar("Told", bound=Event)


class Follower:
    def __init__(
        self,
        server: int,
        copies: Copies,
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
                if not self._ledger.heeds(message.server, message.slice):
                    return None  # it is not the primary, or not yet copied: it does not count
                new = self._ledger.may_copy(message.server, message.stamp)
            if new:
                self.copies.step(message, data)
            with self._ledger_lock:
                if new:
                    self._ledger.copied(message.stamp, message.rows)
                event = statements.copied(self._ledger, message)
            return self._said(event)

    def fetch(self, slices: Sequence[int], routing: int) -> Fetch:
        with self._ledger_lock:
            return statements.fetch(self._ledger, self._server, slices, routing)

    def adopt(self, message: State, data: memoryview | None) -> StateAdopted | None:
        """Take one tensor of a slice's state, unless routes have changed since it was asked for; an
        event once all that is copied from its primary is."""
        primary, slice_ = message.server, message.slice
        with self.lock:
            whole = (primary, message.routing, slice_)
            if data is not None:
                if whole not in self.half_told:
                    self._drop_older(slice_, message.routing)
                state = self.half_told.setdefault(whole, {})
                tensor = tensor_over(data, DTYPES[message.dtype]).clone()
                state[message.name] = tensor.reshape(message.shape)
                if len(state) < message.parts:
                    return None
            state = self.half_told.pop(whole, {})
            with self._ledger_lock:  # it may have been asked for under routes that are no more
                awaited = self._ledger.awaits(primary, slice_, message.routing)
            if awaited and state:
                self.copies.adopt(slice_, state)
            with self._ledger_lock:
                if awaited:
                    self._ledger.adopt(message.stamp, message.rows)
                event = statements.adopted(self._ledger, message)
            return self._said(event)

    def _drop_older(self, slice_: int, routing: int) -> None:
        """Who began to send the slice by older routes may have died in the middle of it."""
        for key in [k for k in self.half_told if k[2] == slice_ and k[1] < routing]:
            del self.half_told[key]

    def _said(self, event: Told | None) -> Told | None:
        if event is not None:
            self._put(event)
        return event

"""Applies the steps and states that primaries send to the replicas on this server.

A step is recorded in the ledger before it is confirmed to the primary. A slice is changed only
under its lock.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from polyrhythm.core.events import SliceSeeded, StateAdopted, StepCopied
from polyrhythm.core.machine import Event
from polyrhythm.core.server import ledger as ledger_events
from polyrhythm.core.server.ledger import Ledger
from polyrhythm.errors import LinkError
from polyrhythm.runtime.server.locks import SliceLocks
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

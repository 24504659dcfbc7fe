"""The state of the user's code in the lead's process: this process receives the state from a worker
for a cut, and sends it to all workers that ask for it when a job resumes.

*A member that was not asked for its state cannot make this process allocate memory. The member that
was asked cannot send more than the machine allows.*
"""

import threading
from collections.abc import Callable
from typing import Any

from polyrhythm.core import effects as fx
from polyrhythm.core.model import parts_of
from polyrhythm.core.names import worker_name
from polyrhythm.core.values import plain
from polyrhythm.errors import LinkError, PolyrhythmError
from polyrhythm.io.link import Link
from polyrhythm.store.checkpoints import load, read_kept
from polyrhythm.store.objects import open_store
from polyrhythm.wire import messages as m


class KeptStates:
    def __init__(self, job: m.JobSpec, to: Callable[[str], Link | None]) -> None:
        """`to(name)` returns the link to the peer of that name."""
        self._job = job
        self._to = to
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._expected = fx.ExpectKept()
        self._data = bytearray()
        self._restored: memoryview | None = None

    # -- for a cut -----------------------------------------------------------------------------

    def expect(self, effect: fx.ExpectKept) -> None:
        with self._lock:
            self._expected, self._data = effect, bytearray()

    def take(self, message: m.Kept, data: memoryview) -> bool:
        """Take a part of a state. Returns False if this process expects no state, or no longer
        expects this one."""
        with self._lock:
            expected = self._expected
            wanted = (expected.number, expected.worker, expected.incarnation)
            if wanted != (message.number, message.worker, message.incarnation):
                return False
            end = message.offset + message.part
            if message.nbytes > expected.most_nbytes:
                raise LinkError(
                    f"the peer sent a state of {message.nbytes} bytes, which is too large"
                )
            if (
                message.offset != len(self._data)
                or end > message.nbytes
                or len(data) != message.part
            ):
                raise LinkError("the peer sent the parts of a state out of order")
            self._data += data
            return True

    def state(self, number: int) -> memoryview:
        """The state for this cut. It is empty if the cut was given up meanwhile."""
        with self._lock:
            return memoryview(self._data if number == self._expected.number else b"")

    # -- when the job resumes ------------------------------------------------------------------

    def send(self, effect: fx.SendKept) -> None:
        """Read the state from the store, on a separate thread, and send it to this worker."""
        threading.Thread(target=self._send, args=(effect,), name="kept", daemon=True).start()

    def _send(self, effect: fx.SendKept) -> None:
        link = self._to(worker_name(effect.worker))
        if link is None or link.incarnation != effect.incarnation:
            return  # the worker that asked for the state has left
        identity: dict[str, Any] = {"worker": effect.worker, "incarnation": effect.incarnation}
        try:
            data = self._read()
        except PolyrhythmError as error:
            link.send(m.Restored(**identity, fault=plain(str(error))))
            return
        for first, end in parts_of(len(data)):
            part = m.Restored(**identity, nbytes=len(data), offset=first)
            link.send(part, (data[first:end],))

    def _read(self) -> memoryview:
        """The state of the checkpoint. It stays in memory for workers that join later, because the
        checkpoint may be deleted."""
        with self._reading:
            if self._restored is None:
                store = open_store(self._job.resume)
                self._restored = read_kept(store, load(store, self._job.resume_number))
            return self._restored

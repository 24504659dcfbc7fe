"""Carries the state that the user's code keeps (`worker.keep`): to the lead for a cut, and from the
lead when the job resumes.

*The thread of the user's loop copies the state, when no code of the user changes it: at the end of
an iteration, or while the loop waits in `step()`.* The machine says which of these two moments
belongs to the cut.
"""

from collections.abc import Callable
from typing import Any

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.model import most_nbytes, parts_of
from polyrhythm.core.names import LEAD
from polyrhythm.core.values import plain
from polyrhythm.errors import LinkError, StoreError, UsageError
from polyrhythm.io.link import Payload
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.store.tensor_file import Encoded
from polyrhythm.wire import messages as m


class StateCarrier:
    """`post` gives the machine an event. `wait` lets the user's loop wait until a condition is
    true."""

    def __init__(
        self,
        links: WorkerLinks,
        post: Callable[[Any], None],
        wait: Callable[[Callable[[], bool]], None],
    ) -> None:
        self._links = links
        self._post = post
        self._wait = wait
        self.spec: m.ModelSpec | None = None
        """The user's model; None until it is attached."""
        self._asked: fx.CaptureState | None = None
        self._arrived = bytearray()
        self.capture: Callable[[], Encoded] | None = None
        """Returns a copy of the state; None until the user's code has called `worker.keep`."""
        self.restored: memoryview | None = None
        """The state of the checkpoint, once all of it has arrived; empty if there is none."""
        self.fault = ""
        """Why the state of the checkpoint cannot be read."""

    # -- for the user's loop -------------------------------------------------------------------

    def keep(self, capture: Callable[[], Encoded]) -> None:
        """When the lead asks this worker for a state, send the one that `capture` returns."""
        self.capture = capture
        self._post(ev.StateKept())

    def restore(self, capture: Callable[[], Encoded]) -> memoryview:
        """Implements `keep`. Waits for the state in the checkpoint from which the job resumes."""
        self.capture = capture
        self._post(ev.StateKept(restore=True))
        self._wait(lambda: self.restored is not None)
        return self.take_restored()

    def end_iteration(self) -> None:
        """Send the state if the lead has asked for it. Called when an iteration of the user's loop
        has ended."""
        self.send_if_asked()

    # -- for a cut -----------------------------------------------------------------------------

    def ask(self, effect: fx.CaptureState) -> None:
        self._asked = effect

    def send_if_asked(self, *, waiting: bool = False) -> None:
        """Copy and send the state if the machine has ordered it. `waiting`: the user's loop waits
        in `step()`; otherwise an iteration has ended."""
        asked, capture, spec = self._asked, self.capture, self.spec
        if asked is None or capture is None or spec is None or (waiting and not asked.at_once):
            return
        self._asked = None
        link = self._links.to(LEAD)
        if link is None:
            return
        identity: dict[str, Any] = {"worker": asked.worker, "incarnation": asked.incarnation}
        try:
            state = capture()
            if state.nbytes > (most := most_nbytes(spec)):
                raise UsageError(f"the state has {state.nbytes} bytes, and at most {most} are kept")
        except UsageError as error:
            fault = plain(str(error))
            link.send(m.Kept(**identity, number=asked.number, fault=fault))
            return
        data = memoryview(b"".join(state.buffers))
        for first, end in parts_of(len(data)):
            part = m.Kept(
                **identity,
                number=asked.number,
                nbytes=len(data),
                offset=first,
                part=end - first,
            )
            link.send(part, (data[first:end],))

    # -- when the job resumes ------------------------------------------------------------------

    def take(self, message: m.Restored, payload: Payload | None) -> bool:
        """Receive a part of the state of the checkpoint. Returns whether the state is complete.
        Raises LinkError if parts are out of order."""
        if not message.offset:
            self._arrived = bytearray()
        data = memoryview(b"") if payload is None else payload.view()
        if message.offset != len(self._arrived) or message.offset + len(data) > message.nbytes:
            raise LinkError("the parts of a kept state came out of order")
        self._arrived += data
        self.fault = message.fault
        if len(self._arrived) < message.nbytes and not message.fault:
            return False
        self.restored, self._arrived = memoryview(bytes(self._arrived)), bytearray()
        return True

    def take_restored(self) -> memoryview:
        """The state of the checkpoint, which must have arrived. It is returned only once."""
        assert self.restored is not None
        if self.fault:
            raise StoreError(f"the state of worker.keep cannot be read: {self.fault}")
        data, self.restored = self.restored, memoryview(b"")
        return data

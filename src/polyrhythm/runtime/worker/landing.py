"""Writes slices of a new version into a worker's parameters. They are received directly into their
final place, or copied there from a server's memory.

The worker's machine says which version it expects. Slices of other versions are kept for later or
skipped, as the machine orders. Slices may arrive on several threads. *The thread that reads the
links also writes the kept slices:* the machine may run on another thread, and a link may be
receiving into the same place at that moment.

*A slice that begins to arrive may become outdated: if it gets another primary, a later version can
arrive over another link before the slice is complete. Then the rest of its bytes is received into
other memory.*
"""

import threading
from collections.abc import Callable, Collection, Sequence

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Event
from polyrhythm.core.placement.slices import Layout, Slice, pack
from polyrhythm.errors import FrameError
from polyrhythm.io.link import Link, Payload
from polyrhythm.runtime.worker.own_steps import OwnSteps
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire import messages as m


class Landing:
    def __init__(
        self, put: Callable[[Event], None], divert: Callable[[m.Parameters], None]
    ) -> None:
        """`put` receives an event for each slice that is in its place or was skipped. `divert`:
        make a link receive the rest of an incomplete slice into other memory."""
        self.in_place: memoryview | None = None
        """The server's memory of the current version, if the worker uses it without a copy."""
        self.count = 0
        """How many slices have been written to the parameters, including those that are being
        written now."""
        self._put = put
        self._divert = divert
        self._received: dict[int, m.Parameters] = {}
        """By their `id`, the messages whose bytes are received directly into their final place."""
        self._model: FlatModel | OwnSteps | None = None
        self._own: OwnSteps | None = None
        self._layout: Layout | None = None
        self._reads_in_place = False
        self._expected: int | None = None
        self._keeps: int | None = None
        self._kept: list[tuple[m.Parameters, memoryview | None]] = []
        self._keeping = threading.Lock()
        self._slices_of: dict[int, tuple[int, ...]] = {}
        self._early_since: dict[int, int] = {}
        self._packed: dict[tuple[int, ...], list[tuple[Slice, int, int]]] = {}
        """Per set of slices that a server sends in one piece of memory: each slice with its offset and
        size in this piece."""

    def attach(
        self, model: FlatModel, layout: Layout, own: OwnSteps | None, *, in_place: bool
    ) -> None:
        """`own`: with `--optimizer-on workers`, the object into which sums of gradients are
        received."""
        self._model, self._own = own or model, own
        self._layout, self._reads_in_place = layout, in_place

    def follow(self, routes: Sequence[m.Route], early_since: Sequence[int] = ()) -> None:
        """Apply new routes: each server sends the slices of which it is the primary. `early_since`: per
        slice, the routing epoch since which sums count that are sent before a fold."""
        assert self._layout is not None
        with self._keeping:
            self._early_since = dict(enumerate(early_since))
            self._slices_of = {}
            for slice_ in self._layout.slices:
                server = routes[slice_.id].primary
                self._slices_of[server] = (*self._slices_of.get(server, ()), slice_.id)

    def expect(self, effect: fx.Expect) -> None:
        """Any thread may call this. Slices that were kept are written by `land_kept`."""
        with self._keeping:
            self._expected, self._keeps = effect.round, effect.keep
            skipped = self._take_kept(
                lambda message: not (self._is_expected(message) or self._is_for_later(message))
            )
        for message, _ in skipped:
            self._put(builders.skipped(message))

    def land_kept(self) -> bool:
        """Write the slices that were kept and are expected now. Only the thread that reads the links may
        call this. Returns whether there were any."""
        if not self._kept:
            return False
        with self._keeping:
            due = self._take_kept(self._is_expected)
        for message, view in due:
            self._land(message, view)
        return bool(due)

    def _take_kept(
        self, wanted: Callable[[m.Parameters], bool]
    ) -> list[tuple[m.Parameters, memoryview | None]]:
        taken = [each for each in self._kept if wanted(each[0])]
        self._kept = [each for each in self._kept if not wanted(each[0])]
        return taken

    def _is_expected(self, message: m.Parameters) -> bool:
        return self._expected is not None and message.round >= self._expected

    def _is_for_later(self, message: m.Parameters) -> bool:
        return message.round == self._keeps

    def place_of(self, message: m.Message, nbytes: int) -> memoryview | None:
        """The memory into which the bytes of a slice are received: its final place, if the slice is
        expected and has the right size; otherwise None."""
        if not isinstance(message, m.Parameters) or not self._is_expected(message):
            return None
        if message.parts is not None or message.early:
            return None
        if self._model is None or self._layout is None:
            return None
        if not 0 <= message.slice < len(self._layout.slices):
            return None
        memory = self._model.memory_of(self._layout.slices[message.slice])
        if memory is None or len(memory) != nbytes:
            return None
        self._divert_late((message.slice,))
        self.count += 1
        self._received[id(message)] = message
        return memory

    def _divert_late(self, slices: Collection[int]) -> None:
        """Note that these slices arrive now. Bytes of earlier messages must not be written over
        them."""
        for late in [each for each in self._received.values() if each.slice in slices]:
            del self._received[id(late)]
            self._divert(late)

    def take(self, link: Link, message: m.Parameters, payload: Payload | None) -> None:
        # Whether the bytes are in place was decided when they began to arrive. The message cannot
        # tell: another thread may since have run the machine.
        placed = self._received.pop(id(message), None) is not None
        with self._keeping:
            expected = self._is_expected(message)
            keeps = not expected and self._is_for_later(message)
            if keeps:
                view = None if payload is None else payload.view()
                if view is not None and not link.kind.has_payload_references:
                    view = memoryview(bytes(view))
                self._kept.append((message, view))
        if not expected:
            if not keeps:
                self._put(builders.skipped(message))
            return
        if self._model is None or self._layout is None:
            raise FrameError("parameters came before the model was attached")
        if payload is None:
            self._land(message, None)
            return
        if placed:
            self._landed(message)
        elif message.early:
            self._land_early(message, payload.view())
        else:
            self._land(message, payload.view())
        payload.done()

    def _land(self, message: m.Parameters, view: memoryview | None) -> None:
        """Copy a slice, or all slices of a server, from `view` to their places."""
        assert self._model is not None and self._layout is not None
        self.count += 1
        if message.slice != m.EVERY_SLICE and not 0 <= message.slice < len(self._layout.slices):
            raise FrameError(f"the peer sent slice {message.slice}, which does not exist")
        if self._received:
            every = message.holds or self._slices_of.get(message.server, ())
            self._divert_late(every if message.slice == m.EVERY_SLICE else (message.slice,))
        if message.parts is not None:
            slice_ = self._layout.slices[message.slice]
            self._model.land_parts(slice_, message.parts, view or memoryview(b""))
        elif view is None:
            raise FrameError("parameters came without their bytes")
        elif message.slice == m.EVERY_SLICE:
            self._take_all(self._model, message, view)
        else:
            self._model.land(self._layout.slices[message.slice], view)
        self._landed(message)

    def _land_early(self, message: m.Parameters, view: memoryview) -> None:
        """Copy a sum that was sent before the fold was ordered, unless its server was lost since.
        Then the sum of the new primary may be in place already."""
        with self._keeping:
            since = self._early_since.get(message.slice)
            if since is not None and since <= message.routing:
                self._land(message, view)

    def _landed(self, message: m.Parameters) -> None:
        if self._own is not None:
            every = message.holds or self._slices_of.get(message.server, ())
            self._own.on_landed(
                message, every if message.slice == m.EVERY_SLICE else (message.slice,)
            )
        self._put(builders.landed(message))

    def take_given(self, message: m.Given, payload: Payload | None) -> None:
        """Receive a tensor of the parameters or of the state, which this worker has requested."""
        if self._own is None or payload is None:
            raise FrameError("a state came that this worker has not asked for")
        expected = self._expected is not None and message.round >= self._expected
        if expected and self._own.take(message, payload.view()):
            self.count += 1
            self._put(builders.given(message))

    def _take_all(
        self, model: FlatModel | OwnSteps, message: m.Parameters, view: memoryview
    ) -> None:
        """Copy all slices of a server from its memory (`view`). If the job reads in place, only
        remember the memory."""
        if self._reads_in_place:
            self.in_place = view
            return
        for slice_, offset, nbytes in self._pack(message.server, message.holds):
            model.land(slice_, view[offset : offset + nbytes])

    def _pack(self, server: int, holds: tuple[int, ...]) -> list[tuple[Slice, int, int]]:
        """The slices that a server sends in one piece of memory, with their offsets and sizes in
        this piece."""
        assert self._model is not None and self._layout is not None
        ids = holds or self._slices_of[server]
        packed = self._packed.get(ids)
        if packed is None:
            held = [self._layout.slices[id_] for id_ in ids]
            places, _ = pack(held, [self._model.wire_range(s)[1] // s.length for s in held])
            packed = self._packed[ids] = [
                (slice_, offset, nbytes)
                for slice_, (offset, nbytes) in zip(held, places, strict=True)
            ]
        return packed

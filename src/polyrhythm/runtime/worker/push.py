"""Sends slices from a worker to the servers: the slices of contributions, and the initial
parameters.

A contribution is in a push buffer. The worker must not write to this buffer until the servers have
acknowledged the contribution, because they may read it in place.
"""

import itertools
from collections.abc import Collection, Sequence

import torch

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core.kinds import INT8, may_be_quantised, quantised_nbytes, quantised_slices
from polyrhythm.core.names import server_name
from polyrhythm.core.placement.slices import ALIGN, Layout
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.core.worker.pushes import BufferTurns
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.tensors.dtypes import tensor_over
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.quantised import Quantiser
from polyrhythm.tensors.rows import rows_nbytes
from polyrhythm.wire.messages import JobSpec, Route


class _Room:
    """Memory for the quantised slices of one push buffer."""

    def __init__(self, layout: Layout, *, shared: bool) -> None:
        slices = [slice_ for slice_ in layout.slices if may_be_quantised(layout, slice_)]
        sizes = [quantised_nbytes(layout, slice_) for slice_ in slices]
        offsets = list(
            itertools.accumulate((-(-size // ALIGN) * ALIGN for size in sizes), initial=0)
        )
        self.segment = Segment(offsets.pop(), shared=shared)
        self.pieces = {
            slice_.id: self.segment.piece(offset, size)
            for slice_, offset, size in zip(slices, offsets, sizes, strict=True)
        }
        self.tensors = {
            id_: tensor_over(piece.memory, torch.uint8) for id_, piece in self.pieces.items()
        }


class Quantising:
    """Quantises contributions before they are sent (`--push int8`).

    *A quantised slice stays in its memory until the contribution is acknowledged, as the exact
    numbers do. So a slice that is sent again has the same bytes.* A worker that joins again begins
    without residuals: contributions of its former incarnation may not have counted.
    """

    def __init__(self, layout: Layout, job: JobSpec, links: WorkerLinks, *, shared: bool) -> None:
        """`shared`: the memory is in segments that servers can map. This is needed because a
        quantised slice may be sent again over a link that carries references."""
        self._layout = layout
        self._push = job.push
        self._links = links
        self._shared = shared
        self.routes: Sequence[Route] = ()
        self._quantiser = Quantiser(keeps_residuals=not traits_of(job.sync).trains_through)
        self._rooms: dict[int, _Room] = {}
        """Per push buffer, by its number, the memory for its quantised slices."""
        self._incarnation = 0

    def quantise(
        self,
        buffer: int,
        tensors: Sequence[torch.Tensor],
        left_out: Collection[int],
        incarnation: int,
    ) -> dict[int, Piece]:
        """Quantise the contribution in a push buffer. `tensors`: the buffer, as one tensor per
        space. Returns the quantised slices. `left_out`: slices that the contribution does not contain,
        or contains only in part."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._quantiser.forget()
        due = quantised_slices(self._push, self._layout, self.routes, self.by_reference())
        due -= set(left_out)
        if not due:
            return {}
        room = self._rooms.get(buffer)
        if room is None:
            room = self._rooms[buffer] = _Room(self._layout, shared=self._shared)
        for slice_ in self._layout.slices:
            if slice_.id in due:
                numbers = tensors[slice_.space][slice_.offset : slice_.offset + slice_.length]
                self._quantiser.quantise(slice_, numbers, room.tensors[slice_.id])
        return {id_: room.pieces[id_] for id_ in sorted(due)}

    def by_reference(self) -> frozenset[int]:
        """The servers that read this worker's memory. A server without a link is not among them."""
        servers = {route.primary for route in self.routes}
        links = ((server, self._links.to(server_name(server))) for server in servers)
        return frozenset(
            s for s, link in links if link is not None and link.kind.has_payload_references
        )

    def close(self) -> None:
        for room in self._rooms.values():
            room.segment.close()


class PushBuffer:
    """The memory for one contribution, and the pieces of it that are sent as slices."""

    def __init__(self, model: FlatModel, layout: Layout, *, shared: bool) -> None:
        segments: list[Segment] = []

        def allocate(nbytes: int) -> memoryview:
            segments.append(Segment(nbytes, shared=shared))
            return segments[-1].memory

        _, self.tensors = model.push_buffers(allocate)
        self.segments = segments
        self.parts: dict[int, tuple[int, ...]] = {}
        """Per slice of the model's buffers, the numbers of the parts that the contribution
        contains."""
        self.indices: dict[int, int] = {}
        """For each slice of which the contribution contains only rows, the number of these rows
        (see `Contribution.indices`)."""
        self.quantised: dict[int, Piece] = {}
        """The slices that the contribution contains in quantised form."""
        self._layout, self._model = layout, model
        self.pieces: list[Piece] = [
            segments[slice_.space].piece(*model.wire_range(slice_)) for slice_ in layout.slices
        ]

    @property
    def nbytes(self) -> int:
        """The size of the contribution in bytes, without the heads of its frames."""
        pieces = (self.piece(slice_.id) for slice_ in self._layout.slices)
        return sum(piece.nbytes for piece in pieces if piece is not None)

    def piece(self, slice_: int) -> Piece | None:
        """The memory of a slice that is sent; None if the slice is unchanged and nothing is
        sent."""
        if (quantised := self.quantised.get(slice_)) is not None:
            return quantised
        parts, rows = self.parts.get(slice_), self.indices.get(slice_)
        if parts is None and rows is None:
            return self.pieces[slice_]
        known = self._layout.slices[slice_]
        offset, nbytes = self._model.wire_range(known)
        if rows is not None:
            size = rows_nbytes(known, rows, nbytes // known.length)
            return self.segments[known.space].piece(offset, size) if size else None
        if not parts:
            return None
        length = sum(known.parts[part][1] - known.parts[part][0] for part in parts)
        item = nbytes // known.length
        return self.segments[known.space].piece(offset, length * item)


class PushBuffers:
    def __init__(self) -> None:
        self._buffers: list[PushBuffer] = []
        self._turns = BufferTurns()

    def make(self, model: FlatModel, layout: Layout, *, shared: bool) -> None:
        """Make the buffers if they do not exist."""
        if not self._buffers:
            count = BufferTurns.BUFFERS
            self._buffers = [PushBuffer(model, layout, shared=shared) for _ in range(count)]

    def __getitem__(self, number: int) -> PushBuffer:
        return self._buffers[number]

    @property
    def turn(self) -> list[torch.Tensor]:
        """The buffer of the next contribution, as one tensor per space."""
        return self._buffers[self._turns.next].tensors

    @property
    def sent(self) -> list[torch.Tensor]:
        """The buffer of the last contribution, as one tensor per space."""
        return self._buffers[self._turns.last].tensors

    def tensors(self) -> list[list[torch.Tensor]]:
        return [buffer.tensors for buffer in self._buffers]

    def lend(self, parts: dict[int, tuple[int, ...]], indices: dict[int, int] | None = None) -> int:
        """Mark the next buffer as in use by the servers, and return its number. `parts`: per slice
        of the model's buffers, the parts that were changed. `indices`: for each slice of which only
        rows are sent, the number of these rows."""
        number = self._turns.lend()
        self._buffers[number].parts = parts
        self._buffers[number].indices = indices or {}
        return number

    def turn_to_next(self, unacknowledged: int) -> None:
        self._turns.turn(unacknowledged)

    def close(self) -> None:
        for buffer in self._buffers:
            for segment in buffer.segments:
                segment.close()


class Pushing:
    def __init__(self, machine: WorkerMachine, links: WorkerLinks, *, shared: bool) -> None:
        """`shared`: push buffers are segments that servers can map. `machine`: knows this worker's
        number."""
        self.buffers = PushBuffers()
        self._machine = machine
        self._links = links
        self._shared = shared
        self._model: FlatModel | None = None
        self._layout: Layout | None = None
        self._quantising: Quantising | None = None

    def attach(self, model: FlatModel, layout: Layout, job: JobSpec) -> None:
        self._model, self._layout = model, layout
        if job.push == INT8:
            self._quantising = Quantising(layout, job, self._links, shared=self._shared)

    def prepare(self, routes: Sequence[Route]) -> None:
        """Allocate the push buffers for these routes."""
        assert self._model is not None and self._layout is not None
        self.buffers.make(self._model, self._layout, shared=self._shared)
        if self._quantising is not None:
            self._quantising.routes = routes

    @property
    def exact_to(self) -> tuple[str, ...]:
        """With `--push int8`: the servers to which slices are sent exactly, because they read this
        worker's memory."""
        if self._quantising is None:
            return ()
        return tuple(server_name(server) for server in sorted(self._quantising.by_reference()))

    def lend(self) -> tuple[int, int]:
        """Let the servers read the contribution in the next push buffer. Returns the number of the
        buffer, and the size of the contribution in bytes; -1 if it has the size of the model."""
        assert self._model is not None
        number = self.buffers.lend(self._model.changed, self._model.indices)
        buffer = self.buffers[number]
        if self._quantising is None:
            partial = buffer.parts or buffer.indices
            return number, buffer.nbytes if partial else -1
        left_out = {*buffer.parts, *buffer.indices}
        buffer.quantised = self._quantising.quantise(
            number, buffer.tensors, left_out, self._machine.incarnation
        )
        return number, buffer.nbytes

    def seed(self, effect: fx.SeedSlices) -> None:
        assert self._model is not None and self._layout is not None
        link = self._links.to(server_name(effect.server))
        if link is None:
            return
        worker, incarnation = self._machine.worker, self._machine.incarnation
        buffer = self.buffers[0]
        for number in effect.slices:
            slice_ = self._layout.slices[number]
            offset, length = slice_.offset, slice_.length
            buffer.tensors[slice_.space][offset : offset + length].copy_(self._model.seed(slice_))
            seed = builders.seed(effect, worker, incarnation, number)
            link.send(seed, (buffer.pieces[number],), flush=False)
        self._links.touch(link)

    def push(self, effect: fx.PushSlices) -> None:
        link = self._links.to(server_name(effect.server))
        if link is None or self._layout is None:
            return
        worker, incarnation = self._machine.worker, self._machine.incarnation
        buffer = self.buffers[effect.buffer]
        slices = self._layout.slices
        for number in effect.slices:
            group = slices[number].group
            rate = effect.rates[group] if group >= 0 else 0.0
            parts, piece = buffer.parts.get(number), buffer.piece(number)
            indices = buffer.indices.get(number)
            contribution = builders.contribution(
                effect,
                worker,
                incarnation,
                number,
                rate,
                parts,
                indices,
                quantised=number in buffer.quantised,
            )
            link.send(contribution, () if piece is None else (piece,), flush=False)
        self._links.touch(link)

    def close(self) -> None:
        self.buffers.close()
        if self._quantising is not None:
            self._quantising.close()

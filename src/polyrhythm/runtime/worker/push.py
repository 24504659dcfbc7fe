"""Sends slices from a worker to the servers: the slices of contributions, and the initial
parameters.

A contribution is in a push buffer. The worker must not write to this buffer until the servers have
acknowledged the contribution, because they may read it in place.
"""

from collections.abc import Sequence

import torch

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core.kinds import INT8
from polyrhythm.core.names import server_name
from polyrhythm.core.placement.slices import Layout
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.core.worker.pushes import BufferTurns
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.runtime.worker.quantising import Quantising
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.rows import rows_nbytes
from polyrhythm.wire.messages import JobSpec, Route


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
        """Make the buffers, unless they exist."""
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

    def arrange(self, routes: Sequence[Route]) -> None:
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

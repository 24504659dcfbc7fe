"""Quantises contributions before they are sent (`--push int8`).

*A quantised slice stays in its memory until the contribution is acknowledged, as the exact numbers
do. So a slice that is sent again has the same bytes.* A worker that joins again begins without
residuals: contributions of its former incarnation may not have counted.
"""

import itertools
from collections.abc import Collection, Sequence

import torch

from polyrhythm.core.kinds import may_be_quantised, quantised_nbytes, quantised_slices
from polyrhythm.core.names import server_name
from polyrhythm.core.placement.slices import ALIGN, Layout
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.tensors.dtypes import tensor_over
from polyrhythm.tensors.quantised import Quantiser
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
    def __init__(self, layout: Layout, job: JobSpec, links: WorkerLinks, *, shared: bool) -> None:
        """`shared`: the memory is in segments that servers can map, because a quantised slice may
        be sent again over a link that carries references."""
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
        return frozenset(s for s, link in links if link is not None and link.by_reference)

    def close(self) -> None:
        for room in self._rooms.values():
            room.segment.close()

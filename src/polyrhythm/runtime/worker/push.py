"""The push buffers: memory for contributions, which belongs to the servers until they acknowledge."""

from collections import deque

import torch

from polyrhythm.core.placement.slices import Layout
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages import WINDOW

_PUSH_BUFFERS = WINDOW + 1
"""What is unacknowledged belongs to the servers, and one more is filled meanwhile."""


class PushBuffer:
    """Memory for one contribution and its slices, ready to be sent."""

    def __init__(self, model: FlatModel, layout: Layout, *, shared: bool) -> None:
        segments: list[Segment] = []

        def allocate(nbytes: int) -> memoryview:
            segments.append(Segment(nbytes, shared=shared))
            return segments[-1].memory

        _, self.tensors = model.push_buffers(allocate)
        self.segments = segments
        self.parts: dict[int, tuple[int, ...]] = {}
        """Per slice of buffers, the parts of it that the contribution has."""
        self._layout, self._model = layout, model
        self.pieces: list[Piece] = [
            segments[slice_.space].piece(*model.wire_range(slice_)) for slice_ in layout.slices
        ]

    def piece(self, slice_: int) -> Piece | None:
        """What is sent of a slice; None: nothing of it was changed."""
        parts = self.parts.get(slice_)
        if parts is None:
            return self.pieces[slice_]
        if not parts:
            return None
        known = self._layout.slices[slice_]
        offset, nbytes = self._model.wire_range(known)
        length = sum(known.parts[part][1] - known.parts[part][0] for part in parts)
        item = nbytes // known.length
        return self.segments[known.space].piece(offset, length * item)


class PushBuffers:
    def __init__(self) -> None:
        self._buffers: list[PushBuffer] = []
        self._turn = 0
        self._sent = 0
        self._lent: deque[int] = deque(maxlen=WINDOW)

    def make(self, model: FlatModel, layout: Layout, *, shared: bool) -> None:
        """If there are none yet."""
        if not self._buffers:
            self._buffers = [PushBuffer(model, layout, shared=shared) for _ in range(_PUSH_BUFFERS)]

    def __getitem__(self, number: int) -> PushBuffer:
        return self._buffers[number]

    @property
    def turn(self) -> list[torch.Tensor]:
        """To fill for the next contribution, one per space."""
        return self._buffers[self._turn].tensors

    @property
    def sent(self) -> list[torch.Tensor]:
        """The last contribution."""
        return self._buffers[self._sent].tensors

    def tensors(self) -> list[list[torch.Tensor]]:
        return [buffer.tensors for buffer in self._buffers]

    def lend(self, parts: dict[int, tuple[int, ...]]) -> int:
        """The one whose turn it is goes to the servers: its number. `parts`: per slice of buffers,
        those that were changed."""
        self._buffers[self._turn].parts = parts
        self._sent = self._turn
        self._lent.append(self._turn)
        return self._turn

    def turn_to_next(self, unacknowledged: int) -> None:
        """The first two in turn, and the third when a server may still read the one whose turn it
        is; so its memory is only taken by who runs ahead of its acknowledgements."""
        busy = list(self._lent)[-unacknowledged:] if unacknowledged else []
        other: int = 1 - self._turn if self._turn < 2 else 0
        choices: list[int] = [other, *range(_PUSH_BUFFERS)]
        self._turn = next(buffer for buffer in choices if buffer not in busy)

    def close(self) -> None:
        for buffer in self._buffers:
            for segment in buffer.segments:
                segment.close()

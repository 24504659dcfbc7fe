"""How slices leave a worker for the servers: those of a contribution, and the first parameters."""

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core.placement.slices import Layout
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.runtime.worker.push import PushBuffers
from polyrhythm.tensors.flat import FlatModel


class Pushing:
    def __init__(self, machine: WorkerMachine, links: WorkerLinks, *, shared: bool) -> None:
        """`shared`: servers can map the buffers. The machine knows who this worker is."""
        self.buffers = PushBuffers()
        self._machine = machine
        self._links = links
        self._shared = shared
        self._model: FlatModel | None = None
        self._layout: Layout | None = None

    def attach(self, model: FlatModel, layout: Layout) -> None:
        self._model, self._layout = model, layout

    def arrange(self) -> None:
        assert self._model is not None and self._layout is not None
        self.buffers.make(self._model, self._layout, shared=self._shared)

    def seed(self, effect: fx.SeedSlices) -> None:
        assert self._model is not None and self._layout is not None
        link = self._links.to(fx.server_name(effect.server))
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
        link = self._links.to(fx.server_name(effect.server))
        if link is None or self._layout is None:
            return
        worker, incarnation = self._machine.worker, self._machine.incarnation
        buffer = self.buffers[effect.buffer]
        slices = self._layout.slices
        for number in effect.slices:
            group = slices[number].group
            rate = effect.rates[group] if group >= 0 else 0.0
            parts, piece = buffer.parts.get(number), buffer.piece(number)
            contribution = builders.contribution(effect, worker, incarnation, number, rate, parts)
            link.send(contribution, () if piece is None else (piece,), flush=False)
        self._links.touch(link)

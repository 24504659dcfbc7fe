"""Writes the model in virtual time: one disk, which writes one slice after the other at a constant
rate.

This file mirrors `runtime/server/saving.py`, with sizes in place of bytes.
"""

from collections.abc import Callable

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Event
from polyrhythm.sim.clock import Clock
from polyrhythm.wire import messages as m

DISK_NS_PER_BYTE = 2.0
"""The speed of the disk: 500 MB per second."""


class SimModelSaver:
    def __init__(
        self, clock: Clock, size_of: Callable[[int], int], post: Callable[[Event], None]
    ) -> None:
        """`size_of` returns the number of bytes of a slice. `post` hands an event to the lead's
        machine."""
        self._clock = clock
        self._size_of = size_of
        self._post = post
        self._files: dict[int, tuple[str, set[int]]] = {}
        """Per file, its name and the slices that have arrived."""
        self._free_ns = 0

    def create(self, effect: fx.CreateModel) -> None:
        self._files[effect.number] = effect.file, set()

    def take(self, message: m.Collected) -> None:
        _, taken = self._files.get(message.number, ("", {message.slice}))
        if message.slice not in taken:
            taken.add(message.slice)
            stored = ev.SliceStored(message.number, message.slice)
            self._later(self._size_of(message.slice), stored)

    def commit(self, effect: fx.CommitModel) -> None:
        file, taken = self._files.pop(effect.number)
        nbytes = sum(self._size_of(slice_) for slice_ in taken)
        self._later(0, ev.ModelSaved(effect.number, file, nbytes))

    def discard(self, effect: fx.DiscardModel) -> None:
        self._files.pop(effect.number, None)

    def _later(self, nbytes: int, event: Event) -> None:
        self._free_ns = max(self._free_ns, self._clock.now_ns) + int(nbytes * DISK_NS_PER_BYTE)
        self._clock.at(self._free_ns, self._post, event)

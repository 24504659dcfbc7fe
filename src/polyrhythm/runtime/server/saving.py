"""Writes the model to a file in the process of the lead, in a thread of its own.

The thread that brings a slice copies it and goes on, so a slow disk delays no message and no heartbeat.
The lead's machine asks for a few slices at a time (`core/lead/saving.py`), so few copies wait here.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Event
from polyrhythm.core.placement.slices import Layout, lay_out
from polyrhythm.errors import LinkError, StoreError
from polyrhythm.store.model_file import ModelFile
from polyrhythm.wire import messages as m

_Work = Callable[[], None]
_END_S = 5.0
"""How long a process that ends waits for a disk that does not answer."""


class ModelSaver:
    def __init__(
        self,
        folder: Path | None,
        job: m.JobSpec,
        *,
        announce: Callable[[], None],
        post: Callable[[Event], None],
    ) -> None:
        """`folder`: where models are written; without one, no model can be. `announce` is called when a
        file is begun. `post` hands an event to the lead, on the thread of this saver."""
        self._folder = folder
        self._job = job
        self._announce = announce
        self._post = post
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._number = 0
        self._layout: Layout | None = None
        self._taken: set[int] = set()
        """Slices of the present file that have come."""
        self._file: ModelFile | None = None
        """Used by the thread of this saver only."""

    def create(self, effect: fx.CreateModel) -> None:
        self._announce()
        self._layout = lay_out(effect.spec, self._job.servers, self._job.slice_nbytes)
        self._number, self._taken = effect.number, set()
        layout = self._layout
        self._do(lambda: self._create(effect, layout))

    def take(self, message: m.Collected, data: memoryview) -> None:
        """A slice has come. It is copied, because its memory is valid only during this call. Slices of
        another file, and those that came before, are ignored."""
        layout = self._layout
        if layout is None or message.number != self._number or message.slice in self._taken:
            return
        if not 0 <= message.slice < len(layout.slices):
            raise LinkError(f"the peer sent slice {message.slice}, which the model does not have")
        slice_ = layout.slices[message.slice]
        nbytes = slice_.length * layout.spaces[slice_.space].item_nbytes
        if len(data) != nbytes:
            raise LinkError(
                f"the peer sent {len(data)} bytes for slice {message.slice}, which has {nbytes}"
            )
        self._taken.add(message.slice)
        copy = memoryview(bytes(data))
        self._do(lambda: self._write(message.number, message.slice, copy))

    def commit(self, effect: fx.CommitModel) -> None:
        self._do(lambda: self._commit(effect.number))

    def discard(self, effect: fx.DiscardModel) -> None:
        self._layout = None
        self._do(self._discard)

    def close(self) -> None:
        """Remove an unfinished file, and end the thread."""
        if self._thread is not None:
            self._do(self._discard)
            self._queue.put(None)
            self._thread.join(_END_S)

    # -- the thread ----------------------------------------------------------------------------

    def _do(self, work: _Work) -> None:
        self._queue.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="saving", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

    def _create(self, effect: fx.CreateModel, layout: Layout) -> None:
        self._discard()
        if self._folder is None:
            self._post(ev.SavingFailed(effect.number, "this process has no folder for models"))
            return
        about = {"job": self._job.name, "rounds": str(effect.round)}
        try:
            self._file = ModelFile(self._folder / effect.file, effect.spec, layout, about)
        except StoreError as error:
            self._post(ev.SavingFailed(effect.number, str(error)))

    def _write(self, number: int, slice_: int, data: memoryview) -> None:
        if self._file is None:
            return  # it failed before
        try:
            self._file.write(slice_, data)
        except StoreError as error:
            self._fail(number, error)
        else:
            self._post(ev.SliceStored(number, slice_))

    def _commit(self, number: int) -> None:
        file = self._file
        if file is None:
            return
        try:
            file.commit()
        except StoreError as error:
            self._fail(number, error)
        else:
            self._file = None
            self._post(ev.ModelSaved(number, str(file.path), file.nbytes))

    def _fail(self, number: int, error: StoreError) -> None:
        self._discard()
        self._post(ev.SavingFailed(number, str(error)))

    def _discard(self) -> None:
        if self._file is not None:
            self._file.discard()
            self._file = None

"""Saving the model: servers send their parameters, and the process of the lead writes them to a
file.

A separate thread writes the file. The thread that receives a slice only copies it, so a slow disk
delays no message and no heartbeat. The lead's machine asks for a few slices at a time
(`core/lead/saving.py`), so only a few copies wait to be written.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Event
from polyrhythm.core.placement.slices import Layout, layout_of
from polyrhythm.errors import LinkError, StoreError
from polyrhythm.runtime.server.slice_store import SliceStore
from polyrhythm.store.model_file import CannotWrite, ModelFiles
from polyrhythm.store.objects import Store, open_store
from polyrhythm.wire import messages as m

_Work = Callable[[], None]
_END_S = 5.0
"""How long a process that ends waits for the writing thread, because the disk may not answer."""


class ParameterSender:
    """Sends the parameters of a server's slices to the lead: the current ones, or copies that were
    made before."""

    def __init__(
        self,
        server: int,
        placed: Callable[[], SliceStore],
        send: Callable[[m.Collected, memoryview], None],
    ) -> None:
        self._server = server
        self._placed = placed
        self._send = send
        self._number = 0
        self._copies: dict[int, memoryview] = {}

    def copy(self, effect: fx.CopyParameters) -> None:
        store = self._placed()
        self._number = effect.number
        self._copies = {slice_: store.parameters_of(slice_) for slice_ in store.primary.ids}

    def send(self, effect: fx.SendParameters) -> None:
        """Send copies of these slices, because their memory may be freed during the sending."""
        for slice_ in effect.slices:
            if not effect.copied:
                data: memoryview | None = self._placed().parameters_of(slice_)
            elif effect.number == self._number:
                data = self._copies.pop(slice_, None)
            else:
                # the lead has begun another file, and the copies for this one were dropped
                data = None
            if data is not None:
                message = m.Collected(server=self._server, number=effect.number, slice=slice_)
                self._send(message, data)


@dataclass(slots=True)
class _Begun:
    """A model file that is being written, and the slices that have arrived for it."""

    layout: Layout
    taken: set[int] = field(default_factory=set)


class ModelSaver:
    def __init__(
        self,
        folder: Path | None,
        job: m.JobSpec,
        *,
        announce: Callable[[], None],
        deliver: Callable[[Sequence[Path], str], str],
        post: Callable[[Event], None],
    ) -> None:
        """`folder`: the folder of model files; None: no model can be saved. `announce` is called
        when the last model of a job begins to be written. `deliver` and `post` are called on the
        thread that writes. `deliver`: see `NodeOptions`. `post` hands an event to the lead's
        machine."""
        self._folder = folder
        self._job = job
        self._announce = announce
        self._deliver = deliver
        self._post = post
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._begun: dict[int, _Begun] = {}
        self._files: dict[int, ModelFiles] = {}
        """The files that are being written, by number. Only the thread that writes uses this
        dict."""

    def create(self, effect: fx.CreateModel) -> None:
        if effect.last:
            self._announce()
        layout = layout_of(effect.spec, self._job)
        self._begun[effect.number] = _Begun(layout)
        self._do(lambda: self._create(effect, layout))

    def take(self, message: m.Collected, data: memoryview) -> None:
        """Add a slice that has arrived. It is copied, because its memory is valid only during this
        call. A slice for an unknown file, or one that has arrived before, is ignored."""
        begun = self._begun.get(message.number)
        if begun is None or message.slice in begun.taken:
            return
        layout = begun.layout
        if not 0 <= message.slice < len(layout.slices):
            raise LinkError(f"the peer sent slice {message.slice}, which the model does not have")
        slice_ = layout.slices[message.slice]
        nbytes = slice_.length * layout.spaces[slice_.space].item_nbytes
        if len(data) != nbytes:
            raise LinkError(
                f"the peer sent {len(data)} bytes for slice {message.slice}, which has {nbytes}"
            )
        begun.taken.add(message.slice)
        copy = memoryview(bytes(data))
        self._do(lambda: self._write(message.number, message.slice, copy))

    def commit(self, effect: fx.CommitModel) -> None:
        self._begun.pop(effect.number, None)
        self._do(lambda: self._commit(effect.number))

    def discard(self, effect: fx.DiscardModel) -> None:
        self._begun.pop(effect.number, None)
        self._do(lambda: self._discard(effect.number))

    def close(self) -> None:
        """Remove unfinished files, and end the thread."""
        if self._thread is not None:
            self._do(self._discard_all)
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
        if self._folder is None:
            self._post(ev.SavingFailed(effect.number, "this process has no folder for models"))
            return
        about = {"job": self._job.name, "rounds": str(effect.round)}
        store: Store | None = None
        try:
            if effect.to_store:
                store = open_store(self._job.store)
                if store.folder is not None and store.folder.resolve() == self._folder.resolve():
                    # the lead already knows why this folder cannot be written
                    self._post(ev.SavingFailed(effect.number, ""))
                    return
            file = ModelFiles(self._folder / effect.file, effect.spec, layout, about, store)
        except StoreError as error:
            self._post_fault(effect.number, error)
        else:
            self._files[effect.number] = file

    def _write(self, number: int, slice_: int, data: memoryview) -> None:
        file = self._files.get(number)
        if file is None:
            return  # the file was given up, because an earlier write to it failed
        try:
            file.write(slice_, data)
        except StoreError as error:
            self._fail(number, error)
        else:
            self._post(ev.SliceStored(number, slice_))

    def _commit(self, number: int) -> None:
        file = self._files.get(number)
        if file is None:
            return
        try:
            file.commit()
        except StoreError as error:
            self._fail(number, error)
        else:
            del self._files[number]
            place = self._deliver(file.files, file.path)
            self._post(ev.ModelSaved(number, place, file.nbytes))

    def _fail(self, number: int, error: StoreError) -> None:
        self._discard(number)
        self._post_fault(number, error)

    def _post_fault(self, number: int, error: StoreError) -> None:
        again = isinstance(error, CannotWrite)
        self._post(ev.SavingFailed(number, str(error), again))

    def _discard(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None:
            file.discard()

    def _discard_all(self) -> None:
        for number in list(self._files):
            self._discard(number)

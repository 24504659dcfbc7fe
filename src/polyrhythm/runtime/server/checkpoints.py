"""Writes the checkpoints of a job in the background, and reads the checkpoint from which a job
resumes.

When the lead orders a cut, every server copies its slices, and writes the copy while training goes
on. When all servers have written theirs, the lead's process writes the record and the manifest. *A
fault of the store never ends a process that trains. It is reported to the machine, which gives the
cut up.*
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.model import parts_of
from polyrhythm.core.names import LEAD, worker_name
from polyrhythm.core.record import Record
from polyrhythm.core.values import plain
from polyrhythm.errors import DamagedCheckpoint, LinkError, PolyrhythmError, StoreTaken
from polyrhythm.io.link import Link
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.server.slice_store import SliceStore
from polyrhythm.runtime.slice_state import (
    SliceState,
)
from polyrhythm.store.checkpoints import (
    delete_unused,
    load,
    read_kept,
    read_record,
    read_slices,
    write_kept,
    write_manifest,
    write_slices,
)
from polyrhythm.store.listing import prune, with_room
from polyrhythm.store.objects import Buffer, Store, open_store
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import FileEntry, JobSpec


def resume_asked(job: m.JobSpec) -> ev.ResumeAsked | None:
    """The event that makes the lead continue from a checkpoint. It contains what the checkpoint
    stores about the lead (`core/record.py`) and the description of the model. None: the job does
    not continue from a checkpoint."""
    if not job.resume:
        return None
    store = open_store(job.resume)
    checkpoint = load(store, job.resume_number)
    record, kept = read_record(store, checkpoint, Record), checkpoint.manifest.kept
    return ev.ResumeAsked(record, checkpoint.manifest.model, 0 if kept is None else kept.nbytes)


class KeptStates:
    """The state of the user's code in the lead's process. For a cut, this process receives the
    state from a worker. When a job resumes, it sends the state to all workers that ask for it.

    *A member that was not asked for its state cannot make this process allocate memory. The member
    that was asked cannot send more than the machine allows.*
    """

    def __init__(self, job: m.JobSpec, to: Callable[[str], Link | None]) -> None:
        """`to(name)` returns the link to the peer of that name."""
        self._job = job
        self._to = to
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._expected = fx.ExpectKept()
        self._received = bytearray()
        self._restored: memoryview | None = None

    # -- for a cut -----------------------------------------------------------------------------

    def expect(self, effect: fx.ExpectKept) -> None:
        with self._lock:
            self._expected, self._received = effect, bytearray()

    def take(self, message: m.Kept, data: memoryview) -> bool:
        """Receive a part of a state. Returns False if this process expects no state, or no longer
        expects this one."""
        with self._lock:
            expected = self._expected
            wanted = (expected.number, expected.worker, expected.incarnation)
            if wanted != (message.number, message.worker, message.incarnation):
                return False
            end = message.offset + message.part
            if message.nbytes > expected.most_nbytes:
                raise LinkError(
                    f"the peer sent a state of {message.nbytes} bytes, which is too large"
                )
            if (
                message.offset != len(self._received)
                or end > message.nbytes
                or len(data) != message.part
            ):
                raise LinkError("the peer sent the parts of a state out of order")
            self._received += data
            return True

    def state(self, number: int) -> memoryview:
        """The state for this cut; empty if the cut was given up meanwhile."""
        with self._lock:
            return memoryview(self._received if number == self._expected.number else b"")

    # -- when the job resumes ------------------------------------------------------------------

    def send(self, effect: fx.SendKept) -> None:
        """Read the state from the store, on a separate thread, and send it to this worker."""
        threading.Thread(target=self._send, args=(effect,), name="kept", daemon=True).start()

    def _send(self, effect: fx.SendKept) -> None:
        link = self._to(worker_name(effect.worker))
        if link is None or link.incarnation != effect.incarnation:
            return  # the worker that asked for the state has left
        identity: dict[str, Any] = {"worker": effect.worker, "incarnation": effect.incarnation}
        try:
            data = self._read()
        except PolyrhythmError as error:
            link.send(m.Restored(**identity, fault=plain(str(error))))
            return
        for first, end in parts_of(len(data)):
            part = m.Restored(**identity, nbytes=len(data), offset=first)
            link.send(part, (data[first:end],))

    def _read(self) -> memoryview:
        """The state of the checkpoint. It stays in memory for workers that join later, because the
        checkpoint may be deleted."""
        with self._reading:
            if self._restored is None:
                store = open_store(self._job.resume)
                self._restored = read_kept(store, load(store, self._job.resume_number))
            return self._restored


_SMALL_NBYTES = 256 * 1024
"""Slices of at most this size are copied on the calling thread, because starting a thread would
take longer."""


class WatchedStore(Store):
    """A store for tests that kill the process just before or after an object is written or deleted.
    The file of `crashpoint` names the object without its random part, as in `s1 puts slices` or `s0
    created manifest`."""

    def __init__(self, store: Store, who: str) -> None:
        super().__init__(store.url, store._objects, store.folder)
        self._who = who

    def put(self, name: str, data: Buffer | Sequence[Buffer]) -> None:
        crashpoint.reach_step(self._who, "puts", _short(name))
        super().put(name, data)
        crashpoint.reach_step(self._who, "put", _short(name))

    def create(self, name: str, data: Buffer) -> bool:
        crashpoint.reach_step(self._who, "creates", _short(name))
        created = super().create(name, data)
        crashpoint.reach_step(self._who, "created", _short(name))
        return created

    def delete(self, names: Sequence[str]) -> None:
        crashpoint.reach_step(self._who, "deletes", _short(names[0]))
        super().delete(names)
        crashpoint.reach_step(self._who, "deleted", _short(names[0]))


def _short(name: str) -> str:
    """The name of an object without numbers and suffix: `slices`, `record` or `manifest`."""
    return name.rpartition("/")[2].partition(".")[0].partition("-")[0]


class Checkpoints:
    def __init__(
        self,
        name: str,
        server: int,
        job: JobSpec,
        placed: Callable[[], SliceStore],
        driver: Driver,
        kept: KeptStates,
        fail: Callable[[str], None],
    ) -> None:
        """`placed` returns the slice store. `fail` ends this server; it is called if the checkpoint
        from which the job resumes cannot be read."""
        self._name = name
        self._server = server
        self._job = job
        self._placed = placed
        self._driver = driver
        self._kept = kept
        self._fail = fail
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._written: dict[int, FileEntry] = {}
        """The files of this server that may be unused, by the number of their checkpoint."""

    def _opened(self) -> Store:
        with self._lock:
            if self._store is None:
                store = open_store(self._job.store)
                self._store = WatchedStore(store, self._name) if crashpoint.ON else store
            return self._store

    # -- a server's part -----------------------------------------------------------------------

    def take(self, effect: fx.TakeCut) -> None:
        """Copy the slices, tell the machine, and write the copy on a new thread."""
        if self._placed().primary.nbytes <= _SMALL_NBYTES:
            copies = self._copy(effect)
            self._begin(lambda: self._write(effect, copies))
        else:
            self._begin(lambda: self._write(effect, self._copy(effect)))

    def _copy(self, effect: fx.TakeCut) -> dict[int, SliceState]:
        copies, torn = self._placed().copied()
        crashpoint.reach(self._name, "copied", effect)
        self._driver.post(self._name, ev.CutCopied(effect.number, torn))
        return copies

    def _write(self, effect: fx.TakeCut, copies: dict[int, SliceState]) -> None:
        try:
            store = self._opened()
            self._delete_unused(store, effect.number)
            number = effect.number
            entry = with_room(
                store, number, lambda: write_slices(store, number, self._server, copies)
            )
        except PolyrhythmError as error:
            stored = ev.CutStored(effect.number, fault=str(error))
        else:
            self._written[effect.number] = entry
            stored = ev.CutStored(effect.number, entry)
        self._driver.post(self._name, stored)

    def _delete_unused(self, store: Store, number: int) -> None:
        """Delete the files that this server wrote for cuts that were given up. Otherwise they would
        fill a disk that has too little space for a checkpoint. The lead makes one cut at a time, so
        when a cut begins, every earlier one is complete or given up."""
        for earlier, file in list(self._written.items()):
            if earlier < number:
                delete_unused(store, earlier, file)
                self._written.pop(earlier, None)

    # -- the lead's part -----------------------------------------------------------------------

    def commit(self, effect: fx.CommitCut) -> None:
        self._begin(lambda: self._commit(effect))

    def _commit(self, effect: fx.CommitCut) -> None:
        record, job = effect.record, self._job
        kept, unkept = None, ""
        try:
            store = self._opened()
            if effect.kept:
                try:
                    state = self._kept.state(record.number)
                    kept = with_room(
                        store, record.number, lambda: write_kept(store, record.number, state)
                    )
                except DamagedCheckpoint as error:
                    unkept = str(error)
            checkpoint = with_room(
                store,
                record.number,
                lambda: write_manifest(
                    store,
                    record.number,
                    round=record.round,
                    model=effect.spec,
                    job=job,
                    files=effect.files,
                    record=record,
                    kept=kept,
                ),
            )
        except PolyrhythmError as error:
            taken = isinstance(error, StoreTaken)
            failed = ev.CutCommitted(record.number, fault=str(error), taken=taken)
            self._driver.post(LEAD, failed)
            return
        nbytes, unpruned = checkpoint.manifest.record.nbytes, ""
        nbytes += 0 if kept is None else kept.nbytes
        try:
            prune(store, job.keep)
        except PolyrhythmError as error:
            unpruned = str(error)
        committed = ev.CutCommitted(record.number, nbytes, unpruned=unpruned, unkept=unkept)
        self._driver.post(LEAD, committed)

    # -- resuming ------------------------------------------------------------------------------

    def restore(self, slices: SliceStore, routing: int) -> None:
        """Read from the checkpoint every slice that this server holds. These slices replace the
        initial parameters that a worker would send."""
        self._begin(lambda: self._restore(slices, routing))

    def _restore(self, slices: SliceStore, routing: int) -> None:
        try:
            store = open_store(self._job.resume)
            checkpoint = load(store, self._job.resume_number)
            for id_, state in read_slices(store, checkpoint, slices.kept).items():
                slices.restore(id_, state)
                self._driver.put(self._name, ev.SliceSeeded(id_, routing))
            self._driver.run()
        except PolyrhythmError as error:
            self._fail(f"{self._name} cannot resume: {error}")

    def _begin(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="checkpoint", daemon=True).start()

"""The cuts of a simulated server: it copies its slices and writes them to the store, each at a
constant rate.

Half of the slices are copied when the order arrives, and half at the end of the copying time. A
fold or contribution that comes in between makes the two halves differ, so the checker reports it
(`sim/checker.py`).
"""

from collections.abc import Callable

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.names import LEAD
from polyrhythm.errors import InvariantBroken
from polyrhythm.sim.checker import Checker
from polyrhythm.sim.process import Process
from polyrhythm.sim.server.slice_store import SimSliceStore
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import FileEntry

_RECORD_NS = 5_000_000
"""How long it takes to write the record and the manifest."""


class SimCuts:
    def __init__(
        self,
        process: Process,
        name: str,
        server: int,
        placed: Callable[[], SimSliceStore],
        slept_through: Callable[[Callable[[], None]], bool],
        checker: Checker | None,
        *,
        copy_ns_per_byte: float,
        store_ns_per_byte: float,
    ) -> None:
        self._process = process
        self._name = name
        self._server = server
        self._placed = placed
        self._slept_through = slept_through
        self._checker = checker
        self._copy_ns_per_byte = copy_ns_per_byte
        self._store_ns_per_byte = store_ns_per_byte
        self._expected = fx.ExpectKept()
        self._kept_nbytes = self._announced_nbytes = 0

    def take(self, effect: fx.TakeCut) -> None:
        memory = self._placed()
        slices = list(memory.slices)
        self._copy(effect.number, slices[::2])
        self._after(
            memory.nbytes * self._copy_ns_per_byte, lambda: self._copied(effect, slices[1::2])
        )

    def _copied(self, effect: fx.TakeCut, rest: list[int]) -> None:
        memory, number = self._placed(), effect.number
        self._copy(number, rest)
        self._process.post(self._name, ev.CutCopied(number, memory.torn))
        name = f"slices-{self._server}.safetensors"
        stored = ev.CutStored(number, FileEntry(name, memory.nbytes, "", tuple(memory.slices)))
        self._after(
            memory.nbytes * self._store_ns_per_byte,
            lambda: self._process.post(self._name, stored),
        )

    def _copy(self, number: int, slices: list[int]) -> None:
        if self._checker is not None:
            memory = self._placed()
            for slice_ in slices:
                contents = frozenset(memory.contents[slice_])
                self._checker.cut(number, slice_, contents, memory.weights[slice_])

    def commit(self, effect: fx.CommitCut) -> None:
        number = effect.record.number
        if self._checker is not None:
            self._checker.on_committed(effect.record)
        nbytes = self._kept_nbytes if effect.kept else 0
        if effect.kept and nbytes != self._announced_nbytes:
            raise InvariantBroken(
                f"checkpoint {number} has {nbytes} bytes of the state of worker.keep, but"
                f" {self._announced_nbytes} were announced"
            )
        committed = ev.CutCommitted(number, nbytes)
        took_ns = _RECORD_NS + nbytes * self._store_ns_per_byte
        self._after(took_ns, lambda: self._process.post(LEAD, committed))

    # -- the state of the user's code ----------------------------------------------------------

    def expect_kept(self, effect: fx.ExpectKept) -> None:
        self._expected, self._kept_nbytes = effect, 0

    def take_kept(self, message: m.Kept) -> bool:
        """Receive a part of a worker's kept state. Returns False if this server does not expect
        that state."""
        expected = self._expected
        wanted = (expected.number, expected.worker, expected.incarnation)
        if wanted != (message.number, message.worker, message.incarnation):
            return False
        self._kept_nbytes += message.part
        self._announced_nbytes = message.nbytes
        return True

    def restore(self, memory: SimSliceStore, routing: int) -> None:
        """Read all slices that this server holds from the checkpoint with which the job resumes."""
        kept = list(memory.contents)
        nbytes = sum(memory.nbytes_at(slice_) for slice_ in kept)

        def restored() -> None:
            for slice_ in kept:
                self._process.put(self._name, memory.rules.on_seeded(slice_, routing))
            self._process.run()

        self._after(nbytes * self._store_ns_per_byte, restored)

    def _after(self, delay_ns: float, do: Callable[[], None]) -> None:
        def then(_: None = None) -> None:
            if not self._slept_through(then):
                do()

        self._process.clock.at(self._process.clock.now_ns + int(delay_ns), then)

"""Which thread adds and folds: the one at hand where that is quicker than handing over, else lanes.

With rounds a lane folds with all cores, and where much is held others add side by side. Without, single
slices are added and folded by one lane.
"""

import threading
import time
from collections.abc import Callable

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.text import plain
from polyrhythm.io.link import Link
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.boundary import fault_of
from polyrhythm.runtime.server.adders import Adders
from polyrhythm.runtime.server.slice_store import SliceStore
from polyrhythm.tensors.threads import work_with, working_with
from polyrhythm.wire import messages as m

_SMALL_NBYTES = 256 * 1024
"""Up to this, the thread at hand reads, adds and folds: handing over would take longer."""
_LANES_NBYTES = 2 * 2**20
"""Up to this, with rounds, the polling thread also adds what came over local links, and folds if it is
the one at hand. What is larger has several slices, as a rule, which lanes add side by side."""
_FEW_CORES, _LANES_NBYTES_ON_FEW = 2, 8 * 2**20
"""So it is up to here where there are no cores to spare: what several threads gain side by side, they
lose to each other's waiting for the interpreter."""
_MOST_LANES = 8
"""More are slower, for the same reason."""
_Slice = tuple[Link, m.Contribution, memoryview, threading.Event | None]


def is_large(holdings: SliceStore) -> bool:
    return holdings.primary.nbytes > _SMALL_NBYTES


def added_by_lanes(nbytes: int, cores: int) -> bool:
    """Where so much is held, with rounds."""
    return nbytes > (_LANES_NBYTES_ON_FEW if cores <= _FEW_CORES else _LANES_NBYTES)


class Adding:
    def __init__(
        self,
        name: str,
        placed: Callable[[], SliceStore],
        driver: Driver,
        *,
        rounds: bool,
        pause_s: float,
        polls: Callable[[], bool],
        cores: int,
    ) -> None:
        """`placed`: what this server holds, or an error. `pause_s`: staging, a fold takes longer.
        `polls`: whether this is the polling thread. `cores`: that may be used."""
        self._name = name
        self._placed = placed
        self._driver = driver
        self._rounds = rounds
        self._pause_s = pause_s
        self._polls = polls
        self._cores = cores
        self._lanes: Adders[_Slice] | None = None
        self._fold_lane: Adders[fx.StartFold] | None = None

    def make_lanes(self, holdings: SliceStore) -> None:
        """Those that are missing, of what is worth it for what is held now."""
        slow = self._pause_s > 0
        if self._rounds:
            if self._fold_lane is None and (is_large(holdings) or slow):
                self._fold_lane = Adders(1, lambda: work_with(self._cores), self._fold_all)
            many = added_by_lanes(holdings.primary.nbytes, self._cores)
            if self._lanes is None and (many or slow):
                count = min(self._cores, _MOST_LANES)
                self._lanes = Adders(count, lambda: work_with(1), self._add_gathered)
        elif self._lanes is None and (is_large(holdings) or slow):
            self._lanes = Adders(1, lambda: work_with(self._cores), self._add_gathered)

    def take(self, link: Link, message: m.Contribution, data: memoryview, wait: bool) -> None:
        """`wait`: its memory is the link's, and is read into again after this."""
        if self._lanes is None or (wait and self._rounds):
            self._add(link, message, data)
        elif wait:
            done = threading.Event()
            self._lanes.put(message.slice, (link, message, data, done))
            done.wait()
        else:
            self._lanes.put(message.slice, (link, message, data, None))

    def _add(self, link: Link, message: m.Contribution, data: memoryview) -> bool:
        """Whether there is something to tell the machine, which `run` does."""
        event = self._placed().add(message, data, verify=not link.by_reference)
        crashpoint.reach(self._name, "took", message)
        return event is not None

    def _add_gathered(self, items: list[_Slice]) -> None:
        for link, message, data, done in items:
            told = False
            if not self._rounds:
                self._pause(message.slices)
            try:
                told = self._add(link, message, data)
            except Exception as error:
                fault = fault_of(link.peer, error)
                link.send(m.Refusal(reason=plain(f"{self._name}: {fault}")))
                link.close()  # the thread that reads it notices, and parts with it
            if done is not None:
                done.set()
            if told:
                self._driver.run()

    def start(self, effect: fx.StartFold) -> None:
        if self._fold_lane is None:
            self._fold(effect)
        elif self._lanes is None and self._polls():
            with working_with(self._cores):
                self._fold(effect)
        else:
            self._fold_lane.put(0, effect)

    def _fold_all(self, effects: list[fx.StartFold]) -> None:
        for effect in effects:
            self._fold(effect)

    def _fold(self, effect: fx.StartFold) -> None:
        weight = self._placed().fold(effect.round, effect.slot, effect.fill, effect.share)
        self._pause()
        self._driver.post(self._name, ev.FoldDone(effect.round, weight))

    def _pause(self, parts: int = 1) -> None:
        """Staging: this server takes longer for a fold, or for each of its parts."""
        if self._pause_s:
            time.sleep(self._pause_s / max(1, parts))

    def close(self) -> None:
        for lanes in (self._lanes, self._fold_lane):
            if lanes is not None:
                lanes.close()

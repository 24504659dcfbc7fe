"""SSP and ASP. They use the same gate: SSP with a bound, ASP without one.

A worker may begin a step while its clock is at most `bound` ahead of the slowest member's clock. So
two clocks never differ by more than bound + 1. Without a bound (ASP), a worker does not ask the
lead before a step.
"""

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.arrival.on_arrival import GATED, GOING, Clocks, OnArrival
from polyrhythm.core.sync.policy import NO_WORKERS, PolicyEntry, Traits, sync_argument
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Field


class Staleness(msgspec.Struct):
    bound: int | None
    _held: set[int] = set()
    _arriving: set[int] = set()
    """The workers that have arrived since the gate was last examined, and wait."""
    _least: int = 0
    """The minimum of the clocks when the gate was last examined."""
    _since_ns: int = 0

    def on_arrived(self, worker: int, clocks: Clocks, now_ns: int) -> None:
        if self.bound is not None:
            self._held.add(worker)
            self._arriving.add(worker)

    def leave(self, worker: int) -> None:
        self._held.discard(worker)
        self._arriving.discard(worker)

    def open(self, clocks: Clocks, now_ns: int) -> tuple[frozenset[int], Reason]:
        """Which workers may continue. Only new arrivals are examined, unless the slowest clock has
        advanced."""
        if self.bound is None:
            return NO_WORKERS, GOING
        least = clocks.least
        candidates = self._arriving if least == self._least else self._held
        self._least = least
        if not candidates:
            return NO_WORKERS, GOING
        passed = frozenset(w for w in candidates if clocks[w] - least <= self.bound)
        self._arriving.clear()
        self._held -= passed
        if not self._held or passed:
            self._since_ns = now_ns
        return passed, GOING

    def why(self, clocks: Clocks) -> Waiting:
        if not self._held:
            return Waiting(GOING, self._since_ns)
        fields: dict[str, Field] = {
            "held": sorted(self._held),
            "ahead": max(clocks[worker] for worker in self._held) - clocks.least,
            "bound": self.bound,
            "missing": list(clocks.slowest()),
            "clock": clocks.least,
        }
        return Waiting(Reason("stale", fields), self._since_ns)


class Ssp(OnArrival[Staleness]):
    pass


class Asp(OnArrival[Staleness]):
    traits: ClassVar[Traits] = replace(
        GATED,
        # asp accepts kind statistics only for comparison: it adds changes of different versions,
        # and training may diverge (FSP's Fig. 14)
        kinds=GATED.kinds | {"statistics"},
        asks_before_steps=False,
    )


def _build_ssp(job: JobSpec) -> Ssp:
    return Ssp(Staleness(sync_argument(job)))


def _build_asp(job: JobSpec) -> Asp:
    return Asp(Staleness(None))


SSP = PolicyEntry(
    "ssp", "a worker is at most S steps ahead of the slowest", GATED, _build_ssp, argument="S"
)
ASP = PolicyEntry("asp", "no worker waits for another", Asp.traits, _build_asp)

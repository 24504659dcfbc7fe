"""Whether a slice of a contribution is new (rules 1 and 5 of the design's §9).

*Per slice the dedupe row is one integer, the last sequence added, because a worker sends in order.
Incarnations that are not in the view are refused.* The ledger is asked under the slice's lock, by
whichever thread received the slice; it has no lock of its own.
"""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    NEW = "new"
    REPEATED = "repeated"
    STRANGER = "stranger"


@dataclass(slots=True)
class _Arrival:
    sequence: int
    slices: int
    round: int


class Ledger:
    """The dedupe rows of one server's slices and the count of what has come of each contribution."""

    def __init__(self) -> None:
        self.round = 1
        self._members: dict[int, int] = {}
        self._rows: dict[tuple[int, int], tuple[int, int]] = {}
        self._arrivals: dict[tuple[int, int, int], _Arrival] = {}

    def enlist(self, members: dict[int, int]) -> None:
        """Worker -> incarnation, as the lead's view has it. Rows of those who left are dropped."""
        self._members = dict(members)
        self._rows = {key: row for key, row in self._rows.items() if members.get(key[1]) == row[0]}
        self._arrivals = {
            key: arrival for key, arrival in self._arrivals.items() if members.get(key[0]) == key[1]
        }

    def judge(self, worker: int, incarnation: int, sequence: int, slice_: int) -> Verdict:
        if self._members.get(worker) != incarnation:
            return Verdict.STRANGER
        row = self._rows.get((slice_, worker))
        if row is not None and row[0] == incarnation and sequence <= row[1]:
            return Verdict.REPEATED
        return Verdict.NEW

    def add(
        self, worker: int, incarnation: int, sequence: int, slice_: int, slices: int
    ) -> int | None:
        """Enter a slice that was judged NEW and added. Returns the round that the contribution is
        in once this was the last of its `slices`, else None."""
        self._rows[slice_, worker] = (incarnation, sequence)
        key = (worker, incarnation, sequence)
        arrival = self._arrivals.get(key)
        if arrival is None:
            arrival = self._arrivals[key] = _Arrival(sequence, 0, self.round)
        arrival.slices += 1
        arrival.round = self.round
        if arrival.slices < slices:
            return None
        del self._arrivals[key]
        return arrival.round

    def close(self, round_: int) -> None:
        """Round `round_` is folded: what is added from now on is in the next one."""
        self.round = round_ + 1

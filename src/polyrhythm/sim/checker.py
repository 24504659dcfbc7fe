"""Checks of rules that concern several machines, which no machine can check alone.

*If a server reports a contribution as arrived, every slice of that server contains it. (With kind
statistics, a fold deletes contributions of removed workers, even if such a report is still being
sent.) If a contribution was complete when the lead decided a round, the version of that round
contains it: in every slice, on every server.*
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from polyrhythm.core.record import Record
from polyrhythm.core.server.worker_rows import Key, key_of
from polyrhythm.errors import InvariantBroken
from polyrhythm.sim.model.statistics import ZERO, PointNumbers, Statistics, plus
from polyrhythm.sim.server.rows_store import SimRow, SimRowsSliceStore
from polyrhythm.sim.server.slice_store import Given, SimSliceStore
from polyrhythm.wire import messages as m


def check_rows(
    store: SimRowsSliceStore, server: int, slice_: int, is_member: Callable[[int, int], bool]
) -> None:
    """Checks the rows of statistics of a slice: *in every version, on every server, the sum of the
    rows is the sum over the memory of all points of all members, and no point is in two rows.*

    A removed worker may keep its row until the next fold. If a server died during the fold, such a
    row may lack the worker's last contribution (decision 071).
    """
    rows, named = store.rows[slice_].rows, store.live[slice_]
    where = f"slice {slice_} of s{server}"
    last = {(row.worker, row.incarnation): row.sequence for row in named}
    total = ZERO
    for key, row in rows.items():
        if key not in last:
            raise InvariantBroken(
                f"{where} has a row of {_in_words(key)}, but the last fold did not name this worker"
            )
        if row.sequence > last[key] or (row.sequence < last[key] and is_member(*key)):
            raise InvariantBroken(
                f"{where}: contribution {row.sequence} is the last one in the row of {_in_words(key)},"
                f" but the fold has named contribution {last[key]}"
            )
        total = plus(total, row.total)
    recomputed = _sum_of(tuple(row.memory for row in rows.values()))
    if recomputed is None:
        raise InvariantBroken(f"{where}: {_in_two_rows(rows)}")
    if total != recomputed:
        raise InvariantBroken(
            f"{where}: the sum of the rows is {total}, but the memory of the workers' points adds up"
            f" to {recomputed}"
        )
    for key in last.keys() - rows.keys():
        if last[key] and is_member(*key):
            raise InvariantBroken(f"{where} has no row of {_in_words(key)}, which is a member")


def _in_words(key: Key) -> str:
    worker, incarnation = key
    return f"worker {worker} (incarnation {incarnation})"


@lru_cache(maxsize=16)
def _sum_of(memories: tuple[PointNumbers, ...]) -> Statistics | None:
    """The sum over all points of these memories; None if two of them contain the same point. Most
    slices of a version have the same memories, so most answers are in the cache."""
    count = sum(map(len, memories))
    if len(set[int]().union(*memories)) != count:
        return None
    return float(sum(sum(memory.values()) for memory in memories)), float(count)


def _in_two_rows(rows: Mapping[Key, SimRow]) -> str:
    """Name the point that is in two rows."""
    holders: dict[int, Key] = {}
    for key, row in rows.items():
        for point in row.memory:
            if point in holders:
                return f"point {point} is in the rows of {holders[point]} and {key}"
            holders[point] = key
    return ""


class Checker:
    def __init__(self, *, promises: bool = True) -> None:
        """`promises`: check that every complete contribution is folded. This is possible only if no
        server loses or moves its slices."""
        self._promises = promises
        self.memories: dict[int, SimSliceStore] = {}
        self.is_member: Callable[[int, int], bool] = lambda worker, incarnation: True
        """Whether the lead has this incarnation of a worker in its view."""
        self._trailers: set[Given] = set()
        self._arrived: dict[Given, set[int]] = {}
        self._promised: dict[int, list[Given]] = {}
        self._sequences: dict[int, dict[int, dict[Key, int]]] = {}
        """Kind statistics: for each version and slice, the sequence of the last contribution in every
        row."""
        self._cuts: dict[int, dict[int, tuple[frozenset[Given], float]]] = {}
        self.checkpoints: list[tuple[Record, dict[int, tuple[frozenset[Given], float]]]] = []
        """The checkpoints that were made: the record, and per slice its contributions and weight."""

    def cut(self, number: int, slice_: int, contents: frozenset[Given], weight: float) -> None:
        """Check a slice that a server has copied for this cut."""
        self._cuts.setdefault(number, {})[slice_] = (contents, weight)

    def on_committed(self, record: Record) -> None:
        """Check the cut from which the lead makes a checkpoint."""
        self.checkpoints.append((record, self._cuts.pop(record.number)))

    def told_lead(self, message: m.Message) -> None:
        """Check a message that the lead has received. If it says that a contribution has arrived at
        a server, that server must have the contribution."""
        if isinstance(message, m.Trailer):
            self._trailers.add((message.worker, message.incarnation, message.sequence))
        elif isinstance(message, m.Arrived):
            given = (message.worker, message.incarnation, message.sequence)
            self._arrived.setdefault(given, set()).add(message.server)
            memory = self.memories[message.server]
            deleted = isinstance(memory, SimRowsSliceStore) and not self.is_member(*given[:2])
            if self._promises and not deleted and not memory.holds(given):
                raise InvariantBroken(f"s{message.server} reported {given}, but does not have it")

    def on_decided(self, fold: m.Fold) -> None:
        """Remember which contributions are complete when the lead orders this fold: it must contain
        them."""
        if fold.round in self._promised or not self._promises:
            return
        holders = {server for server, memory in self.memories.items() if memory.slices}
        members = {(spec.worker, spec.incarnation) for spec in fold.members}
        complete = [g for g in sorted(self._trailers) if self._arrived.get(g) == holders]
        self._promised[fold.round] = [given for given in complete if given[:2] in members]
        for given in complete:
            self._trailers.discard(given)
            del self._arrived[given]

    def check_rows(self, server: int, slice_: int) -> None:
        """Kind statistics: check the rows of a slice on this server, if it has rows."""
        memory = self.memories[server]
        if isinstance(memory, SimRowsSliceStore) and slice_ in memory.live:
            check_rows(memory, server, slice_, self.is_member)

    def on_released(self, release: m.Release) -> None:
        """Check a release of the lead. If slices of the version contain different contributions to
        one row, the release must mark the version as torn."""
        slices = self._sequences.get(release.round, {})
        seen: dict[Key, int] = {}
        for sequences in slices.values():
            for key, sequence in sequences.items():
                if seen.setdefault(key, sequence) != sequence and not release.torn:
                    raise InvariantBroken(
                        f"version {release.round} contains contributions {seen[key]} and {sequence} of"
                        f" {key} in different slices, and the lead has not said so"
                    )

    def _note_rows(self, server: int, round_: int) -> None:
        memory = self.memories[server]
        if not isinstance(memory, SimRowsSliceStore):
            return
        for slice_ in memory.slices:
            if slice_ in memory.live:
                rows = memory.rows[slice_].rows
                keys = (key_of(row) for row in memory.live[slice_])
                self._sequences.setdefault(round_, {})[slice_] = {
                    key: rows[key].sequence if key in rows else 0 for key in keys
                }
        self._sequences.pop(round_ - 5, None)

    def on_folded(self, server: int, round_: int) -> None:
        """Check the slices of a server that has folded this round: they must contain the
        contributions that were complete, and their rows of statistics must be correct."""
        for slice_ in self.memories[server].slices:
            self.check_rows(server, slice_)
        self._note_rows(server, round_)
        for given in self._promised.get(round_, ()):
            for slice_, contents in self.memories[server].contents.items():
                if given not in contents:
                    raise InvariantBroken(
                        f"{given} was complete when round {round_} was decided, but is not in"
                        f" slice {slice_} of s{server}"
                    )

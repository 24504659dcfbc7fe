"""Checks of rules that concern several machines, so no machine could check them alone.

*A contribution that a server reports as arrived is in every slice of that server. With kind
statistics, a fold deletes the contributions of removed workers, even while a report of such a
contribution is on its way. A contribution that was complete when the lead decided a round is in that
round's version: in every slice, on every server.*
"""

from collections.abc import Callable

from polyrhythm.core.record import Record
from polyrhythm.core.server.worker_rows import Key, key_of
from polyrhythm.errors import InvariantBroken
from polyrhythm.sim.server.rows_check import check_rows
from polyrhythm.sim.server.rows_store import SimRowsSliceStore
from polyrhythm.sim.server.slice_store import Given, SimSliceStore
from polyrhythm.wire import messages as m


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
        """A server has copied a slice for this cut."""
        self._cuts.setdefault(number, {})[slice_] = (contents, weight)

    def committed(self, record: Record) -> None:
        """The lead makes a checkpoint of a cut."""
        self.checkpoints.append((record, self._cuts.pop(record.number)))

    def told_lead(self, message: m.Message) -> None:
        """The lead has received this message. If it says that a contribution has arrived at a
        server, that server must have the contribution."""
        if isinstance(message, m.Trailer):
            self._trailers.add((message.worker, message.incarnation, message.sequence))
        elif isinstance(message, m.Arrived):
            given = (message.worker, message.incarnation, message.sequence)
            self._arrived.setdefault(given, set()).add(message.server)
            memory = self.memories[message.server]
            deleted = isinstance(memory, SimRowsSliceStore) and not self.is_member(*given[:2])
            if self._promises and not deleted and not memory.holds(given):
                raise InvariantBroken(f"s{message.server} reported {given}, but does not have it")

    def decided(self, fold: m.Fold) -> None:
        """The lead has ordered a fold: contributions that are complete now must be in it."""
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

    def released(self, release: m.Release) -> None:
        """The lead lets a worker go on. If slices of the version contain different contributions to
        one row, the release must say that the version is torn."""
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

    def folded(self, server: int, round_: int) -> None:
        """A server has folded this round: check that its slices contain the contributions that were
        complete, and check its rows of statistics."""
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

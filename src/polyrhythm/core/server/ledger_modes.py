"""The two ledgers: of policies with rounds, and of policies that fold on arrival."""

from collections.abc import Iterable, Mapping

from polyrhythm.core.server.ledger import Ledger, Rows, as_tuple, led_by
from polyrhythm.wire.messages import Route, Row, Stamp


class RoundsLedger(Ledger):
    """The ledger of a policy with rounds. A step of a slice has the number of the round that it folds.
    The rows as of the last fold are kept too, beside the current rows."""

    def __init__(self, mine: Iterable[int] = (), *, replicated: bool = False) -> None:
        super().__init__(mine, replicated=replicated)
        self._folded: dict[int, Rows] = {}
        self._torn = 0

    def close(self, round_: int, named: Iterable[Row] | None = None) -> None:
        """Round `round_` is folded; contributions that come later count in the next round. A slice is
        not folded again if its former primary had folded this round already. `named`: the last
        contribution of each member that the fold contains; None if the fold contains all
        contributions that have come."""
        self.round = round_ + 1
        self._torn = len(self._arrivals) if named is None else 0
        if self._replicated:
            last = None if named is None else {(r.worker, r.incarnation): r.sequence for r in named}
            for slice_ in [s for s in self._mine if self.number(s) < round_]:
                self._folded[slice_] = _limited(self._rows.get(slice_, {}), last)
                self._make_step(slice_, round_)

    def reroute(self, server: int, routes: Mapping[int, Route], routing: int) -> None:
        """Set the routes. Contributions to a slice that were not folded are discarded if the slice
        gets another primary. If some slices are rounds behind, contributions count in the round of
        the slice that is furthest ahead."""
        mine = led_by(server, routes)
        for slice_ in mine - self._mine:
            self._folded[slice_] = dict(self._rows.get(slice_, {}))
        for slice_ in self._mine - mine:
            self._rows[slice_] = self._folded.pop(slice_, {})
        super().reroute(server, routes, routing)
        self.round = 1 + max((self.number(slice_) for slice_ in mine), default=0)

    @property
    def torn(self) -> int:
        return self._torn

    def _drop(self, slice_: int) -> None:
        super()._drop(slice_)
        self._folded.pop(slice_, None)

    def folded_rows(self, slice_: int) -> tuple[Row, ...]:
        if slice_ in self._mine:
            return as_tuple(self._folded.get(slice_, {}))
        return super().folded_rows(slice_)


class OnArrivalLedger(Ledger):
    """The ledger of a policy that folds every contribution on arrival, as a step of its own."""

    def next_step(self, slice_: int) -> Stamp:
        """Record the next step of a slice, which this server makes as the primary. Returns its
        stamp."""
        self._make_step(slice_, self.number(slice_) + 1)
        return self.stamp(slice_)


def _limited(rows: Rows, last: Mapping[tuple[int, int], int] | None) -> Rows:
    """A copy of the rows that leaves out contributions after the last one that is folded. The rows
    of workers that left are kept."""
    if last is None:
        return dict(rows)
    return {
        worker: (incarnation, min(sequence, last.get((worker, incarnation), sequence)))
        for worker, (incarnation, sequence) in rows.items()
    }

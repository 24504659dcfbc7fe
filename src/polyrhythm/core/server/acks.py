"""Remembers which contributions of each member have arrived, and which of them are acknowledged.

*With rounds, a contribution is acknowledged when its round is folded. Without rounds, it is
acknowledged when it is in the parameters of this server and of every replica. A promoted server
acknowledges a contribution only if all slices whose primary it is now contain it, including slices
that had another primary before.*
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from polyrhythm.wire.messages import Adopted, Copied, MemberSpec, Row

MOST_RUNS = 64


class Acks:
    def __init__(self) -> None:
        self.members: dict[int, int] = {}
        """Per worker that may contribute, its incarnation."""
        self._enlisted: tuple[MemberSpec, ...] = ()
        """The members, in the form in which the lead has sent them."""
        self._arrived: dict[int, tuple[int, int]] = {}
        """With rounds: per worker, the last sequence that is not folded yet, and its round."""
        self._acknowledged: dict[int, int] = {}

    def enlist(self, members: tuple[MemberSpec, ...]) -> list[tuple[int, int]] | None:
        """Set the members. Returns the members that have left (worker, incarnation), or None if
        nothing has changed."""
        if members == self._enlisted:
            return None
        self._enlisted = members
        now = {member.worker: member.incarnation for member in members}
        if now == self.members:
            return None
        gone = [key for key in self.members.items() if now.get(key[0]) != key[1]]
        for worker, _ in gone:
            self._acknowledged.pop(worker, None)
            self._arrived.pop(worker, None)
        self.members = now
        return gone

    def missing(self) -> list[int]:
        return sorted(self.members.keys() - self._arrived.keys())

    def acknowledged(self, worker: int) -> int:
        return self._acknowledged.get(worker, 0)

    def acknowledge(self, worker: int, sequence: int) -> int:
        """Acknowledge all contributions of the worker up to `sequence`. Returns the last
        acknowledged sequence."""
        self._acknowledged[worker] = last = max(self._acknowledged.get(worker, 0), sequence)
        return last

    # -- rounds --------------------------------------------------------------------------------

    def arrive(self, worker: int, sequence: int, round_: int) -> None:
        self._arrived[worker] = (sequence, round_)

    def last_first(self, readers: Collection[int]) -> list[int]:
        """The readers in the order of sending. The worker that arrived last comes first, because
        the next round will probably wait for it again."""
        waiting = set(readers).intersection(self.members)
        arrived = [worker for worker in reversed(self._arrived) if worker in waiting]
        waiting.difference_update(arrived)
        return arrived + [worker for worker in readers if worker in waiting]

    def on_folded(
        self,
        round_: int,
        readers: Collection[int] = (),
        named: Mapping[int, int] | None = None,
    ) -> list[tuple[int, int]]:
        """Acknowledge what a folded round contains. Workers in `readers` get the acknowledgement
        with the new version. `named`: per worker, the last sequence that the fold contains; None if
        the fold contains all contributions that have arrived. Returns the workers that are not in
        `readers`, with the sequences that must be acknowledged by a message."""
        told = []
        for worker, (sequence, of) in list(self._arrived.items()):
            if of <= round_ if named is None else sequence <= named.get(worker, 0):
                del self._arrived[worker]
                if worker in readers:
                    self._acknowledged[worker] = sequence
                else:
                    told.append((worker, sequence))
        return told

    # -- slices that move ----------------------------------------------------------------------

    def secured(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Without rounds: these rows, limited to contributions that every replica has too."""
        return tuple(
            Row(row.worker, row.incarnation, min(row.sequence, self.acknowledged(row.worker)))
            for row in rows
        )

    def on_slices_changed(
        self, rows: Iterable[Row], *, had_none: bool
    ) -> list[tuple[int, int, int]]:
        """Handle a change of the slices whose primary this server is. `rows`: the contributions
        that all of these slices contain; only they stay acknowledged. `had_none`: this server was
        the primary of no slice before, so it had acknowledged nothing. Returns the contributions
        (worker, incarnation, sequence) that the change completes: they were missing only in slices
        that now have another primary."""
        last = {(row.worker, row.incarnation): row.sequence for row in rows}
        complete = []
        for worker, incarnation in self.members.items():
            least = last.get((worker, incarnation), 0)
            before = self._acknowledged.get(worker, 0)
            self._acknowledged[worker] = acknowledged = least if had_none else min(before, least)
            self._arrived.pop(worker, None)
            if least > acknowledged:
                complete.append((worker, incarnation, least))
        return complete


class EarlyAcks:
    """Keeps confirmations of other servers until the slices of this server have reached the routing
    epoch that they name.

    *A confirmation covers all steps before it. So consecutive confirmations with the same server,
    epoch and type are kept as one, with the latest row of every worker. A correct server sends
    confirmations for only a few epochs; the link of a server with more is closed. When the link of
    a server ends, its confirmations are forgotten.*
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[Copied | Adopted]] = {}
        """Per server, its confirmations in the order in which they came."""

    def keep(self, message: Copied | Adopted) -> bool:
        """Keep a confirmation. Returns False if its sender has confirmed in too many epochs."""
        kept = self._kept.setdefault(message.server, [])
        last = kept[-1] if kept else None
        if last is not None and (type(last), last.routing) == (type(message), message.routing):
            rows = {row.worker: row for row in (*last.rows, *message.rows)}
            kept[-1] = msgspec.structs.replace(message, rows=tuple(rows.values()))
            return True
        if len(kept) >= MOST_RUNS:
            return False
        kept.append(message)
        return True

    def take(self) -> list[Copied | Adopted]:
        """Remove and return all confirmations, in the order in which each server sent them."""
        kept, self._kept = self._kept, {}
        return [message for messages in kept.values() for message in messages]

    def forget(self, server: int) -> None:
        self._kept.pop(server, None)

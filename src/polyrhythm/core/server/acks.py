"""The contributions of each member that have arrived, and how many of them are acknowledged.

*With rounds a contribution is acknowledged when its round is folded; without rounds, when it is in the
parameters here and on every replica. A server that is promoted counts a contribution as acknowledged
only if it is in every slice, including those that had another primary.*
"""

from collections.abc import Collection, Iterable

import msgspec

from polyrhythm.wire.messages import Adopted, Copied, MemberSpec, Row

MOST_RUNS = 64


class Acks:
    def __init__(self) -> None:
        self.members: dict[int, int] = {}
        """Per worker that may contribute, its incarnation."""
        self._enlisted: tuple[MemberSpec, ...] = ()
        """The members as the lead has named them."""
        self._arrived: dict[int, tuple[int, int]] = {}
        """With rounds: the last sequence that is not folded, and its round."""
        self._acknowledged: dict[int, int] = {}

    def enlist(self, members: tuple[MemberSpec, ...]) -> list[tuple[int, int]] | None:
        """Set the members. Returns those that are gone, or None if nothing has changed."""
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
        """Acknowledge everything up to `sequence`. Returns the last sequence acknowledged."""
        self._acknowledged[worker] = last = max(self._acknowledged.get(worker, 0), sequence)
        return last

    # -- rounds --------------------------------------------------------------------------------

    def arrive(self, worker: int, sequence: int, round_: int) -> None:
        self._arrived[worker] = (sequence, round_)

    def last_first(self, readers: Collection[int]) -> list[int]:
        """The readers, the last to arrive first: the others have had time to wait."""
        waiting = set(readers).intersection(self.members)
        arrived = [worker for worker in reversed(self._arrived) if worker in waiting]
        waiting.difference_update(arrived)
        return arrived + [worker for worker in readers if worker in waiting]

    def fold(self, round_: int, readers: Collection[int] = ()) -> list[tuple[int, int]]:
        """A round is folded. A version acknowledges to its readers. Returns the other workers, which
        must be told, with their sequences."""
        told = []
        for worker, (sequence, of) in list(self._arrived.items()):
            if of <= round_:
                del self._arrived[worker]
                if worker in readers:
                    self._acknowledged[worker] = sequence
                else:
                    told.append((worker, sequence))
        return told

    # -- slices that move ----------------------------------------------------------------------

    def secured(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Without rounds: the contributions in these rows that every replica has, too."""
        return tuple(
            Row(row.worker, row.incarnation, min(row.sequence, self.acknowledged(row.worker)))
            for row in rows
        )

    def take_over(self, rows: Iterable[Row], *, anew: bool) -> list[tuple[int, int, int]]:
        """The server is the primary of other slices, and `rows` says what all of them have: nothing
        else is acknowledged. `anew`: nothing was acknowledged here before. Returns the contributions
        that were incomplete only in slices that have another primary now: worker, incarnation,
        sequence."""
        last = {(row.worker, row.incarnation): row.sequence for row in rows}
        complete = []
        for worker, incarnation in self.members.items():
            least = last.get((worker, incarnation), 0)
            before = self._acknowledged.get(worker, 0)
            self._acknowledged[worker] = acknowledged = least if anew else min(before, least)
            self._arrived.pop(worker, None)
            if least > acknowledged:
                complete.append((worker, incarnation, least))
        return complete


class EarlyAcks:
    """Confirmations of other servers in a routing epoch that the slices here are not in yet.

    *A confirmation covers all steps before it, so consecutive confirmations of one server, epoch and
    type are kept as one, with the latest row of every worker. A server adopts states in a few epochs at
    most; one that confirms more is dropped. Its confirmations are forgotten when its link closes.*"""

    def __init__(self) -> None:
        self._kept: dict[int, list[Copied | Adopted]] = {}
        """Per server, in the order in which they came."""

    def keep(self, message: Copied | Adopted) -> bool:
        """False if the sender has confirmed in too many epochs."""
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
        """All of them, in the order of each server; nothing stays."""
        kept, self._kept = self._kept, {}
        return [message for messages in kept.values() for message in messages]

    def forget(self, server: int) -> None:
        self._kept.pop(server, None)

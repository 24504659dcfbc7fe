"""What a server has of each member, and how much of that is acknowledged.

*With rounds a contribution is acknowledged when its round is folded; without, when it is in the
parameters here and on every replica. A server that is promoted has acknowledged what every slice has,
those too that another was the primary of.*
"""

from collections.abc import Collection, Iterable

from polyrhythm.wire.messages import MemberSpec, Row


class Acks:
    def __init__(self) -> None:
        self.members: dict[int, int] = {}
        """Per worker that may contribute, its incarnation."""
        self._enlisted: tuple[MemberSpec, ...] = ()
        """The same, as the lead has said it."""
        self._arrived: dict[int, tuple[int, int]] = {}
        """With rounds: the last sequence that is not folded, and its round."""
        self._acknowledged: dict[int, int] = {}

    def enlist(self, members: tuple[MemberSpec, ...]) -> list[tuple[int, int]] | None:
        """The members from now on: who is gone, or None if all are as they were."""
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
        """Up to this one at least; up to which in all."""
        self._acknowledged[worker] = last = max(self._acknowledged.get(worker, 0), sequence)
        return last

    # -- rounds --------------------------------------------------------------------------------

    def arrive(self, worker: int, sequence: int, round_: int) -> None:
        self._arrived[worker] = (sequence, round_)

    def last_first(self, readers: Collection[int]) -> list[int]:
        """Who was waited for gets the version first: the others have time."""
        waiting = set(readers).intersection(self.members)
        arrived = [worker for worker in reversed(self._arrived) if worker in waiting]
        waiting.difference_update(arrived)
        return arrived + [worker for worker in readers if worker in waiting]

    def fold(self, round_: int, readers: Collection[int] = ()) -> list[tuple[int, int]]:
        """A round is folded. Readers see by the version what is acknowledged; the others, with
        their sequences, must be told."""
        told = []
        for worker, (sequence, of) in list(self._arrived.items()):
            if of <= round_:
                del self._arrived[worker]
                if worker in readers:
                    self._acknowledged[worker] = sequence
                else:
                    told.append((worker, sequence))
        return told

    # -- other slices --------------------------------------------------------------------------

    def secured(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Without rounds: what every replica has too of what is in the slices here."""
        return tuple(
            Row(row.worker, row.incarnation, min(row.sequence, self.acknowledged(row.worker)))
            for row in rows
        )

    def take_over(self, rows: Iterable[Row], *, anew: bool) -> list[tuple[int, int, int]]:
        """Acknowledged is what every slice has, as these rows say, those too that another was the
        primary of. `anew`: nothing was acknowledged here. Returns what only lacked slices that
        another is the primary of now, and is complete: worker, incarnation, sequence."""
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

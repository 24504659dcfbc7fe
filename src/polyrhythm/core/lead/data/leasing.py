"""The events about data: members announce data sets, points arrive, leases are confirmed, chunks move.

*The parts of the data plan mark the members whose leases have changed. The new leases leave the lead at
the end of the event, in one place: `Leasing._send`.*
"""

from collections.abc import Collection, Iterable

import msgspec

from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.rounds.modes import Mode
from polyrhythm.core.machine import Reason
from polyrhythm.core.migration import OFF
from polyrhythm.core.values import plain_reason
from polyrhythm.wire import messages as m


class Leasing:
    def __init__(self, parts: Parts, mode: Mode) -> None:
        self._mode = mode
        self._job = parts.job
        self._view = parts.view
        self._sharing = parts.sharing
        self._outbox = parts.outbox
        self._progress = parts.progress
        self._ending = parts.ending
        self._stopping = parts.stopping

    def on_enrol(self, message: m.Enrol, member: Member, now_ns: int) -> Reason | None:
        """A member announces a data set: give it a lease of chunks. Returns why the data set is
        refused; None if it is accepted."""
        first = not self._sharing.begun
        if first or self._job.data_private:
            whose: dict[str, object] = {}
            if self._job.data_private:
                whose = {"name": member.name, "shares": message.shares}
            self._outbox.note("data", points=message.points, batch=message.batch, **whose)
        lease = self._sharing.on_enrol(member, message, self._view)
        if isinstance(lease, Reason):
            return lease
        self._outbox.lease(member, lease)
        self._send(now_ns)
        choice = self._sharing.migrate
        if first and choice.mode != OFF:
            self._outbox.note("migration", mode=choice.mode, **choice.reason.noted())
        self._note_news()
        return None

    def on_delivered(self, message: m.Delivered, member: Member, now_ns: int) -> None:
        """A member has received the points of a chunk, or a delivery has failed."""
        if message.fault is not None:
            message = msgspec.structs.replace(message, fault=plain_reason(message.fault))
        self._sharing.on_delivered(member, message)
        self._send(now_ns)
        self._progress.note_moves()

    def on_confirmed(self, member: Member, number: int, now_ns: int) -> None:
        """A member has contributed or abstained under the lease with this number."""
        self._sharing.on_confirmed(member, number)
        self._send(now_ns)
        self._progress.note_moves()

    def lose(self, removed: Collection[tuple[int, int]]) -> None:
        """Every server knows that these members were removed."""
        self._sharing.lose(removed)

    def on_folded(self, removed: Iterable[tuple[int, int]], now_ns: int) -> None:
        """A round is folded, and every server knows that the members in `removed` have left.
        Distribute the chunks again, and balance the passes. *Members get their leases before they are
        released for the next round.*"""
        ends = self._stopping.goal is not None
        self._sharing.share_again(self._view, removed, ends=ends)
        self._send(now_ns)
        self._progress.note_moves()
        self._note_news()
        if ends:
            self._sharing.end_moves()
        else:
            self._balance(now_ns)
        self._send(now_ns)
        self._progress.note_moves()

    def _balance(self, now_ns: int) -> None:
        round_s = self._sharing.round_s
        if round_s is None or self._ending.begun:
            return
        remaining_s = self._progress.remaining_s(self._mode.done, round_s, now_ns)
        for moved in self._sharing.balance(self._view, remaining_s, now_ns):
            numbers = {"moved": moved.chunks, "points": moved.points}
            self._outbox.note("chunks", **numbers, **moved.reason.noted())

    def on_time(self, now_ns: int) -> None:
        """Private data: do not wait any longer for workers that were there before a resume."""
        self._sharing.on_time(now_ns)
        self._note_news()

    def _send(self, now_ns: int) -> None:
        """Send the leases that have changed. This is the only place from which they leave the lead."""
        for member, lease in self._sharing.take_leases(self._view):
            self._outbox.lease(member, lease)
            if lease.chunks or lease.sends:
                self._mode.call_back(member, now_ns)

    def _note_news(self) -> None:
        """Write to the journal whose data sets are lost, or are back."""
        for news in self._sharing.take_news():
            self._outbox.note("data-set", **news.noted())

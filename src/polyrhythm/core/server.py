"""The server: it holds slices, and has no barrier of its own.

*Where the policy has rounds, a server adds slices, reports `Arrived`, and folds only on the lead's
`Fold`; what comes late joins the next aggregate. Where it has none, each slice is folded as it
comes.* Adding and folding single slices is done by whoever received them, under the ledger's word;
the machine keeps versions and their readers, and says what happened to the lead.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.effects import (
    LEAD,
    Beat,
    Build,
    End,
    Enlist,
    FreeSlots,
    Freeze,
    Publish,
    PublishLatest,
    Send,
    StartFold,
    Unlease,
    worker_name,
    worker_number,
)
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.sync.choose import has_rounds
from polyrhythm.core.versions import Versions
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m


class ServerMachine:
    def __init__(self, server: int, job: m.JobSpec) -> None:
        self.server = server
        self.job = job
        self._rounds = has_rounds(job.sync)
        self.versions = Versions(rotating=self._rounds and job.updater == "addition")
        self._term = 0
        self._view = 0
        self._routing = 0
        self._mine: frozenset[int] = frozenset()
        self._unseeded: set[int] = set()
        self._members: dict[int, int] = {}
        self._arrived: dict[int, tuple[int, int]] = {}
        self._acknowledged: dict[int, int] = {}
        self._pulls: dict[int, m.Pull] = {}
        self._frozen = False
        self._ended = False
        self._beat_ns = round(job.heartbeat_s * 1e9)
        self._next_beat_ns: int | None = None
        self._folding: m.Fold | None = None
        self._target = (0, 0)
        self._since_ns = 0
        self._out: list[Effect] = []

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        self._out = []
        handler = self._HANDLERS.get(type(event))
        if handler is not None and not self._ended:
            handler(self, event, now_ns)
        return self._out

    def wake_at(self) -> int | None:
        return None if self._ended else self._next_beat_ns

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        if self._next_beat_ns is not None and now_ns >= self._next_beat_ns:
            self._next_beat_ns = now_ns + self._beat_ns
            self._out.append(Beat(m.Alive(**self._identity())))

    def why(self) -> Waiting:
        if not self._mine or self._unseeded:
            return Waiting(Reason("placing"), self._since_ns)
        round_ = self.versions.version + 1
        if self._folding is not None:
            return Waiting(Reason("folding", {"round": round_}), self._since_ns)
        missing = ", ".join(f"w{w}" for w in sorted(set(self._members) - set(self._arrived)))
        return Waiting(
            Reason("round", {"round": round_, "missing": missing or "the lead"}), self._since_ns
        )

    def check(self) -> None:
        self.versions.check()
        if self._folding is not None and self._folding.round < self.versions.version:
            raise InvariantBroken("a fold went backwards")

    # -- beginning -----------------------------------------------------------------------------

    def _on_place(self, message: m.Place, now_ns: int) -> None:
        self._term, self._routing = message.term, message.routing
        self._mine = frozenset(
            slice_ for slice_, route in enumerate(message.routes) if route.primary == self.server
        )
        self._unseeded = set(self._mine)
        self._since_ns = now_ns
        self._next_beat_ns = now_ns + self._beat_ns
        self._out.append(Build(message.spec, message.routes, message.routing))
        self._tell_lead(m.Placed(**self._identity()))

    def _on_slice_seeded(self, event: ev.SliceSeeded, now_ns: int) -> None:
        if event.routing != self._routing or event.slice not in self._unseeded:
            return  # a dead seeder's, overtaken by the order to make room anew, or a repetition
        self._unseeded.remove(event.slice)
        if not self._unseeded:
            self._tell_lead(m.Seeded(**self._identity()))

    # -- contributions -------------------------------------------------------------------------

    def _on_contributed(self, event: ev.Contributed, now_ns: int) -> None:
        if self._members.get(event.worker) != event.incarnation:
            return
        if self._rounds:
            self._added(event)
        else:
            self._folded_at_once(event)
        self._tell_lead(
            m.Arrived(
                **self._identity(),
                worker=event.worker,
                incarnation=event.incarnation,
                sequence=event.sequence,
                round=event.round,
            )
        )

    def _added(self, event: ev.Contributed) -> None:
        self.versions.release(event.worker, self.versions.version)
        if event.round <= self.versions.version:
            self._acknowledge(event.worker, event.sequence)
        else:
            self._arrived[event.worker] = (event.sequence, event.round)

    def _folded_at_once(self, event: ev.Contributed) -> None:
        """It is in the parameters already: the answer to a pull that waits for it acknowledges."""
        self._acknowledged[event.worker] = event.sequence
        pull = self._pulls.get(event.worker)
        if pull is not None and pull.sequence <= event.sequence:
            self._publish_latest(pull)
        else:
            self._acknowledge(event.worker, event.sequence)

    def _on_repeated(self, event: ev.Repeated, now_ns: int) -> None:
        """It came again because its acknowledgement was not seen: acknowledge again if due."""
        if self._members.get(event.worker) != event.incarnation:
            return
        if self._acknowledged.get(event.worker, 0) >= event.sequence:
            self._acknowledge(event.worker, event.sequence)

    def _acknowledge(self, worker: int, sequence: int) -> None:
        self._acknowledged[worker] = max(self._acknowledged.get(worker, 0), sequence)
        message = m.Acknowledged(
            **self._identity(),
            worker=worker,
            incarnation=self._members[worker],
            sequence=self._acknowledged[worker],
        )
        self._out.append(Send(worker_name(worker), message))

    # -- folds ---------------------------------------------------------------------------------

    def _on_fold(self, message: m.Fold, now_ns: int) -> None:
        if message.term < self._term or self._folding is not None:
            return
        self._term, self._view = message.term, message.view
        self._since_ns = now_ns
        self._enlist(message.members)
        self._folding = message
        if message.last and not self._rounds:
            self._frozen = True
            self._out.append(Freeze())
        if message.round == 0 or not self._rounds:
            self._finish_fold(0.0, now_ns)
            return
        slot, fill = self._target = self.versions.target()
        self._out.append(StartFold(message.round, slot, fill))

    def _enlist(self, members: tuple[m.MemberSpec, ...]) -> None:
        now = {member.worker: member.incarnation for member in members}
        if now == self._members:
            return
        for worker, incarnation in self._members.items():
            if now.get(worker) != incarnation:
                # what it leases stays leased until its link ends: it may be in the middle of it
                self._acknowledged.pop(worker, None)
                self._arrived.pop(worker, None)
                self._pulls.pop(worker, None)
        self._members = now
        self._out.append(Enlist(members))

    def _on_fold_done(self, event: ev.FoldDone, now_ns: int) -> None:
        if self._folding is None or event.round != self._folding.round:
            return
        self.versions.folded(event.round, *self._target)
        self._finish_fold(event.weight, now_ns)

    def _finish_fold(self, weight: float, now_ns: int) -> None:
        fold, self._folding = self._folding, None
        assert fold is not None
        self._since_ns = now_ns
        readers = [worker for worker in fold.readers if worker in self._members]
        pushed = frozenset(readers)
        for worker, (sequence, round_) in list(self._arrived.items()):
            if round_ <= fold.round:
                del self._arrived[worker]
                if worker in pushed:
                    self._acknowledged[worker] = sequence
                else:
                    self._acknowledge(worker, sequence)
        for worker in readers:
            self._publish(worker)
        for pull in list(self._pulls.values()):
            self._answer(pull)
        self._tell_lead(m.Folded(**self._identity(), round=fold.round, weight=weight))
        self._free()

    # -- readers -------------------------------------------------------------------------------

    def _publish(self, worker: int) -> None:
        self._pulls.pop(worker, None)
        if self.versions.holds(worker):
            return  # it is on its way: a second answer would outlive the first one's lease
        self.versions.lease(worker)
        self._out.append(
            Publish(
                worker,
                self.versions.version,
                self.versions.slot,
                self._acknowledged.get(worker, 0),
                self._view,
            )
        )

    def _on_pull(self, message: m.Pull, now_ns: int) -> None:
        if self._members.get(message.worker) == message.incarnation:
            self._answer(message)

    def _answer(self, pull: m.Pull) -> None:
        """Now if what was asked for is there, otherwise when it is."""
        if self._can_answer(pull):
            if self._rounds:
                self._publish(pull.worker)
            else:
                self._publish_latest(pull)
        else:
            self._pulls[pull.worker] = pull

    def _can_answer(self, pull: m.Pull) -> bool:
        """With rounds: the version is there and no fold is writing. Without: the reader's own last
        contribution is in, or nothing more will be."""
        if self._rounds:
            return self._folding is None and self.versions.version >= pull.round
        return self._frozen or self._acknowledged.get(pull.worker, 0) >= pull.sequence

    def _publish_latest(self, pull: m.Pull) -> None:
        self._pulls.pop(pull.worker, None)
        sequence = self._acknowledged.get(pull.worker, 0)
        self._out.append(PublishLatest(pull.worker, pull.round, sequence, self._view))

    def _on_pulled(self, message: m.Pulled, now_ns: int) -> None:
        self._release(message.worker, message.round)

    def _on_sent(self, event: ev.Sent, now_ns: int) -> None:
        self._release(event.worker, event.round)

    def _release(self, worker: int, round_: int) -> None:
        if self._rounds:
            self.versions.release(worker, round_)
            self._free()
        else:
            self._out.append(Unlease(worker, round_))

    def _free(self) -> None:
        if self._folding is None and (slots := self.versions.surplus()):
            self._out.append(FreeSlots(slots))

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        if event.peer == LEAD:
            self._end(Reason("lead-gone", {"detail": event.reason}), failed=True)
        worker = worker_number(event.peer)
        if worker is None or 0 < event.incarnation < self._members.get(worker, 0):
            return  # it is no worker, or has come back over another link
        self._pulls.pop(worker, None)
        if self._rounds:
            self.versions.forget(worker)
            self._free()
        else:
            self._out.append(Unlease(worker, None))

    def _on_stop(self, message: m.Stop, now_ns: int) -> None:
        self._end(Reason("refused", {"detail": message.reason}), failed=message.failed)

    def _end(self, reason: Reason, *, failed: bool) -> None:
        self._ended = True
        self._out.append(End(reason, failed))

    # -- small words ---------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {
            "term": self._term,
            "view": self._view,
            "routing": self._routing,
            "server": self.server,
        }

    def _tell_lead(self, message: m.Message) -> None:
        self._out.append(Send(LEAD, message))

    _HANDLERS: ClassVar[dict[type, Callable[["ServerMachine", Any, int], None]]] = {
        ev.Tick: _on_tick,
        m.Place: _on_place,
        ev.SliceSeeded: _on_slice_seeded,
        ev.Contributed: _on_contributed,
        ev.Repeated: _on_repeated,
        m.Fold: _on_fold,
        ev.FoldDone: _on_fold_done,
        m.Pull: _on_pull,
        m.Pulled: _on_pulled,
        ev.Sent: _on_sent,
        ev.LinkClosed: _on_link_closed,
        m.Stop: _on_stop,
    }

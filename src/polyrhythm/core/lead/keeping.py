"""The state that the user's code adds to checkpoints: which worker is asked for it, and how long the
lead waits.

*The state comes from one worker: of the members that have taken part since the first round, the one
whose name comes first (worker-0). If all of these have left, it is the member that entered first.
Only the worker that was asked can send a state, and only up to a limit. A state belongs to one cut:
if the worker is lost before it has sent the whole state, the cut is given up, and the next cut asks
the successor. If the worker is silent for too long, or its state cannot be kept, the checkpoint is
made without the state, and the journal says so* (decision 054).
"""

import msgspec

from polyrhythm.core.effects import ExpectKept, SendKept
from polyrhythm.core.keeping import most_nbytes
from polyrhythm.core.lead.members import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.machine import Reason
from polyrhythm.core.text import plain
from polyrhythm.wire import messages as m


class _Wanted(msgspec.Struct):
    number: int
    key: tuple[int, int]
    name: str
    patience_ns: int
    until_ns: int
    whole: bool = False


class StateKeeping:
    def __init__(self, parts: Parts) -> None:
        self._view = parts.view
        self._routing = parts.routing
        self._outbox = parts.outbox
        self._keepers: set[tuple[int, int]] = set()
        """The members that have a state to keep."""
        self._served: set[tuple[int, int]] = set()
        """The members that the state of the checkpoint was sent to."""
        self._nbytes = 0
        self._ever = False
        """Whether a worker of this job has ever had a state to keep."""
        self._wanted: _Wanted | None = None

    def resume(self, nbytes: int) -> None:
        """The checkpoint from which the job resumes has a state of this size."""
        self._nbytes = nbytes
        self._ever = nbytes > 0

    def announced(self, message: m.Keeping) -> None:
        """A member has a state to keep. If the member waits for the state in the checkpoint, send
        that state, once per incarnation."""
        member = self._view.get(message.worker, message.incarnation)
        if member is None:
            return
        self._ever = True
        self._keepers.add(member.key)
        if message.restore and member.key not in self._served:
            self._served.add(member.key)
            if self._nbytes:
                self._outbox.do(SendKept(*member.key))
            else:
                self._outbox.tell(member, m.Restored(**self._outbox.identity(member)))

    # -- for a cut -----------------------------------------------------------------------------

    def ask(self, number: int, now_ns: int, patience_ns: int) -> None:
        """Ask a member for the state that belongs to this cut."""
        members = self._view.members()
        self._keepers &= {member.key for member in members}
        self._served &= {member.key for member in members}
        keepers = [each for each in members if each.entered and each.key in self._keepers]
        if not keepers:
            if self._ever:
                self._note_missing(number, Reason("no-keeper"))
            return
        keeper = min(keepers, key=_seniority)
        until_ns = now_ns + patience_ns
        self._wanted = _Wanted(number, keeper.key, keeper.name, patience_ns, until_ns)
        assert self._routing.spec is not None
        most = most_nbytes(self._routing.spec)
        self._outbox.do(ExpectKept(number, keeper.worker, keeper.incarnation, most))
        self._outbox.tell(keeper, m.Keep(**self._outbox.identity(keeper), number=number))

    def received(self, message: m.Kept, now_ns: int) -> None:
        """A part of the state has arrived, or the worker says why there is none."""
        wanted = self._wanted
        if wanted is None or wanted.key != (message.worker, message.incarnation):
            return
        if wanted.number != message.number:
            return
        if message.fault:
            self._miss(Reason("state-refused", {"detail": plain(message.fault)}))
            return
        wanted.until_ns = now_ns + wanted.patience_ns
        wanted.whole = message.offset + message.part >= message.nbytes

    @property
    def whole(self) -> bool:
        """Whether the whole state for this cut has arrived."""
        return self._wanted is not None and self._wanted.whole

    @property
    def pending(self) -> bool:
        """Whether the checkpoint must wait for the state."""
        return self._wanted is not None and not self._wanted.whole

    @property
    def lost(self) -> str | None:
        """The name of the worker that was asked, if it is lost and has not sent the state."""
        if self._wanted is None or self._wanted.whole:
            return None
        return None if self._view.get(*self._wanted.key) is not None else self._wanted.name

    @property
    def wake_ns(self) -> int | None:
        return self._wanted.until_ns if self._wanted is not None and self.pending else None

    def give_up_late(self, now_ns: int) -> None:
        """Wait no longer for a worker that has sent nothing for too long."""
        wanted = self._wanted
        if wanted is not None and not wanted.whole and now_ns >= wanted.until_ns:
            self._miss(Reason("keeper-late", {"name": wanted.name}))

    def exclude_time(self, paused_ns: int) -> None:
        """Extend the deadline by the time in which the lead was paused."""
        if self._wanted is not None:
            self._wanted.until_ns += paused_ns

    def over(self) -> None:
        """The cut is made or given up: forget the state."""
        if self._wanted is not None:
            self._wanted = None
            self._outbox.do(ExpectKept())

    def _miss(self, reason: Reason) -> None:
        assert self._wanted is not None
        number = self._wanted.number
        self.over()
        self._note_missing(number, reason)

    def _note_missing(self, number: int, reason: Reason) -> None:
        self._outbox.note("state-missing", number=number, **reason.noted())


def _seniority(member: Member) -> tuple[bool, int, int, str]:
    """The order in which members are asked. A worker that entered late did not take part in the
    earlier rounds, so its state may differ from the states of the others. Names are compared by
    their length first, so that worker-2 comes before worker-10."""
    entered = member.incarnation if member.late else 0
    return member.late, entered, len(member.name), member.name

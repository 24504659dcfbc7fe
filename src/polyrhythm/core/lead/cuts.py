"""Takes cuts, and makes checkpoints of them. A cut is a state of the job from which it can continue
later.

*A contribution is in every slice of a cut or in none, and the lead's record counts exactly the
contributions that are in the slices.*

With rounds, the lead takes a cut after a fold, before it sends the next `Fold`. It skips a fold
that contains some contribution on only a part of the servers, because the worker was late, and
tries the next fold.

Without rounds, the lead asks every member to withhold its next contribution, waits until no
contribution is in flight, and then takes the cut. Workers continue to compute meanwhile.
"""

from enum import Enum

import msgspec

from polyrhythm.core.effects import CommitCut, ExpectKept, SendKept
from polyrhythm.core.events import CutCommitted
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.rounds.modes import Mode
from polyrhythm.core.machine import Reason
from polyrhythm.core.model import most_nbytes
from polyrhythm.core.record import Record, RecordedWorker
from polyrhythm.core.values import Schedule, plain
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.operator import CHECKPOINT
from polyrhythm.wire.messages.reasons import Field


class _Wanted(msgspec.Struct):
    number: int
    key: tuple[int, int]
    name: str
    patience_ns: int
    until_ns: int
    whole: bool = False


class KeepingState(msgspec.Struct):
    keepers: set[tuple[int, int]] = set()
    """The members that have a state to keep."""
    served: set[tuple[int, int]] = set()
    """The members that have been sent the state from the checkpoint."""
    nbytes: int = 0
    ever: bool = False
    """Whether a worker of this job has ever had a state to keep."""
    wanted: _Wanted | None = None


class StateKeeping:
    """Decides which worker sends the state that the user's code adds to checkpoints, and how long
    the lead waits for it.

    *One worker sends the state. Of the members that have taken part since the first round, it is
    the one whose name comes first (worker-0). If all of these have left, it is the member that
    entered first. The lead accepts a state only from this worker, and only up to a limit.*

    *A state belongs to one cut. If the worker is lost before it has sent the whole state, the lead
    gives the cut up and asks the successor for the next one. If the worker is silent for too long,
    or its state cannot be kept, the lead makes the checkpoint without the state and writes this to
    the journal* (decision 054).
    """

    def __init__(self, state: KeepingState, parts: Parts) -> None:
        self._state = state
        self._view = parts.view
        self._routing = parts.routing
        self._outbox = parts.outbox

    def resume(self, nbytes: int) -> None:
        """Offer a state of this size from the checkpoint from which the job resumes."""
        self._state.nbytes = nbytes
        self._state.ever = nbytes > 0

    def on_announced(self, message: m.Keeping) -> None:
        """Note that a member has a state to keep. If it waits for the state in the checkpoint, send
        that state, once per incarnation."""
        member = self._view.get(message.worker, message.incarnation)
        if member is None:
            return
        self._state.ever = True
        self._state.keepers.add(member.key)
        if message.restore and member.key not in self._state.served:
            self._state.served.add(member.key)
            if self._state.nbytes:
                self._outbox.do(SendKept(*member.key))
            else:
                self._outbox.tell(member, m.Restored(**self._outbox.identity(member)))

    # -- for a cut -----------------------------------------------------------------------------

    def ask(self, number: int, now_ns: int, patience_ns: int) -> None:
        """Ask a member for the state that belongs to this cut."""
        members = self._view.members()
        self._state.keepers &= {member.key for member in members}
        self._state.served &= {member.key for member in members}
        keepers = [each for each in members if each.entered and each.key in self._state.keepers]
        if not keepers:
            if self._state.ever:
                self._note_missing(number, Reason("no-keeper"))
            return
        keeper = min(keepers, key=_seniority)
        until_ns = now_ns + patience_ns
        self._state.wanted = _Wanted(number, keeper.key, keeper.name, patience_ns, until_ns)
        assert self._routing.spec is not None
        most = most_nbytes(self._routing.spec)
        self._outbox.do(ExpectKept(number, keeper.worker, keeper.incarnation, most))
        self._outbox.tell(keeper, m.Keep(**self._outbox.identity(keeper), number=number))

    def on_part(self, message: m.Kept, now_ns: int) -> None:
        """Receive a part of the state, or the worker's message that says why there is no state."""
        wanted = self._state.wanted
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
        return self._state.wanted is not None and self._state.wanted.whole

    @property
    def pending(self) -> bool:
        """Whether the checkpoint must wait for the state."""
        return self._state.wanted is not None and not self._state.wanted.whole

    @property
    def lost(self) -> str | None:
        """The name of the asked worker, if it was lost before it sent the state."""
        if self._state.wanted is None or self._state.wanted.whole:
            return None
        return (
            None if self._view.get(*self._state.wanted.key) is not None else self._state.wanted.name
        )

    @property
    def wake_ns(self) -> int | None:
        return (
            self._state.wanted.until_ns if self._state.wanted is not None and self.pending else None
        )

    def give_up_late(self, now_ns: int) -> None:
        """Stop waiting for a worker that has sent nothing for too long."""
        wanted = self._state.wanted
        if wanted is not None and not wanted.whole and now_ns >= wanted.until_ns:
            self._miss(Reason("keeper-late", {"name": wanted.name}))

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadline by the time in which the lead was paused."""
        if self._state.wanted is not None:
            self._state.wanted.until_ns += paused_ns

    def over(self) -> None:
        """Forget the state, because the cut is complete or was given up."""
        if self._state.wanted is not None:
            self._state.wanted = None
            self._outbox.do(ExpectKept())

    def _miss(self, reason: Reason) -> None:
        assert self._state.wanted is not None
        number = self._state.wanted.number
        self.over()
        self._note_missing(number, reason)

    def _note_missing(self, number: int, reason: Reason) -> None:
        self._outbox.note("state-missing", number=number, **reason.noted())


def _seniority(member: Member) -> tuple[bool, int, int, str]:
    """The order in which members are asked for the state. A worker that entered late did not take
    part in the first rounds, so its state may differ from the states of the others. Names are
    compared by their length first, so that worker-2 comes before worker-10."""
    entered = member.incarnation if member.late else 0
    return member.late, entered, len(member.name), member.name


_PATIENCE_NS = 10 * 10**9
"""Members withhold contributions for at most this long, plus twice the longest compute time of a
worker."""


class _Phase(Enum):
    WITHHOLDING = "withholding"
    WRITING = "writing"
    COMMITTING = "committing"


class _Cut(msgspec.Struct):
    number: int
    began_ns: int
    phase: _Phase
    asked: bool = False
    """Whether an operator asked for this cut, and waits for the answer."""
    round: int = 0
    record: Record | None = None
    until_ns: int = 0
    told: dict[tuple[int, int], bool] = {}
    """The members that the lead has asked to withhold contributions, and whether each has
    answered."""
    untaken: set[int] = set()
    unwritten: set[int] = set()
    files: dict[int, m.FileEntry] = {}
    """Per server, the file with its part of the checkpoint."""
    kept_asked: bool = False
    """Whether a worker was asked for the state of the user's code."""


class CutsState(msgspec.Struct):
    schedule: Schedule
    number: int
    """The number of the last checkpoint."""
    keeping: KeepingState = msgspec.field(default_factory=KeepingState)
    cut: _Cut | None = None
    asked: bool = False
    """Whether a cut was requested but has not begun yet."""
    taken: bool = False
    """Whether another job writes to the same store. If so, this job makes no more
    checkpoints."""
    clocks: dict[str, RecordedWorker] = {}
    """The workers in the record of the checkpoint from which the job resumed, by their
    names."""
    longest_ns: int = 0

    @classmethod
    def begin(cls, job: m.JobSpec) -> "CutsState":
        return cls(Schedule.parse(job.checkpoint_every), job.checkpoints)


class Cuts:
    """*One cut is made at a time. The lead gives a cut up if a server is lost before it has written
    its part, or cannot write it; the next cut is made when it is due.* Servers write in the
    background. The lead's process writes the record and the manifest when all parts are written
    (decision 051) and the state of the user's code has arrived."""

    def __init__(self, state: CutsState, parts: Parts, mode: Mode) -> None:
        self._state = state
        self.keeping = StateKeeping(state.keeping, parts)
        self._schedule = state.schedule
        self._mode = mode
        self._job = parts.job
        self._view = parts.view
        self._routing = parts.routing
        self._contributions = parts.contributions
        self._rounds = parts.rounds
        self._removals = parts.removals
        self._plan = parts.plan
        self._enrolment = parts.enrolment
        self._progress = parts.progress
        self._ending = parts.ending
        self._best = parts.best
        self._sharing = parts.sharing
        self._outbox = parts.outbox
        self._operators = parts.operators

    def resume(self, record: Record, kept_nbytes: int) -> None:
        self.keeping.resume(kept_nbytes)
        self._best.resume(record.best)
        self._state.clocks = {worker.name: worker for worker in record.workers}
        self._outbox.note(
            "resumed",
            number=record.number,
            round=record.round,
            points=record.counted,
            store=self._job.resume,
        )

    # -- when ----------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether a cut is under way or may become due. If so, `advance` must be called after every
        event. A job without a store takes no cuts."""
        if self._state.cut is not None:
            return True
        return (self._state.asked or bool(self._job.checkpoint_every)) and self._mode.withholds

    @property
    def wake_ns(self) -> int | None:
        if not self._job.store or self._ending.begun or not self._opened:
            return None
        if self._state.cut is not None:
            withholding = self._state.cut.phase is _Phase.WITHHOLDING
            return self._state.cut.until_ns if withholding else self.keeping.wake_ns
        if self._state.taken or not self._mode.withholds:
            return None
        return self._schedule.wake_ns

    @property
    def _opened(self) -> bool:
        """Whether round 1 has opened: every server has the first version."""
        return self._rounds.open and not self._rounds.opening

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadlines of a cut by the time in which the lead was paused."""
        if self._state.cut is not None:
            self._state.cut.until_ns += paused_ns
        self.keeping.exclude_time(paused_ns, now_ns)

    def on_opened(self, now_ns: int) -> None:
        self._schedule.begin(self._mode.done, now_ns)

    def ask(self) -> Reason | None:
        """Ask for a cut. Returns the reason if no cut can be made, else None."""
        if not self._job.store:
            return Reason("no-store")
        if self._ending.begun:
            return Reason("ending-already")
        if self._state.taken:
            return Reason("store-taken")
        self._state.asked = True
        return None

    def on_computed(self, compute_ns: int) -> None:
        """Note how long a worker needed to compute a contribution."""
        self._state.longest_ns = max(self._state.longest_ns, compute_ns)

    def _due(self, now_ns: int) -> bool:
        never = self._state.taken or not self._job.store or self._ending.begun
        if self._state.cut is not None or never:
            return False
        return self._state.asked or self._schedule.due(self._mode.done, now_ns)

    @property
    def writers(self) -> frozenset[int]:
        """The servers that have not written their part of the cut yet."""
        cut = self._state.cut
        return frozenset() if cut is None else frozenset(cut.unwritten)

    # -- with rounds ---------------------------------------------------------------------------

    def awaits_fold(self, now_ns: int) -> bool:
        """Whether a cut is due that can be taken only after a fold."""
        return not self._mode.withholds and self._due(now_ns)

    def on_folded(self, now_ns: int) -> None:
        """Take a cut if one is due. Call this when every primary has folded and the next fold is
        not ordered yet."""
        round_ = self._rounds.round
        if round_ == 0:
            self.on_opened(now_ns)
        if not self._mode.withholds and self._due(now_ns) and not self._disturbed():
            self._begin(_Phase.WRITING, now_ns)
            self._take(now_ns)
        self._plan.settle()

    def _disturbed(self) -> bool:
        """Whether this fold cannot become a cut: slices move, or a contribution is in some slices
        only."""
        if self._routing.change is not None or self._contributions.owed:
            return True
        return self._contributions.split(self._rounds.round)

    # -- without rounds ------------------------------------------------------------------------

    def advance(self, now_ns: int) -> None:
        """Give up a cut if a server is lost that has not written its part. Without rounds: begin a
        cut that is due, and take it when no contribution is in flight any more."""
        if self._state.cut is not None and (
            lost := self._state.cut.unwritten - self._routing.roster.addresses.keys()
        ):
            self._give_up("cut-server-lost", {"server": min(lost)}, now_ns)
        if self._state.cut is not None:
            self._await_state(now_ns)
        if not self._mode.withholds:
            return
        if self._state.cut is None and self._opened and self._due(now_ns):
            begun = self._begin(_Phase.WITHHOLDING, now_ns)
            begun.until_ns = now_ns + _PATIENCE_NS + 2 * self._state.longest_ns
        cut = self._state.cut
        if cut is None or cut.phase is not _Phase.WITHHOLDING:
            return
        if self._ending.begun:
            # after the last fold, members need not withhold contributions any more
            self._state.cut = None
            self.keeping.over()
            return
        for member in self._view.members():
            if member.entered and member.key not in cut.told:
                cut.told[member.key] = False
                identity = self._outbox.identity(member)
                self._outbox.tell(member, m.Withhold(**identity, number=cut.number))
        self._ask_for_state(cut, now_ns)
        if self._quiet(cut):
            self._take(now_ns)
        elif now_ns >= cut.until_ns:
            members = [member for member in self._view.members() if member.entered]
            late = [member.worker for member in members if not self._answered(member.key)]
            self._give_up("cut-busy", {"workers": late}, now_ns)

    def _await_state(self, now_ns: int) -> None:
        """Give up the cut if the worker that was asked for the state is lost; the next cut asks its
        successor. Stop waiting for a worker that is silent for too long."""
        self.keeping.give_up_late(now_ns)
        if (name := self.keeping.lost) is not None:
            self._state.asked = not self._ending.begun
            self._give_up("keeper-lost", {"name": name}, now_ns)
        else:
            self._commit_if_written()

    def _ask_for_state(self, cut: _Cut, now_ns: int) -> None:
        """Ask for the state of the user's code. With rounds, the order comes before the release of
        the next round. Without rounds, it follows `Withhold`."""
        if not cut.kept_asked:
            cut.kept_asked = True
            self.keeping.ask(cut.number, now_ns, _PATIENCE_NS + 2 * self._state.longest_ns)

    def _answered(self, key: tuple[int, int]) -> bool:
        return self._state.cut is not None and self._state.cut.told.get(key, False)

    def _quiet(self, cut: _Cut) -> bool:
        changing = self._rounds.folding or self._removals.any or self._routing.change is not None
        if changing or self._contributions.any:
            return False
        return all(self._answered(member.key) for member in self._view.members() if member.entered)

    def on_withheld(self, message: m.Withheld) -> None:
        cut = self._state.cut
        key = (message.worker, message.incarnation)
        if cut is not None and cut.number == message.number and key in cut.told:
            cut.told[key] = True

    def _proceed(self, cut: _Cut) -> None:
        for worker, incarnation in cut.told:
            member = self._view.get(worker, incarnation)
            if member is not None:
                identity = self._outbox.identity(member)
                self._outbox.tell(member, m.Proceed(**identity, number=cut.number))
        cut.told = {}

    # -- taking and writing --------------------------------------------------------------------

    def _begin(self, phase: _Phase, now_ns: int) -> _Cut:
        self._state.number += 1
        asked, self._state.asked = self._state.asked, False
        self._schedule.begin(self._mode.done, now_ns)
        self._state.cut = _Cut(self._state.number, now_ns, phase, asked)
        return self._state.cut

    def _take(self, now_ns: int) -> None:
        cut = self._state.cut
        assert cut is not None
        cut.phase = _Phase.WRITING
        cut.round = self._mode.done
        cut.record = self._record(cut.number)
        cut.untaken = set(self._routing.primaries)
        cut.unwritten = set(self._routing.primaries)
        order = m.Cut(
            term=self._outbox.seat.term,
            view=self._view.epoch,
            routing=self._routing.epoch,
            round=self._rounds.round,
            number=cut.number,
        )
        self._outbox.tell_servers(order, self._routing.primaries)
        self._sharing.ask()
        self._ask_for_state(cut, now_ns)

    def _record(self, number: int) -> Record:
        chunks = self._enrolment.recorded()
        totals = self._progress.accounting.workers
        workers = []
        for name, worker in self._view.numbers.items():
            before, now = self._state.clocks.get(name), totals.get(worker)
            clock, points = (0, 0) if before is None else (before.clock, before.points)
            if now is not None:
                clock, points = clock + now.contributions, points + now.points
            workers.append(RecordedWorker(name=name, number=worker, clock=clock, points=points))
        return Record(
            number=number,
            round=self._mode.done,
            part=self._mode.part,
            view=self._view.epoch,
            routing=self._routing.epoch,
            seed=self._plan.seed,
            points=chunks[-1].last if chunks else 0,
            passes=min((chunk.passes for chunk in chunks), default=0),
            chunks=chunks,
            workers=tuple(workers),
            best=self._best.best,
            steps=self._progress.steps.now,
            step_workers=self._progress.steps.workers,
            first=self._progress.learning.first,
        )

    def on_taken(self, message: m.CutTaken, now_ns: int) -> None:
        cut = self._state.cut
        if cut is None or message.number != cut.number:
            return
        cut.untaken.discard(message.server)
        if message.torn:
            # give up this cut, and take another one at the next fold
            self._state.asked = True
            self._give_up("cut-torn", {"server": message.server}, now_ns)
        elif not cut.untaken:
            self._proceed(cut)

    def on_written(self, message: m.CutWritten, now_ns: int) -> None:
        cut = self._state.cut
        if cut is None or message.number != cut.number or message.server not in cut.unwritten:
            return
        if message.file is None:
            fields: dict[str, Field] = {"server": message.server, "detail": message.fault}
            self._give_up("cut-unwritten", fields, now_ns)
            return
        cut.unwritten.discard(message.server)
        cut.files[message.server] = message.file
        self._commit_if_written()

    def _commit_if_written(self) -> None:
        cut = self._state.cut
        if cut is None or cut.phase is not _Phase.WRITING:
            return
        if not cut.unwritten and not self.keeping.pending:
            cut.phase = _Phase.COMMITTING
            files = tuple(file for _, file in sorted(cut.files.items()))
            assert cut.record is not None and self._routing.spec is not None
            commit = CommitCut(cut.record, self._routing.spec, files, self.keeping.whole)
            self._outbox.do(commit)

    def on_committed(self, event: CutCommitted, now_ns: int) -> None:
        cut = self._state.cut
        if cut is None or event.number != cut.number:
            return
        self._state.taken = self._state.taken or event.taken
        if event.fault:
            code = "cut-taken" if event.taken else "cut-unwritten"
            self._give_up(code, {"detail": event.fault}, now_ns)
            return
        nbytes = event.nbytes + sum(file.nbytes for file in cut.files.values())
        made: dict[str, Field] = {"number": cut.number, "round": cut.round, "nbytes": nbytes}
        self._outbox.note("checkpoint", **made, seconds=(now_ns - cut.began_ns) / 1e9)
        if event.unkept:
            unkept = Reason("state-refused", {"detail": event.unkept})
            self._outbox.note("state-missing", number=cut.number, **unkept.noted())
        if event.unpruned:
            unpruned = Reason("cut-unwritten", {"detail": event.unpruned})
            self._outbox.note("checkpoints-kept", **unpruned.noted())
        self._state.cut = None
        self.keeping.over()
        if cut.asked and not self._state.asked:
            self._operators.done(CHECKPOINT, Reason("checkpoint-made", made))

    def _give_up(self, code: str, fields: dict[str, Field], now_ns: int) -> None:
        cut, self._state.cut = self._state.cut, None
        assert cut is not None
        self._proceed(cut)
        self.keeping.over()
        reason = Reason(code, fields)
        self._outbox.note("checkpoint-failed", number=cut.number, **reason.noted())
        if cut.asked and not self._state.asked:
            self._operators.done(CHECKPOINT, reason, failed=True)

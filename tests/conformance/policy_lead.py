"""A model of the lead for tests of sync policies: it sends events to a policy, and checks its
decisions.

`ModelLead` keeps its own record of what each worker does. It obeys the policy's decisions as the
real lead does, and raises `Violation` when a decision breaks a rule that holds for every policy.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.policy import PolicyEntry, SyncPolicy
from polyrhythm.wire.messages import ContributionReport, JobSpec

MS = 10**6
STEPS_NS = (0, 1 * MS, 40 * MS, 3_000 * MS, 200_000 * MS)
"""The possible times between two actions of the test, in nanoseconds."""
_PATIENCE = 24
"""The number of rounds of contributions or wake-ups after which every waiting worker must have been
released."""


class Violation(AssertionError):
    """A policy broke a rule of the interface."""


class State(Enum):
    JOINING = "joining"
    WAITING = "waiting"
    RUNNING = "running"
    RESTING = "resting"
    """The worker abstained under a policy without rounds, so it waits for nothing."""


class Action(Enum):
    CONTRIBUTE = 0
    CONTRIBUTE_AGAIN = 1
    """A second code for CONTRIBUTE, so that contributions are frequent."""
    ABSTAIN = 2
    JOIN = 3
    LEAVE = 4
    RETURN = 5
    ASK = 6
    OPEN = 7
    WAKE = 8
    TICK = 9
    """The test calls the policy at a time for which it has not asked to be woken."""


class Ending(Enum):
    ALL_CONTRIBUTE = 0
    OTHERS_LEAVE = 1
    ALL_LEAVE = 2


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the policy, and its answer. The answer is kept as text, because NaN does not
    equal NaN."""

    method: str
    arguments: tuple[Any, ...]
    answer: str


def drive(entry: PolicyEntry, job: JobSpec, members: int, codes: list[int], ending: Ending) -> None:
    """Send the events of `codes`, end the job, and replay all calls."""
    lead = ModelLead(entry, job)
    lead.begin(members)
    for code in codes:
        lead.act(code)
    lead.end(ending)
    replay(entry, job, lead.calls)


def replay(entry: PolicyEntry, job: JobSpec, calls: list[Call]) -> None:
    """Repeat the calls on a new policy, and check that it gives the same answers. Then repeat them
    without calls of `why`, which must not change the other answers."""
    for skipped in ("", "why"):
        policy = entry.build(job)
        for call in calls:
            if call.method == skipped:
                continue
            answer = repr(getattr(policy, call.method)(*call.arguments))
            if answer != call.answer:
                cause = " after why() was left out" if skipped else ""
                raise Violation(f"a replay{cause} answered {answer} instead of {call.answer}")


def replay_restored(entry: PolicyEntry, job: JobSpec, calls: list[Call]) -> None:
    """Repeat the calls, and replace the policy after every call by one that was decoded from it."""
    policy = entry.build(job)
    for call in calls:
        answer = repr(getattr(policy, call.method)(*call.arguments))
        if answer != call.answer:
            raise Violation(f"a restored policy answered {answer} instead of {call.answer}")
        policy = msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=type(policy))


class ModelLead:
    def __init__(self, entry: PolicyEntry, job: JobSpec) -> None:
        self.policy: SyncPolicy = entry.build(job)
        self.traits = entry.traits
        self.calls: list[Call] = []
        self.now_ns = 0
        self.wake_ns: int | None = None
        self.workers: dict[int, State] = {}
        self.next_worker = 0
        self.folded = -1
        self.version: dict[int, int] = {}
        """The version with which each worker was released last."""
        self.folding: set[int] | None = None
        """The workers that go on when the servers have folded. None while no fold is under way."""
        self.released: set[int] = set()
        """The workers that were released since `_release_all` began."""
        self.probing = False

    # -- calls of the policy -------------------------------------------------------------------

    def _call(self, method: str, *arguments: Any) -> Any:
        answer = getattr(self.policy, method)(*arguments)
        self.calls.append(Call(method, arguments, repr(answer)))
        return answer

    def begin(self, members: int) -> None:
        """The lead opens the first round by itself, so the policy may not decide anything yet."""
        for _ in range(members):
            worker = self._new_worker()
            decision = self._call("on", sync.Joined(worker), self.now_ns)
            if decision.fold or decision.release or decision.pause:
                raise Violation(f"it decided something before the first round opened: {decision}")
        self.folding = set(self.workers)
        self._open()

    def tell(self, event: sync.PolicyEvent) -> sync.Decision:
        due = self.wake_ns is not None and self.now_ns >= self.wake_ns
        decision: sync.Decision = self._call("on", event, self.now_ns)
        self.wake_ns = decision.wake_at
        _check_reason(decision.reason)
        if decision.change is not None:
            _check_reason(decision.change)
        _check_reason(self._call("why").reason)
        if isinstance(event, sync.TimePassed):
            self._check_wake_up(decision, due=due)
        if decision.pause and not self.traits.timed:
            raise Violation("it pauses the workers, but its traits are not timed")
        self._check_release(decision.release)
        if decision.fold:
            self._begin_fold(decision)
        else:
            self._check_known(decision.release)
            self._go(decision.release)
        return decision

    def _check_wake_up(self, decision: sync.Decision, *, due: bool) -> None:
        if not due and (decision.fold or decision.release or decision.pause):
            raise Violation(f"time alone decided something, without a wake-up: {decision}")
        if decision.wake_at is not None and decision.wake_at <= self.now_ns:
            raise Violation("a wake-up asks for another one at once")

    def _check_release(self, release: frozenset[int]) -> None:
        for worker in sorted(release):
            state = self.workers.get(worker)
            if state is None:
                raise Violation(f"it released w{worker}, which is not a member")
            if state not in (State.WAITING, State.JOINING) or worker in (self.folding or ()):
                raise Violation(f"it released w{worker}, which does not wait")

    def _check_known(self, release: frozenset[int]) -> None:
        for worker in sorted(release):
            if self.workers[worker] is State.JOINING:
                raise Violation(f"it released w{worker} without a fold that tells servers of it")

    def _begin_fold(self, decision: sync.Decision) -> None:
        if self.folding is not None:
            raise Violation("it decided a fold while another one is under way")
        if self.traits.rounds and not decision.release:
            raise Violation("it decided a fold that releases no worker")
        self.folding = set(decision.release)

    def _go(self, release: frozenset[int] | set[int]) -> None:
        for worker in sorted(release):
            self.workers[worker] = State.RUNNING
            self.version[worker] = self.folded
            self.released.add(worker)
            self._check_terms(self._call("terms", worker))

    def _check_terms(self, terms: sync.RoundTerms) -> None:
        traits = self.traits
        self.probing = terms.probe
        if bool(terms.interval_ns) != traits.timed:
            raise Violation(f"an interval of {terms.interval_ns} ns does not fit its traits")
        if bool(terms.steps) != traits.plans_steps:
            raise Violation(f"a plan of {terms.steps} steps does not fit its traits")
        if terms.points and not traits.gathers:
            raise Violation(f"a batch of {terms.points} points does not fit its traits")
        if min(terms.interval_ns, terms.steps) < 0 or terms.points < sync.ALL_POINTS:
            raise Violation(f"a worker cannot follow {terms}")

    # -- events ----------------------------------------------------------------------------------

    def act(self, code: int) -> None:
        """Decode one number into an action, a worker and a time step. An action that is impossible
        now is skipped."""
        code, action = divmod(code, len(Action))
        pick, step = divmod(code, len(STEPS_NS))
        self.now_ns += STEPS_NS[step]
        match Action(action):
            case Action.CONTRIBUTE | Action.CONTRIBUTE_AGAIN:
                if (worker := self._pick(State.RUNNING, pick)) is not None:
                    self._contribute(worker, pick)
            case Action.ABSTAIN:
                if (worker := self._pick(State.RUNNING, pick)) is not None:
                    self.workers[worker] = State.WAITING if self.traits.rounds else State.RESTING
                    self.tell(sync.MemberAbstained(worker))
            case Action.JOIN:
                self.tell(sync.Joined(self._new_worker()))
            case Action.LEAVE:
                if self.workers:
                    self._leave(sorted(self.workers)[pick % len(self.workers)])
            case Action.RETURN:
                if (worker := self._pick(State.RESTING, pick)) is not None:
                    self.workers[worker] = State.WAITING
                    self.tell(sync.Returned(worker))
            case Action.ASK:
                if (worker := self._pick(State.RUNNING, pick)) is not None:
                    self.tell(sync.Asked(worker))
            case Action.OPEN:
                if self.folding is not None:
                    self._open()
            case Action.WAKE:
                self._wake()
            case Action.TICK:
                self.tell(sync.TimePassed())

    def _new_worker(self) -> int:
        worker, self.next_worker = self.next_worker, self.next_worker + 1
        self.workers[worker] = State.JOINING
        return worker

    def _pick(self, state: State, pick: int) -> int | None:
        found = [worker for worker in sorted(self.workers) if self.workers[worker] is state]
        return found[pick % len(found)] if found else None

    def _contribute(self, worker: int, pick: int) -> None:
        if self.traits.asks_before_steps:
            self.workers[worker] = State.WAITING
        round_ = self._round_of(worker, pick)
        self.tell(sync.MemberContributed(worker, round_, self._report(pick)))

    def _round_of(self, worker: int, pick: int) -> int:
        """The round in which servers counted a contribution. When the lead hears of the
        contribution, the fold of that round may be under way or over."""
        open_round = self.folded + (1 if self.folding is None else 2)
        early = pick % 4 == 0
        return max(self.version[worker] + 1, open_round - 1) if early else open_round

    def _report(self, pick: int) -> ContributionReport | None:
        if pick % 7 == 6:
            return None
        return ContributionReport(
            weight=float(1 + 16 * pick),
            objective=None if pick % 5 == 4 else 1.0 / (1 + len(self.calls)),
            compute_ns=(1 + pick) * MS,
            wait_ns=pick % 3 * MS,
            transfer_ns=pick % 2 * MS,
            steps=1 + pick % 4,
            probe=1.0 / (1 + len(self.calls)) if self.probing else None,
            probe_points=32 if self.probing else 0,
            probe_ns=pick * MS if self.probing else 0,
            batch=16,
        )

    def _leave(self, worker: int) -> None:
        del self.workers[worker]
        if self.folding is not None:
            self.folding.discard(worker)
        self.tell(sync.Left(worker))

    def _open(self) -> None:
        """The servers have folded: the released workers go on, and the next round is open."""
        assert self.folding is not None
        release, self.folding = self.folding, None
        self.folded += 1
        self._go(release)
        self.tell(sync.Opened(self.folded))

    def _wake(self) -> bool:
        if self.wake_ns is None:
            return False
        self.now_ns = max(self.now_ns, self.wake_ns)
        self.tell(sync.TimePassed())
        return True

    # -- endings ---------------------------------------------------------------------------------

    def end(self, ending: Ending) -> None:
        match ending:
            case Ending.ALL_CONTRIBUTE:
                self._release_all(leave=False)
            case Ending.OTHERS_LEAVE:
                self._release_all(leave=True)
            case Ending.ALL_LEAVE:
                self._empty()
                self.tell(sync.Joined(self._new_worker()))
                self._release_all(leave=False)

    def _release_all(self, *, leave: bool) -> None:
        """Check that every waiting worker is released if all others contribute. With `leave`: if
        all others leave."""
        self.released = set()
        owed = self._in(State.WAITING, State.JOINING)
        for _ in range(_PATIENCE):
            self._finish_folds()
            owed &= self.workers.keys() - self.released
            if not owed:
                return
            running = sorted(self._in(State.RUNNING))
            for worker in running:
                if leave:
                    self._leave(worker)
                elif self.workers[worker] is State.RUNNING:
                    self.now_ns += MS
                    self._contribute(worker, 1)
                    self._finish_folds()
            if not running and self.folding is None and not self._wake():
                break
        how = "left" if leave else "contributed"
        raise Violation(f"{_names(owed)} waits for ever, though all others have {how}")

    def _empty(self) -> None:
        for worker in sorted(self.workers):
            self._leave(worker)
        for _ in range(_PATIENCE):
            if self.folding is not None:
                self._open()
            elif not self._wake():
                return
        raise Violation("it asks for wake-ups for ever, though all members have left")

    def _finish_folds(self) -> None:
        for _ in range(_PATIENCE):
            if self.folding is None:
                return
            self._open()
        raise Violation("each fold decides another one")

    def _in(self, *states: State) -> set[int]:
        return {worker for worker, state in self.workers.items() if state in states}


def _check_reason(reason: Reason) -> None:
    if not isinstance(reason, Reason) or not reason.code:
        raise Violation(f"{reason!r} has no code")
    # it must be possible to encode a reason, because reasons are sent to workers and journalled
    msgspec.json.encode(reason)


def _names(workers: set[int]) -> str:
    return ", ".join(f"w{worker}" for worker in sorted(workers))

"""BSP: fold when every member has contributed or abstained, or when the timer fires.

A worker continues after the fold. A contribution that arrives after the fold was decided counts in
the next round. The barrier does not wait for a member that died or left.
"""

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.core.sync.policy import (
    NO_WORKERS,
    USER_PACE,
    Decision,
    Joined,
    Left,
    MemberAbstained,
    MemberContributed,
    Opened,
    PolicyEntry,
    PolicyEvent,
    RoundTerms,
    Traits,
)
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Field

_WAITING = Reason("waiting")
"""The usual answer of the policy while members are missing. It does not list them, because the list
would take time at every event; `why` lists them."""


class Bsp(msgspec.Struct):
    traits: ClassVar[Traits] = Traits(
        rounds=True, kinds=frozenset({"gradient", "local", "statistics"})
    )

    _timer: Timer
    _members: set[int] = set()
    _joining: set[int] = set()
    _missing: set[int] = set()
    _arrived: set[int] = set()
    first_arrival_ns: int | None = None
    """The time of the first arrival in this round; None while no member has arrived."""
    _counted_before: set[int] = set()
    """The workers to release at once: their contribution was counted in a round whose fold had
    already been decided, before the lead knew of the contribution."""
    _folded: int = -1
    """The last round that all servers have folded."""
    _decided: int = -1
    """The last round whose fold was decided."""
    _open: bool = False
    _since_ns: int = 0
    _until_ns: int | None = None
    """When the timer fires."""
    _waiting: Decision = Decision(False, NO_WORKERS, None, _WAITING)
    """The decision to wait until the timer fires. It is made once, when the timer is set, and
    returned after every event."""

    @property
    def members(self) -> list[int]:
        """The members of the open round, or of the next round while a fold is under way."""
        return sorted(self._joining if self._folded < 0 else self._members)

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        if isinstance(event, MemberContributed) and event.round <= self._decided:
            self._counted_before.add(event.worker)
        elif isinstance(event, (MemberContributed, MemberAbstained)):
            if not self._arrived:
                self.first_arrival_ns = now_ns
            self._arrived.add(event.worker)
            self._missing.discard(event.worker)
            if self._missing and self._open and not self._counted_before:
                until_ns = self._until_ns
                if until_ns is None or now_ns < until_ns:
                    # `_evaluate` would decide the same, but a simulation of 200 workers would take
                    # about a fifth longer
                    return self._waiting
        else:
            self._update_members(event, now_ns)
            self._set_timer()
        return self._evaluate(now_ns)

    def _update_members(self, event: PolicyEvent, now_ns: int) -> None:
        match event:
            case Joined(worker):
                self._joining.add(worker)
            case Left(worker):
                for workers in (self._members, self._joining, self._arrived, self._counted_before):
                    workers.discard(worker)
                self._missing.discard(worker)
                if not self._arrived:
                    self.first_arrival_ns = None
            case Opened(round_):
                if self._folded < 0:
                    self._members, self._joining = self._joining, set()
                self._missing = self._members - self._arrived
                self._folded = self._decided = round_
                self._open = True
                self._since_ns = now_ns

    def _set_timer(self) -> None:
        """Set the timer for the open round, and prepare the decision that is returned until it
        fires."""
        length_ns = self._timer.length_ns
        runs = self._open and bool(self._members)
        self._until_ns = self._since_ns + length_ns if runs and length_ns is not None else None
        self._waiting = Decision(False, NO_WORKERS, self._until_ns, _WAITING)

    def _evaluate(self, now_ns: int) -> Decision:
        round_ = self._folded + 1
        if not self._open:
            return self._decide(NO_WORKERS, Reason("folding", {"round": round_}), fold=False)
        if self._counted_before:
            release, self._counted_before = frozenset(self._counted_before), set()
            return self._decide(release, Reason("already-in", {"round": self._folded}), fold=False)
        if not self._missing and (self._arrived or self._joining):
            code = "all-arrived" if self._arrived else "first-members"
            return self._fold(Reason(code, {"round": round_}), now_ns)
        if self._until_ns is None or now_ns < self._until_ns:
            return self._waiting
        if self._arrived:
            after_s = (now_ns - self._since_ns) / 1e9
            missing = sorted(self._missing)
            fields: dict[str, Field] = {"round": round_, "after_s": after_s, "missing": missing}
            return self._fold(Reason("timer", fields), now_ns)
        self._since_ns = now_ns
        self._set_timer()
        return self._decide(NO_WORKERS, Reason("timer-empty", {"round": round_}), fold=False)

    def fold_without_missing(
        self, decision: Decision, code: str, since_ns: int, now_ns: int
    ) -> Decision:
        """Fold without the missing members, if any member has arrived. The others have waited for
        them since `since_ns`.

        `decision` is the present decision of this barrier. The fold also releases the workers that
        `decision` releases.
        """
        if not self._open or not self._missing or not self._arrived:
            return decision
        after_s = (now_ns - since_ns) / 1e9
        missing = sorted(self._missing)
        fields: dict[str, Field] = {
            "round": self._folded + 1,
            "after_s": after_s,
            "missing": missing,
        }
        fold = self._fold(Reason(code, fields), now_ns)
        return replace(fold, release=fold.release | decision.release)

    def _fold(self, reason: Reason, now_ns: int) -> Decision:
        self._decided = self._folded + 1
        self._timer.on_measured(now_ns - self._since_ns)
        self._members |= self._joining
        release = frozenset(self._arrived | self._joining)
        self._arrived.clear()
        self.first_arrival_ns = None
        self._joining.clear()
        self._open = False
        self._since_ns = now_ns
        self._set_timer()
        return self._decide(release, reason, fold=True)

    def _decide(self, release: frozenset[int], reason: Reason, *, fold: bool) -> Decision:
        return Decision(fold, release, self._until_ns, reason)

    def terms(self, worker: int) -> RoundTerms:
        return USER_PACE

    def why(self) -> Waiting:
        if not self._open:
            reason = Reason("folding", {"round": self._folded + 1})
        else:
            missing = sorted(self._missing)
            reason = Reason("round", {"round": self._folded + 1, "missing": missing})
        return Waiting(reason, self._since_ns, self._until_ns)


def _build(job: JobSpec) -> Bsp:
    return Bsp(Timer.parse(job.timer))


BSP = PolicyEntry("bsp", "every worker waits for all others in each round", Bsp.traits, _build)

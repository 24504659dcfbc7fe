"""The best model: with `--keep-best accuracy`, the version with the highest accuracy that a worker
reported is kept in a file of its own, beside the final model. Any other metric can take the place of
the accuracy; `core/metrics.py` says whether its highest or its lowest value is the best.

*With rounds, the version that was evaluated is kept, if the servers still have it when the report
arrives: each server copies its parameters at once, before the next fold, and the copies are collected
while training goes on. If the servers do not have that version any more, or if the worker had made
local steps when it evaluated, the version after the next fold is kept instead; if no fold follows
because the job ends, the last version is kept. Without rounds, each server copies its parameters when
the lead's order arrives.* One file is written at a time. A better report that comes while a file is
written waits until that file is complete. Which version is kept then depends, as above, on the version
that the servers have at that moment.
"""

import msgspec

from polyrhythm.core import events as ev
from polyrhythm.core.lead.outbox import TERM, LeadOutbox
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import RoutingTable
from polyrhythm.core.lead.saving import Saving
from polyrhythm.core.machine import Reason
from polyrhythm.core.metrics import parse_best
from polyrhythm.core.model_files import BEST
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire import messages as m


class _Due(msgspec.Struct):
    """A report with a better value than all before it, for which no copy of the model has been made
    yet."""

    evaluated: int
    """The round of the version that was evaluated; -1 if the worker had made local steps."""
    followed: bool = False
    """Whether a fold has followed the report."""


class KeepBest:
    def __init__(
        self, job: m.JobSpec, routing: RoutingTable, rounds: Rounds, outbox: LeadOutbox
    ) -> None:
        self._metric, self._lowest = "", False
        if job.keep_best:
            self._metric, self._lowest = parse_best(job.keep_best, job.targets)
        self._by_rounds = traits_of(job.sync).rounds
        self._routing = routing
        self._rounds = rounds
        self._outbox = outbox
        self._saving = Saving(routing, outbox, first=2)
        self.best: float | None = None
        """The best value that was reported, also before the checkpoint from which the job
        resumed."""
        self._due: _Due | None = None
        self._copied: tuple[float, int, bool] = (0.0, 0, False)
        """The copies that are being collected: their value, their round (counted with the rounds
        before a resume), and whether they are the version that was evaluated."""
        self._evaluated = -1
        """The round of the version whose evaluation led to these copies."""

    @property
    def active(self) -> bool:
        """Whether the file of the best model is being written."""
        return self._saving.active

    @property
    def wake_ns(self) -> int | None:
        return self._saving.wake_ns

    # In the methods below, `done` is the number of rounds (without rounds: round equivalents) that
    # the job has done, and `last` says that the job ends, so no further fold may come.

    def reported(self, message: m.Report, done: int, now_ns: int, *, last: bool) -> None:
        value = message.metrics.get(self._metric) if self._metric else None
        if value is None or not self._better(value):
            return
        self.best, self._due = value, _Due(message.round)
        self._copy_if_due(done, now_ns, last=last)

    def _better(self, value: float) -> bool:
        if self.best is None:
            return True
        return value < self.best if self._lowest else value > self.best

    def folded(self, done: int, now_ns: int) -> None:
        """Every primary has folded, and the next fold is not ordered yet."""
        if self._due is not None:
            self._due.followed = True
            self._copy_if_due(done, now_ns, last=False)

    def _copy_if_due(self, done: int, now_ns: int, *, last: bool) -> None:
        """Copy the present version if a better report waits for it."""
        due = self._due
        if due is None:
            return
        exact = self._by_rounds and due.evaluated == self._rounds.round
        if exact or due.followed or last or not self._by_rounds:
            self._copy(done, now_ns, exact=exact)

    def _copy(self, done: int, now_ns: int, *, exact: bool) -> None:
        """Let every server copy its parameters, unless slices move or a fold is under way. `exact`:
        this is the version that was evaluated."""
        routing, rounds = self._routing, self._rounds
        if not rounds.open or rounds.folding or routing.change is not None or self.active:
            return
        due = self._due
        assert self.best is not None and due is not None
        self._due = None
        self._copied = (self.best, done, exact)
        self._evaluated = due.evaluated
        number = self._saving.next
        capture = m.Capture(term=TERM, routing=routing.epoch, number=number)
        self._outbox.tell_servers(capture, routing.primaries)
        self._saving.begin(BEST, done, now_ns, copied=True)

    # -- the file ------------------------------------------------------------------------------

    def stored(self, event: ev.SliceStored, now_ns: int) -> None:
        self._saving.stored(event, now_ns)

    def saved(self, event: ev.ModelSaved, done: int, now_ns: int, *, last: bool) -> bool:
        """A model file is complete. Returns False if it is not the file of the best model."""
        if self._saving.saved(event, now_ns) is None:
            return False
        value, round_, exact = self._copied
        fields = {"value": value, "metric": self._metric, "round": round_, "exact": exact}
        self._outbox.note("best", path=event.path, nbytes=event.nbytes, **fields)
        self._copy_if_due(done, now_ns, last=last)
        return True

    def failed(self, event: ev.SavingFailed, done: int, now_ns: int, *, last: bool) -> bool:
        """A model file could not be written. Returns False if it is not the file of the best
        model."""
        fault = self._saving.failed(event, now_ns)
        if fault is not None:
            self._note_failure(fault)
            self._copy_if_due(done, now_ns, last=last)
        return fault is not None

    def tick(self, done: int, now_ns: int, *, last: bool) -> None:
        if (fault := self._saving.overdue(now_ns)) is not None:
            self._note_failure(fault)
            self._copy_if_due(done, now_ns, last=last)

    def exclude_time(self, paused_ns: int) -> None:
        """Extend the deadline by the time in which the lead was paused."""
        self._saving.exclude_time(paused_ns)

    def rerouted(self, done: int, now_ns: int, *, last: bool) -> None:
        """Slices have new primaries, which have no copies: give up the file, and copy again."""
        if self.active:
            self._note_failure(self._saving.abandon(Reason("moved")))
            if self._due is None:
                self._due = _Due(self._evaluated)
        self._copy_if_due(done, now_ns, last=last)

    def lose(self, reason: Reason) -> None:
        """Slices are lost, so the file of the best model cannot be completed: give it up."""
        if self.active:
            self._note_failure(self._saving.abandon(reason))

    def _note_failure(self, fault: Reason) -> None:
        self._outbox.note("best-not-saved", **fault.noted())

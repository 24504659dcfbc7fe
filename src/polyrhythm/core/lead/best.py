"""The best model: with `--keep-best accuracy`, the version with the highest accuracy that a worker
reported is kept in a file of its own, beside the final model.

*With rounds, the version that was evaluated is kept, if the servers still have it when the report
arrives: each server copies its parameters at once, before the next fold, and the copies are
collected while training goes on. If the servers do not have that version any more, or if the worker
had made local steps when it evaluated, the version after the next fold is kept instead. Without
rounds, each server copies its parameters when the lead's order arrives.* One file is written at a
time. A better report that comes while a file is written waits for the next fold.
"""

from polyrhythm.core import events as ev
from polyrhythm.core.lead.outbox import TERM, LeadOutbox
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import Routing
from polyrhythm.core.lead.saving import BEST, Saving
from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire import messages as m

ACCURACY = "accuracy"


class KeepBest:
    def __init__(
        self, job: m.JobSpec, routing: Routing, rounds: Rounds, outbox: LeadOutbox
    ) -> None:
        self._measure = job.keep_best
        self._by_rounds = traits_of(job.sync).rounds
        self._routing = routing
        self._rounds = rounds
        self._outbox = outbox
        self._saving = Saving(routing, outbox, first=2)
        self.best: float | None = None
        """The highest accuracy that was reported, also before the checkpoint from which the job
        resumed."""
        self._due = False
        """A better accuracy was reported, and no copy was made since then."""
        self._copied: tuple[float, int, bool] = (0.0, 0, False)
        """The copies that are being collected: their accuracy, their round, and whether they are
        the version that was evaluated."""

    @property
    def active(self) -> bool:
        """Whether a file is being written."""
        return self._saving.active

    @property
    def wake_ns(self) -> int | None:
        return self._saving.wake_ns

    def reported(self, message: m.Report, now_ns: int) -> None:
        value = message.metrics.get(self._measure) if self._measure else None
        if value is None or (self.best is not None and value <= self.best):
            return
        self.best, self._due = value, True
        here = message.round == self._rounds.round
        if here or not self._by_rounds:
            self._copy(now_ns, exact=here and self._by_rounds)

    def folded(self, now_ns: int) -> None:
        """Every primary has folded, and the next fold is not ordered yet."""
        if self._due:
            self._copy(now_ns, exact=False)

    def _copy(self, now_ns: int, *, exact: bool) -> None:
        """Let every server copy its parameters, unless slices move or a fold is under way. `exact`:
        this is the version that was evaluated."""
        routing, rounds = self._routing, self._rounds
        if not rounds.open or rounds.folding or routing.change is not None or self.active:
            return
        assert self.best is not None
        self._due = False
        self._copied = (self.best, rounds.round, exact)
        number = self._saving.next
        capture = m.Capture(term=TERM, routing=routing.epoch, number=number)
        self._outbox.tell_servers(capture, routing.primaries)
        self._saving.begin(BEST, rounds.round, now_ns, copied=True)

    # -- the file ------------------------------------------------------------------------------

    def stored(self, event: ev.SliceStored, now_ns: int) -> None:
        self._saving.stored(event, now_ns)

    def saved(self, event: ev.ModelSaved, now_ns: int) -> bool:
        """A model file is complete. Returns False if it is not the file of the best model."""
        if self._saving.saved(event, now_ns) is None:
            return False
        value, round_, exact = self._copied
        self._outbox.note(
            "best", path=event.path, nbytes=event.nbytes, value=value, round=round_, exact=exact
        )
        if self._due and not self._by_rounds:
            self._copy(now_ns, exact=False)
        return True

    def failed(self, event: ev.SavingFailed) -> bool:
        """A model file could not be written. Returns False if it is not the file of the best
        model."""
        fault = self._saving.failed(event)
        if fault is not None:
            self._note_failure(fault)
        return fault is not None

    def tick(self, now_ns: int) -> None:
        if (fault := self._saving.overdue(now_ns)) is not None:
            self._note_failure(fault)

    def rerouted(self) -> None:
        """Slices have new primaries, which have no copies: give up the file, and copy again."""
        if self.active:
            self._note_failure(self._saving.abandon(Reason("moved")))
            self._due = True

    def lose(self, reason: Reason) -> None:
        """Slices are lost: give up the file."""
        if self.active:
            self._note_failure(self._saving.abandon(reason))

    def _note_failure(self, fault: Reason) -> None:
        self._outbox.note("best-not-saved", **fault.noted())

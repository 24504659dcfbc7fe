"""The model files of a job: the trained model, which is written when the job ends (`Saving`), and
the best model (`KeepBest`, `--keep-best`)."""

from collections.abc import Collection

import msgspec

from polyrhythm.core import events as ev
from polyrhythm.core.effects import CommitModel, CreateModel, DiscardModel
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.rounds.folds import Rounds
from polyrhythm.core.lead.rounds.sharing import Sharing
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.machine import Deadline, Reason, Waiting
from polyrhythm.core.metrics import parse_best
from polyrhythm.core.model import BEST
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import Field

_AT_ONCE = 4
"""The most slices that a server is asked for before one of them is stored."""
_PATIENCE_NS = 60 * 10**9
"""If no slice is written to the model file for this long, the lead gives the file up."""
_COMMIT_NS = 600 * 10**9
"""How long the disk may take to store the file durably."""
_AGAIN_NS = 5 * 10**9
"""How long the lead waits before it tries again to write a model."""


class SavingState(msgspec.Struct):
    next: int = 1
    """The number of the next file. Two objects write files, one for the trained and one for the
    best model. Each counts in steps of two, so they never use the same number."""
    number: int = 0
    copied: bool = False
    file: str = ""
    round: int = 0
    to_store: bool = False
    """Whether the file is written to the job's store."""
    fault: str = ""
    """Why the last file could not be written to the folder of the run."""
    held: Reason | None = None
    """Why the servers hold the final model until it can be written; None if nothing prevents the
    writing."""
    rests: bool = False
    """Whether no file is being written, because the last attempt has failed."""
    missing: set[int] = set()
    asked: dict[int, tuple[int, int]] = {}
    """Per missing slice, the server that was asked for it, with its incarnation."""
    copies: dict[int, tuple[int, int]] = {}
    """Per missing slice, the server that has copied it, with its incarnation. Empty if the servers
    send their present parameters."""
    began_ns: int = 0
    active: bool = False
    deadline: Deadline = msgspec.field(default_factory=Deadline)
    """When the lead gives the file up unless it writes another slice before. While the servers hold
    the model: when the lead tries again."""


class Saving:
    """When a job ends, the process of the lead writes the trained model to a file in the folder of
    the run.

    *Every primary sends the parameters of its slices to the lead's process, a few slices at a time,
    so this process never holds a second copy of the model. Each slice is stored once. If a server
    is lost meanwhile, the lead asks its replica for the missing slices. The job ends when the file
    has its final name, or when the lead gives the file up: slices are lost, or no slice is stored
    for a long time.*

    *A full or failing disk does not end the job. The servers hold the model, and the lead tries to
    write it to the job's store, then in turn to the folder and to the store, until it succeeds or a
    user requests a stop.*
    """

    def __init__(
        self,
        state: SavingState,
        routing: RoutingTable,
        outbox: LeadOutbox,
        *,
        has_store: bool = False,
    ) -> None:
        """`has_store`: the job has a store."""
        self._state = state
        self._routing = routing
        self._outbox = outbox
        self._has_store = has_store

    @property
    def next(self) -> int:
        """The number of the next file."""
        return self._state.next

    @property
    def active(self) -> bool:
        return self._state.active

    @property
    def to_store(self) -> bool:
        """Whether the file is written to the job's store."""
        return self._state.to_store

    @property
    def held(self) -> Reason | None:
        """Why the servers hold the final model until it can be written; None if nothing prevents
        the writing."""
        return self._state.held

    def begin(self, file: str, round_: int, now_ns: int, *, copied: bool = False) -> None:
        """Begin to write the model of this round. `copied`: training continues, so the servers send
        copies that they have made. Otherwise the job is over, and they send their parameters."""
        self._state.active = True
        self._state.file, self._state.round, self._state.copied = file, round_, copied
        self._state.began_ns = now_ns
        self._attempt(now_ns, to_store=False)

    def _attempt(self, now_ns: int, *, to_store: bool) -> None:
        routing = self._routing
        assert routing.spec is not None
        self._state.number, self._state.next = self._state.next, self._state.next + 2
        self._state.to_store, self._state.rests = to_store, False
        self._state.missing = set(range(len(routing.routes)))
        self._state.asked = {}
        self._state.copies = {}
        if self._state.copied:
            primaries = {slice_: route.primary for slice_, route in enumerate(routing.routes)}
            self._state.copies = {
                slice_: (server, routing.roster.incarnations[server])
                for slice_, server in primaries.items()
            }
        self._state.deadline.wake_ns = now_ns + _PATIENCE_NS
        last = not self._state.copied
        create = CreateModel(
            self._state.number,
            self._state.file,
            routing.spec,
            self._state.round,
            last=last,
            to_store=to_store,
        )
        self._outbox.do(create)
        self.ask()

    @property
    def senders(self) -> frozenset[int]:
        """The servers with copies of slices that the file still lacks."""
        copies = self._state.copies if self._state.active else {}
        return frozenset(server for server, _ in copies.values())

    @property
    def lacks_copies(self) -> bool:
        """Whether a server with copies is lost."""
        incarnations = self._routing.roster.incarnations
        return any(
            server not in self._routing.roster.addresses or incarnations[server] != incarnation
            for server, incarnation in self._state.copies.values()
        )

    def lacks_slices_of(self, servers: Collection[int]) -> bool:
        """Whether the file lacks slices whose primary is one of these servers."""
        missing = self._state.missing if self._state.active else ()
        return any(self._routing.routes[slice_].primary in servers for slice_ in missing)

    def ask(self) -> None:
        """Ask servers for the slices that the file lacks. *Copies stay on the server that made
        them, even if their slices move. Servers do not send present parameters while slices change
        their primary*, so call this again when every server applies the new routes."""
        copied = self._state.copied
        if not self._state.active or not self._state.missing:
            return
        if self._routing.change is not None and not copied:
            return
        routes, incarnations = self._routing.routes, self._routing.roster.incarnations
        wanted: dict[int, list[int]] = {}
        busy: dict[int, int] = {}
        for slice_ in sorted(self._state.missing):
            server = self._state.copies[slice_][0] if copied else routes[slice_].primary
            if server not in self._routing.roster.addresses:
                continue  # the server's copies are lost, so the caller gives the file up
            if self._state.asked.get(slice_) == (server, incarnations[server]):
                busy[server] = busy.get(server, 0) + 1
            else:
                wanted.setdefault(server, []).append(slice_)
        for server, slices in wanted.items():
            some = slices[: max(0, _AT_ONCE - busy.get(server, 0))]
            if some:
                self._state.asked.update(dict.fromkeys(some, (server, incarnations[server])))
                collect = m.Collect(
                    term=self._outbox.seat.term,
                    routing=self._routing.epoch,
                    number=self._state.number,
                    slices=tuple(some),
                    copied=self._state.copied,
                )
                self._outbox.tell_servers(collect, (server,))

    def on_stored(self, event: ev.SliceStored, now_ns: int) -> None:
        if (
            not self._state.active
            or event.number != self._state.number
            or event.slice not in self._state.missing
        ):
            return
        self._state.missing.remove(event.slice)
        self._state.asked.pop(event.slice, None)
        self._state.copies.pop(event.slice, None)
        self._state.deadline.wake_ns = now_ns + (
            _PATIENCE_NS if self._state.missing else _COMMIT_NS
        )
        if self._state.missing:
            self.ask()
        else:
            self._outbox.do(CommitModel(self._state.number))

    def on_saved(self, event: ev.ModelSaved, now_ns: int) -> float | None:
        """Note that a model file is complete. Returns how many seconds it took; None if the file
        belongs to another object."""
        if not self._state.active or event.number != self._state.number:
            return None
        self._over()
        return (now_ns - self._state.began_ns) / 1e9

    def on_failed(self, event: ev.SavingFailed, now_ns: int) -> Reason | None:
        """Note that a model file could not be written. Returns the reason if the lead gives the
        file up; None if it tries again, or if the message is about another attempt or file."""
        if not self._state.active or event.number != self._state.number:
            return None
        if self._state.to_store:
            self._hold(" and ".join(filter(None, (self._state.fault, event.detail))), now_ns)
            return None
        self._state.fault = event.detail
        if self._state.copied or not event.again:
            return self._give_up(Reason("not-written", {"detail": event.detail}))
        if self._has_store:
            self._attempt(now_ns, to_store=True)
        else:
            self._hold(event.detail, now_ns)
        return None

    def _hold(self, detail: str, now_ns: int) -> None:
        """Try again later: neither the folder nor the store can be written. Until then, the servers
        hold the model."""
        before, self._state.held = self._state.held, Reason("model-held", {"detail": detail})
        if self._state.held != before:
            self._outbox.note("model-held", **self._state.held.noted())
        self._state.missing, self._state.asked, self._state.rests = set(), {}, True
        self._state.deadline.wake_ns = now_ns + _AGAIN_NS

    def abandon(self, reason: Reason) -> Reason:
        """Give up the file because slices are lost."""
        self._outbox.do(DiscardModel(self._state.number))
        return self._give_up(reason)

    def overdue(self, now_ns: int) -> Reason | None:
        """Returns why the lead gives the model up, if it has written nothing for too long; else
        None. If the servers hold a model that could not be written, the lead tries again
        instead."""
        if not self._state.deadline.is_over(now_ns):
            return None
        if self._state.rests:
            self._attempt(now_ns, to_store=False)
            return None
        self._outbox.do(DiscardModel(self._state.number))
        return self._give_up(Reason("no-progress", {"servers": self._late()}))

    def _give_up(self, reason: Reason) -> Reason:
        self._over()
        return reason

    def _over(self) -> None:
        self._state.active = False
        self._state.copies = {}
        self._state.deadline.wake_ns = None

    def _late(self) -> list[int]:
        """The servers that owe a slice: the lead has asked for it, and it is not stored yet."""
        return sorted({server for server, _ in self._state.asked.values()})

    def waiting(self) -> Waiting:
        if self._state.rests and self._state.held is not None:
            return Waiting(self._state.held, self._state.began_ns)
        if self._state.missing:
            fields: dict[str, Field] = {"servers": self._late(), "left": len(self._state.missing)}
            return Waiting(Reason("collecting", fields), self._state.began_ns)
        return Waiting(Reason("saving"), self._state.began_ns)


class _Due(msgspec.Struct):
    """A report with a better value than all earlier ones, before the model is copied."""

    evaluated: int
    """The round of the version that was evaluated; -1 if the worker had made local steps."""
    followed: bool = False
    """Whether a fold has followed the report."""


class BestState(msgspec.Struct):
    saving: SavingState
    best: float | None = None
    """The best value that was reported, including values before the checkpoint from which the job
    resumed."""
    due: _Due | None = None
    copied: tuple[float, int, bool] = (0.0, 0, False)
    """The copies that the lead collects: their value, their round (including the rounds before a
    resume), and whether they are exactly the evaluated version."""
    evaluated: int = -1
    """The round of the version whose evaluation led to these copies."""


class KeepBest:
    """Keeps the best model. With `--keep-best accuracy`, the version with the highest accuracy that
    a worker reported is kept in a file beside the final model. Instead of the accuracy, any other
    metric can be used; `core/metrics.py` says whether its highest or its lowest value is the best.

    *With rounds, the job keeps the evaluated version if the servers still have it when the report
    arrives. Each server copies its parameters at once, before the next fold, and the lead collects
    the copies while training continues. If the servers no longer have that version, or the worker
    made local steps before it evaluated, the job keeps the version after the next fold, or the last
    version if no fold follows. Without rounds, each server copies its parameters when the lead's
    order arrives.*

    The lead writes one file at a time. A better report that arrives meanwhile waits until the file
    is complete. Then the same rule decides which version is kept for it.
    """

    def __init__(
        self,
        state: BestState,
        job: m.JobSpec,
        routing: RoutingTable,
        rounds: Rounds,
        outbox: LeadOutbox,
        sharing: Sharing,
    ) -> None:
        self._state = state
        self._sharing = sharing
        self._metric, self._lowest = "", False
        if job.keep_best:
            self._metric, self._lowest = parse_best(job.keep_best, job.targets)
        self._by_rounds = traits_of(job.sync).rounds
        self._routing = routing
        self._rounds = rounds
        self._outbox = outbox
        self._saving = Saving(state.saving, routing, outbox)

    @property
    def best(self) -> float | None:
        """The best value that was reported; None if no value was reported."""
        return self._state.best

    def resume(self, best: float | None) -> None:
        """Continue from a checkpoint before which this was the best value."""
        self._state.best = best

    @property
    def active(self) -> bool:
        """Whether the file of the best model is being written."""
        return self._saving.active

    @property
    def senders(self) -> frozenset[int]:
        """The servers with copies of the best model that its file still lacks."""
        return self._saving.senders

    # In the methods below, `done` is the number of rounds (without rounds: round equivalents) that
    # the job has done, and `last` says that the job ends, so no further fold may come.

    def on_reported(self, message: m.Report, done: int, now_ns: int, *, last: bool) -> None:
        value = message.metrics.get(self._metric) if self._metric else None
        if value is None or not self._better(value):
            return
        self._state.best, self._state.due = value, _Due(message.round)
        self._copy_if_due(done, now_ns, last=last)

    def _better(self, value: float) -> bool:
        if self.best is None:
            return True
        return value < self.best if self._lowest else value > self.best

    def on_folded(self, done: int, now_ns: int) -> None:
        """Copy the present version if copies are due. Call this when every primary has folded and
        the next fold is not ordered yet."""
        if self._state.due is not None:
            self._state.due.followed = True
            self._copy_if_due(done, now_ns, last=False)

    def on_shared(self, done: int, now_ns: int, *, last: bool) -> None:
        """Make the copies that have waited for a worker to share the present version."""
        self._copy_if_due(done, now_ns, last=last)

    def _copy_if_due(self, done: int, now_ns: int, *, last: bool) -> None:
        """Copy the present version if a report of a better value waits for a copy, and this version
        is the evaluated one or a later one."""
        due = self._state.due
        if due is None:
            return
        exact = self._by_rounds and due.evaluated == self._rounds.round
        if exact or due.followed or last or not self._by_rounds:
            self._copy(done, now_ns, exact=exact)

    def _copy(self, done: int, now_ns: int, *, exact: bool) -> None:
        """Let every server copy its parameters, unless slices move or a fold is under way. `exact`:
        this is the evaluated version."""
        routing, rounds = self._routing, self._rounds
        if not rounds.open or rounds.folding or routing.change is not None or self.active:
            return
        if not self._sharing.ask():
            return  # the servers copy the parameters once a worker has shared them
        due = self._state.due
        assert self.best is not None and due is not None
        self._state.due = None
        self._state.copied = (self.best, done, exact)
        self._state.evaluated = due.evaluated
        number = self._saving.next
        capture = m.Capture(term=self._outbox.seat.term, routing=routing.epoch, number=number)
        self._outbox.tell_servers(capture, routing.primaries)
        self._saving.begin(BEST, done, now_ns, copied=True)

    # -- the file ------------------------------------------------------------------------------

    def on_stored(self, event: ev.SliceStored, now_ns: int) -> None:
        self._saving.on_stored(event, now_ns)

    def on_saved(self, event: ev.ModelSaved, done: int, now_ns: int, *, last: bool) -> bool:
        """Note that a model file is complete. Returns False if it is not the file of the best
        model."""
        if self._saving.on_saved(event, now_ns) is None:
            return False
        value, round_, exact = self._state.copied
        fields = {"value": value, "metric": self._metric, "round": round_, "exact": exact}
        self._outbox.note("best", path=event.path, nbytes=event.nbytes, **fields)
        self._copy_if_due(done, now_ns, last=last)
        return True

    def on_failed(self, event: ev.SavingFailed, done: int, now_ns: int, *, last: bool) -> bool:
        """Note that a model file could not be written. Returns False if it is not the file of the
        best model."""
        fault = self._saving.on_failed(event, now_ns)
        if fault is not None:
            self._note_failure(fault)
            self._copy_if_due(done, now_ns, last=last)
        return fault is not None

    def tick(self, done: int, now_ns: int, *, last: bool) -> None:
        if (fault := self._saving.overdue(now_ns)) is not None:
            self._note_failure(fault)
            self._copy_if_due(done, now_ns, last=last)

    def on_rerouted(self, done: int, now_ns: int, *, last: bool) -> None:
        """Continue now that every server applies the new routes. If a server with copies is lost,
        give the file up and copy again. Copies of slices that have moved stay where they are."""
        if self.active and self._saving.lacks_copies:
            self._note_failure(self._saving.abandon(Reason("copies-lost")))
            if self._state.due is None:
                self._state.due = _Due(self._state.evaluated)
        self._copy_if_due(done, now_ns, last=last)

    def lose(self, reason: Reason) -> None:
        """Give up the file of the best model: slices are lost, so the file cannot become
        complete."""
        if self.active:
            self._note_failure(self._saving.abandon(reason))

    def _note_failure(self, fault: Reason) -> None:
        self._outbox.note("best-not-saved", **fault.noted())

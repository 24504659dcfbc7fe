"""The trained model: when a job ends, the lead's process writes the model to a file in the run's
folder.

*Every primary sends the parameters of its slices to the lead's process, a few slices at a time, so
that this process never holds a second copy of the model. Each slice is stored once. If a server is
lost meanwhile, its replica is asked for the slices that are missing. The job ends when the file has
its final name, or when the file is given up: slices are lost, or no slice is stored for a long time.*

*A full or failing disk does not end the job: the servers hold the model, and the lead tries to write
it to the job's store, and then again and again to the folder and to the store, until that succeeds or
a stop is requested.*
"""

from polyrhythm.core import events as ev
from polyrhythm.core.effects import CommitModel, CreateModel, DiscardModel
from polyrhythm.core.lead.outbox import TERM, LeadOutbox
from polyrhythm.core.lead.routing import RoutingTable
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import Field

_AT_ONCE = 4
"""The number of slices that a server is asked for before one of them is stored."""
_PATIENCE_NS = 60 * 10**9
"""If no slice is written to the model file for this long, the lead gives the file up."""
_COMMIT_NS = 600 * 10**9
"""How long the disk may take to make the file durable."""
_AGAIN_NS = 5 * 10**9
"""How long the lead waits before it tries again to write a model that could not be written."""


class Saving:
    def __init__(
        self,
        routing: RoutingTable,
        outbox: LeadOutbox,
        first: int = 1,
        *,
        has_store: bool = False,
    ) -> None:
        """`first`: the number of the first file. Numbers rise in steps of two, so that two objects
        of this class never use the same number. `has_store`: the job has a store."""
        self._routing = routing
        self._outbox = outbox
        self.next = first
        """The number of the next file."""
        self._number = 0
        self._copied = False
        self._has_store = has_store
        self._file = ""
        self._round = 0
        self.to_store = False
        """Whether the file is written to the job's store."""
        self._fault = ""
        """Why the last file could not be written to the folder of the run."""
        self.held: Reason | None = None
        """Why the servers hold the final model until it can be written; None if nothing has
        prevented that."""
        self._rests = False
        """Whether no file is being written, because the last attempt has failed a moment ago."""
        self._missing: set[int] = set()
        self._asked: dict[int, tuple[int, int]] = {}
        """Per missing slice, the server that was asked for it, with its incarnation."""
        self._began_ns = 0
        self.active = False
        self.wake_ns: int | None = None
        """When the lead gives the file up, unless a further slice is written before that. While
        the model is held: when the lead tries again."""

    def begin(self, file: str, round_: int, now_ns: int, *, copied: bool = False) -> None:
        """Begin to write the model of this round. `copied`: training goes on, and the servers send
        copies that they have made; otherwise the job is over."""
        self.active = True
        self._file, self._round, self._copied = file, round_, copied
        self._began_ns = now_ns
        self._attempt(now_ns, to_store=False)

    def _attempt(self, now_ns: int, *, to_store: bool) -> None:
        routing = self._routing
        assert routing.spec is not None
        self._number, self.next = self.next, self.next + 2
        self.to_store, self._rests = to_store, False
        self._missing = set(range(len(routing.routes)))
        self._asked = {}
        self.wake_ns = now_ns + _PATIENCE_NS
        last = not self._copied
        create = CreateModel(
            self._number, self._file, routing.spec, self._round, last=last, to_store=to_store
        )
        self._outbox.do(create)
        self.ask()

    def ask(self) -> None:
        """Ask for slices that are missing. This does nothing while slices change their primary:
        call it again when every server applies the new routes."""
        if not self.active or not self._missing or self._routing.change is not None:
            return
        routes, incarnations = self._routing.routes, self._routing.incarnations
        wanted: dict[int, list[int]] = {}
        busy: dict[int, int] = {}
        for slice_ in sorted(self._missing):
            server = routes[slice_].primary
            if self._asked.get(slice_) == (server, incarnations[server]):
                busy[server] = busy.get(server, 0) + 1
            else:
                wanted.setdefault(server, []).append(slice_)
        for server, slices in wanted.items():
            some = slices[: max(0, _AT_ONCE - busy.get(server, 0))]
            if some:
                self._asked.update(dict.fromkeys(some, (server, incarnations[server])))
                collect = m.Collect(
                    term=TERM,
                    routing=self._routing.epoch,
                    number=self._number,
                    slices=tuple(some),
                    copied=self._copied,
                )
                self._outbox.tell_servers(collect, (server,))

    def stored(self, event: ev.SliceStored, now_ns: int) -> None:
        if not self.active or event.number != self._number or event.slice not in self._missing:
            return
        self._missing.remove(event.slice)
        self._asked.pop(event.slice, None)
        self.wake_ns = now_ns + (_PATIENCE_NS if self._missing else _COMMIT_NS)
        if self._missing:
            self.ask()
        else:
            self._outbox.do(CommitModel(self._number))

    def saved(self, event: ev.ModelSaved, now_ns: int) -> float | None:
        """A model file is complete. Returns how many seconds it took; None if the file belongs to
        another object."""
        if not self.active or event.number != self._number:
            return None
        self._over()
        return (now_ns - self._began_ns) / 1e9

    def failed(self, event: ev.SavingFailed, now_ns: int) -> Reason | None:
        """A model file could not be written. Returns the reason if the file is given up; None if
        the lead tries again, or if the file belongs to another object."""
        if not self.active or event.number != self._number:
            return None
        if self.to_store:
            self._hold(" and ".join(filter(None, (self._fault, event.detail))), now_ns)
            return None
        self._fault = event.detail
        if self._copied or not event.again:
            return self._give_up(Reason("not-written", {"detail": event.detail}))
        if self._has_store:
            self._attempt(now_ns, to_store=True)
        else:
            self._hold(event.detail, now_ns)
        return None

    def _hold(self, detail: str, now_ns: int) -> None:
        """Neither the folder nor the store can be written: try again later. Until then, the servers
        hold the model."""
        before, self.held = self.held, Reason("model-held", {"detail": detail})
        if self.held != before:
            self._outbox.note("model-held", **self.held.noted())
        self._missing, self._asked, self._rests = set(), {}, True
        self.wake_ns = now_ns + _AGAIN_NS

    def abandon(self, reason: Reason) -> Reason:
        """Give up the file because slices are lost."""
        self._outbox.do(DiscardModel(self._number))
        return self._give_up(reason)

    def overdue(self, now_ns: int) -> Reason | None:
        """Why the model is not saved, if there was no progress for too long; else None. Tries again
        to write a model that is held."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return None
        if self._rests:
            self._attempt(now_ns, to_store=False)
            return None
        self._outbox.do(DiscardModel(self._number))
        return self._give_up(Reason("no-progress", {"servers": self._late()}))

    def exclude_time(self, paused_ns: int) -> None:
        if self.wake_ns is not None:
            self.wake_ns += paused_ns

    def _give_up(self, reason: Reason) -> Reason:
        self._over()
        return reason

    def _over(self) -> None:
        self.active = False
        self.wake_ns = None

    def _late(self) -> list[int]:
        """The servers that were asked for slices that are not stored yet."""
        return sorted({server for server, _ in self._asked.values()})

    def waiting(self) -> Waiting:
        if self._rests and self.held is not None:
            return Waiting(self.held, self._began_ns)
        if self._missing:
            fields: dict[str, Field] = {"servers": self._late(), "left": len(self._missing)}
            return Waiting(Reason("collecting", fields), self._began_ns)
        return Waiting(Reason("saving"), self._began_ns)

"""The server's machine. It holds slices and follows the lead's orders; only the lead decides when a
round ends.

The runtime adds and folds slices. The machine keeps track of versions and their readers, and
reports to the lead. `modes` contains what depends on rounds, and `failover` what happens when
routes change.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.effects import (
    STAYS,
    Beat,
    CopyParameters,
    Drop,
    End,
    Note,
    SendParameters,
    TakeCut,
)
from polyrhythm.core.liveness import Heartbeat, LeadWatch
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.names import server_number, worker_name, worker_number
from polyrhythm.core.seat import Seat
from polyrhythm.core.senders import LEAD_TO_SERVER
from polyrhythm.core.server.admission import PeerAdmission, QuietLinks
from polyrhythm.core.server.failover import Failover
from polyrhythm.core.server.leases import Versions
from polyrhythm.core.server.modes import choose_mode
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m

_ORDERS = frozenset({*LEAD_TO_SERVER, m.Alive})


class ServerMachine:
    def __init__(self, server: int, job: m.JobSpec) -> None:
        self.server = server
        self.job = job
        self.state, self.mode = choose_mode(server, job)
        self._failover = Failover(self.state, self.mode)
        self._admission = PeerAdmission(server, job.workers)
        self._quiet = QuietLinks(job.heartbeat_s)
        self._collects: list[m.Collect] = []
        """The lead's requests for parameters that this server cannot answer yet."""
        self._ended = False
        self._waiting_cut: m.Cut | None = None
        """A cut of a version whose state no worker has shared yet."""
        self._waiting_fold: m.Fold | None = None
        """A fold that was ordered while the server copies the slices of a cut."""
        self._heartbeat = Heartbeat()
        self._lead = LeadWatch()
        """Watches the heartbeats of the lead. A server in the lead's own process does not need it:
        the two live and stop together."""

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        state = self.state
        state.out = []
        handler = self._HANDLERS.get(type(event))
        if handler is None or self._ended:
            return state.out
        if type(event) not in _ORDERS or not state.seat.outranks(event):
            handler(self, event, now_ns)
        return state.out

    def wake_at(self) -> int | None:
        if self._ended:
            return None
        wake_ns = self._heartbeat.next_ns
        for other_ns in (self._lead.wake_ns, self._admission.wake_ns):
            if other_ns is not None and (wake_ns is None or other_ns < wake_ns):
                wake_ns = other_ns
        return wake_ns

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        if self._heartbeat.due(now_ns):
            alive = m.Alive(**self.state.identity(), sequence=self._lead.beats)
            self.state.out.append(Beat(alive))
            self._report_silent_links(now_ns)
        self.state.out += self._admission.overdue(now_ns)
        self._note(self._lead.look(now_ns))
        if (lost := self._lead.lost(now_ns)) is not None:
            self._end(lost, failed=True)

    @property
    def seat(self) -> Seat:
        """Where the lead runs, as far as this server knows."""
        return self.state.seat

    @property
    def versions(self) -> Versions:
        return self.state.versions

    def check(self) -> None:
        state = self.state
        state.versions.check()
        state.replication.check()
        folding = state.folding
        if folding is not None and folding.round < state.versions.version:
            raise InvariantBroken("a fold has a lower round than the present version")

    def why(self) -> Waiting:
        if (waiting := self._lead.waiting()) is not None:
            return waiting
        return Waiting(self._reason(), self.state.since_ns)

    def _reason(self) -> Reason:
        state = self.state
        if not state.mine or self._failover.unseeded:
            return Reason("placing")
        round_ = self.versions.version + 1
        if state.epoch.place is not None:
            late = sorted(self._failover.partners.absent) or [self.server]
            return Reason("rerouting", {"servers": late})
        if state.replication.pending:
            late = list(state.replication.late_peers)
            return Reason("copying", {"servers": late})
        if state.folding is not None:
            return Reason("folding", {"round": round_})
        missing = list(state.acks.missing())
        if not missing:
            return Reason("order-missing", {"round": round_})
        return Reason("round", {"round": round_, "missing": missing})

    # -- the lead's heartbeats -----------------------------------------------------------------

    def _on_lead_linked(self, event: ev.LeadLinked, now_ns: int) -> None:
        self._note(self._lead.begin(event.heartbeat_s, event.timeout_s, now_ns))

    def _on_alive(self, message: m.Alive, now_ns: int) -> None:
        self._note(self._lead.hear(now_ns, beat=True))

    def _on_lead_heard(self, event: ev.LeadHeard, now_ns: int) -> None:
        self._note(self._lead.hear(now_ns))

    def _note(self, note: Note | None) -> None:
        if note is not None:
            self.state.out.append(note)

    # -- silent links --------------------------------------------------------------------------

    def _on_links_quiet(self, event: ev.LinksQuiet, now_ns: int) -> None:
        self._quiet.look(event.peers, now_ns)

    def _report_silent_links(self, now_ns: int) -> None:
        """Report to the lead the peers whose links to this server are silent. A server is reported
        only if slices are copied to or from it."""
        for (peer, incarnation), silent_s in self._quiet.silent(now_ns):
            server = server_number(peer)
            if server is None or self._failover.partners.wants(server, incarnation):
                self.state.tell_lead(
                    m.Unreachable(
                        **self.state.identity(),
                        peer=peer,
                        peer_incarnation=incarnation,
                        silent_s=silent_s,
                    )
                )

    # -- routes and replicas -------------------------------------------------------------------

    def _on_place(self, message: m.Place, now_ns: int) -> None:
        state = self.state
        state.seat = state.seat.after(message)
        if message.routing <= state.epoch.routing:
            return
        state.since_ns = now_ns
        if self._heartbeat.next_ns is None:
            self._heartbeat.begin(self.job.heartbeat_s, now_ns)
        state.out += self._admission.on_named(message.servers)
        state.epoch.set_out(message)
        # new routes wait while a fold writes to the slices or a cut copies them
        if not state.writing and not state.cutting:
            self._failover.follow()

    def _on_server_called(self, event: ev.ServerCalled, now_ns: int) -> None:
        called = (event.link, event.server, event.incarnation)
        self.state.out += self._admission.on_server_hello(*called, now_ns)

    def _on_worker_called(self, event: ev.WorkerCalled, now_ns: int) -> None:
        called = (event.link, event.worker, event.incarnation)
        self.state.out += self._admission.on_worker_hello(*called, now_ns)

    def _on_operator_called(self, event: ev.OperatorCalled, now_ns: int) -> None:
        self.state.out += self._admission.on_operator_hello(event.link)

    def _on_introduced(self, message: m.Introduced, now_ns: int) -> None:
        self.state.out += self._admission.on_introduced(message.worker, message.incarnation)

    def _on_linked(self, event: ev.Linked, now_ns: int) -> None:
        self._failover.partners.came(event.server, event.incarnation)
        self._failover.place_if_ready()

    def _on_rerouted(self, event: ev.Rerouted, now_ns: int) -> None:
        self._failover.on_rerouted(event, now_ns)
        self._send_parameters()

    def _on_state_adopted(self, event: ev.StateAdopted, now_ns: int) -> None:
        self._failover.on_state_adopted(event)

    def _on_step_copied(self, event: ev.StepCopied, now_ns: int) -> None:
        self._failover.on_step_copied(event)

    def _on_fetch(self, message: m.Fetch, now_ns: int) -> None:
        self._failover.fetch(message)

    def _on_copied(self, message: m.Copied, now_ns: int) -> None:
        self._failover.confirm(message, now_ns, adopted=False)

    def _on_adopted(self, message: m.Adopted, now_ns: int) -> None:
        self._failover.confirm(message, now_ns, adopted=True)

    def _on_drain_asked(self, event: ev.DrainAsked, now_ns: int) -> None:
        """Ask the lead to drain this server, because it wants to leave. The lead answers with
        `Stop` or `Stays`."""
        self.state.tell_lead(m.Drain(**self.state.identity()))

    def _on_stays(self, message: m.Stays, now_ns: int) -> None:
        self.state.out.append(Note(STAYS, message.reason.noted()))

    # -- contributions and folds ---------------------------------------------------------------

    def _on_contributed(self, event: ev.Contributed, now_ns: int) -> None:
        if self.state.acks.members.get(event.worker) == event.incarnation:
            self.mode.on_contributed(event)

    def _on_repeated(self, event: ev.Repeated, now_ns: int) -> None:
        """Repeat the acknowledgement of a contribution, if this server has sent one. The worker has
        sent the contribution again because it received none."""
        state = self.state
        if not state.is_member(event.worker, event.incarnation):
            return
        if state.acks.acknowledged(event.worker) >= event.sequence:
            state.acknowledge(event.worker, event.sequence)

    def _on_fold(self, message: m.Fold, now_ns: int) -> None:
        state = self.state
        if state.folding is not None:
            return
        if state.cutting:
            self._waiting_fold = message
            return
        self._waiting_cut = None
        state.view = message.view
        state.since_ns = now_ns
        if self.mode.is_folded(message):
            state.tell_lead(m.Folded(**state.identity(), round=message.round))
            return
        state.enlist(message.members)
        state.epoch.introduced = None
        state.folding = message
        self.mode.fold(message, now_ns)

    def _on_fold_done(self, event: ev.FoldDone, now_ns: int) -> None:
        state = self.state
        if state.folding is None or event.round != state.folding.round:
            return
        state.writing = False
        self.mode.on_folded(event, now_ns)
        if state.epoch.changing:
            self._failover.follow()
        self._failover.answer_fetches()
        self._send_parameters()

    # -- the model -----------------------------------------------------------------------------

    def _on_collect(self, message: m.Collect, now_ns: int) -> None:
        """Send the parameters of slices to the lead's process, after a fold or a change of routes
        that is under way. If the lead asks for copies, send them at once."""
        if message.copied:
            send = SendParameters(message.number, message.slices, copied=True)
            self.state.out.append(send)
        else:
            self._collects.append(message)
            self._send_parameters()

    def _on_capture(self, message: m.Capture, now_ns: int) -> None:
        """Copy the parameters. The lead orders this only between two folds and while no slice
        moves."""
        self.state.out.append(CopyParameters(message.number))

    def _send_parameters(self) -> None:
        state = self.state
        if not self._collects or state.writing or state.epoch.changing or not state.has_state:
            return
        self.mode.freeze()
        for collect in self._collects:
            slices = tuple(s for s in collect.slices if s in state.mine)
            if slices:  # the lead requests slices that have moved from their new primary
                state.out.append(SendParameters(collect.number, slices))
        self._collects.clear()

    # -- cuts ----------------------------------------------------------------------------------

    def _on_cut(self, message: m.Cut, now_ns: int) -> None:
        state = self.state
        if state.cutting or state.writing:
            fault = "the slices of the previous checkpoint were still being copied"
            self._on_cut_stored(ev.CutStored(message.number, fault=fault), now_ns)
            return
        if not state.has_state:
            self._waiting_cut = message
            return
        state.cutting = message.number
        state.out.append(TakeCut(message.number, message.round))

    def _on_cut_copied(self, event: ev.CutCopied, now_ns: int) -> None:
        state = self.state
        if event.number != state.cutting:
            return
        state.cutting = 0
        state.tell_lead(m.CutTaken(**state.identity(), number=event.number, torn=event.torn))
        # A waiting fold comes before waiting routes. With rounds, the lead ordered the fold before
        # it sent the routes, and the fold contains contributions to the present slices. Its members
        # are as new as those in the routes.
        fold, self._waiting_fold = self._waiting_fold, None
        if fold is not None:
            self._on_fold(fold, now_ns)
        if state.epoch.changing and not state.writing:
            self._failover.follow()
        self._failover.answer_fetches()

    def _on_cut_stored(self, event: ev.CutStored, now_ns: int) -> None:
        written = m.CutWritten(
            **self.state.identity(),
            number=event.number,
            file=event.file,
            fault=event.fault,
        )
        self.state.tell_lead(written)

    # -- parameters and state that only workers have -------------------------------------------

    def _on_state_held(self, event: ev.StateHeld, now_ns: int) -> None:
        """Tell the lead that a worker has shared the state of the present version, and perform what
        waited for that."""
        state = self.state
        stale = event.round != state.versions.version or event.routing < state.epoch.since
        if stale or state.folding is not None:
            return
        state.shared = event.round
        state.tell_lead(m.Holding(**state.identity(), round=event.round))
        cut, self._waiting_cut = self._waiting_cut, None
        if cut is not None:
            self._on_cut(cut, now_ns)
        self._send_parameters()
        for pull in list(state.leases.pulls.values()):
            self.mode.answer(pull)

    # -- readers -------------------------------------------------------------------------------

    def _on_pull(self, message: m.Pull, now_ns: int) -> None:
        if not self.state.is_member(message.worker, message.incarnation):
            return
        if message.pulled >= 0:
            self.mode.release(message.worker, message.pulled)
        self.mode.answer(message)

    def _on_pulled(self, message: m.Pulled, now_ns: int) -> None:
        if self.state.leases.names_this_server(message.worker):
            self.mode.release(message.worker, message.round)

    def _on_sent(self, event: ev.Sent, now_ns: int) -> None:
        self.mode.on_sent(event.workers, event.round)

    # -- ends ----------------------------------------------------------------------------------

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        if event.peer == self.seat.name:
            self._end(Reason("lead-gone", {"detail": event.detail}), failed=True)
            return
        self._admission.hung_up(event.peer)
        server = server_number(event.peer)
        if server is not None:
            self._failover.on_link_closed(server, event)
        worker = worker_number(event.peer)
        if worker is None or 0 < event.incarnation < self.state.acks.members.get(worker, 0):
            return  # the link of a server has ended, or that of an earlier incarnation of a worker
        self._forget_reader(worker)

    def _on_dismissed(self, message: m.Dismissed, now_ns: int) -> None:
        if self._admission.admitted(message.worker) == message.incarnation:
            gone = Drop(worker_name(message.worker), Reason("not-woken"))
            self.state.out.append(gone)
            self._forget_reader(message.worker)

    def _forget_reader(self, worker: int) -> None:
        self.state.leases.pulls.pop(worker, None)
        self.mode.forget(worker)

    def _on_stop(self, message: m.Stop, now_ns: int) -> None:
        self._end(message.reason, failed=message.failed)

    def _end(self, reason: Reason, *, failed: bool) -> None:
        self._ended = True
        self.state.out.append(End(reason, failed))

    _HANDLERS: ClassVar[dict[type, Callable[["ServerMachine", Any, int], None]]] = {
        ev.Tick: _on_tick,
        ev.LinksQuiet: _on_links_quiet,
        ev.DrainAsked: _on_drain_asked,
        ev.LeadLinked: _on_lead_linked,
        ev.LeadHeard: _on_lead_heard,
        m.Alive: _on_alive,
        m.Place: _on_place,
        ev.ServerCalled: _on_server_called,
        ev.WorkerCalled: _on_worker_called,
        ev.OperatorCalled: _on_operator_called,
        m.Introduced: _on_introduced,
        m.Dismissed: _on_dismissed,
        ev.Linked: _on_linked,
        ev.Rerouted: _on_rerouted,
        ev.StateAdopted: _on_state_adopted,
        ev.StepCopied: _on_step_copied,
        m.Fetch: _on_fetch,
        m.Copied: _on_copied,
        m.Adopted: _on_adopted,
        ev.SliceSeeded: lambda server, event, now_ns: server._failover.on_slice_seeded(event),
        ev.Contributed: _on_contributed,
        ev.Repeated: _on_repeated,
        m.Fold: _on_fold,
        ev.FoldDone: _on_fold_done,
        m.Cut: _on_cut,
        ev.CutCopied: _on_cut_copied,
        ev.CutStored: _on_cut_stored,
        ev.StateHeld: _on_state_held,
        m.Pull: _on_pull,
        m.Pulled: _on_pulled,
        ev.Sent: _on_sent,
        ev.LinkClosed: _on_link_closed,
        m.Collect: _on_collect,
        m.Capture: _on_capture,
        m.Stays: _on_stays,
        m.Stop: _on_stop,
    }

"""The lead coordinates a job: it decides who is a member, which server holds which slice, and when
servers fold.

The lead never handles tensors. Servers and workers report to it; it asks the sync policy and sends
orders. It is a separate machine even in a job with one server. This module has the table of the
events and the parts that handle them. Each part has its own file, which states its rule
(`parts.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.lead.cuts import Cuts
from polyrhythm.core.lead.data.leasing import Leasing
from polyrhythm.core.lead.deadlines import Deadlines
from polyrhythm.core.lead.members.lifecycle import Lifecycle
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.operator_requests import OperatorRequests
from polyrhythm.core.lead.overtime import Overtime
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.rounds.counting import Counting
from polyrhythm.core.lead.rounds.modes import connect_mode
from polyrhythm.core.lead.servers.broken_links import Separation
from polyrhythm.core.lead.state import LeadState, begin_state, connect, decode_state, encode_state
from polyrhythm.core.lead.waiting import WaitReport
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.names import server_name, server_number, worker_name, worker_number
from polyrhythm.core.placement.division import resume_division
from polyrhythm.core.placement.schemes import MEASURING
from polyrhythm.core.seat import FIRST_SEAT, Seat
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.values import plain, plain_reason
from polyrhythm.wire import messages as m


class LeadMachine:
    def __init__(
        self,
        job: m.JobSpec,
        seat: Seat = FIRST_SEAT,
        state: LeadState[sync.SyncPolicy] | None = None,
    ) -> None:
        """`seat`: the server in which this lead runs, and its term. `state`: the state from which
        the lead continues (see `snapshot`); None for a new job."""
        self.job = job
        state = self._state = begin_state(job) if state is None else state
        self.parts = parts = connect(job, state, seat)
        """What the lead knows and decides, part by part. Tests ask the parts."""
        self.view = parts.view
        self._admission = parts.admission
        self._opening = parts.opening
        self._routing = parts.routing
        self._network = parts.network
        self._link_report = parts.link_report
        self._contributions = parts.contributions
        self._rounds = parts.rounds
        self._removals = parts.removals
        self._plan = parts.plan
        self._migration = parts.migration
        self._enrolment = parts.enrolment
        self._outbox = parts.outbox
        self._operators = parts.operators
        self._servers = parts.servers
        self._progress = parts.progress
        self._saving = parts.saving
        self._best = parts.best
        self._placement = parts.placement
        self._broken = parts.broken
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._folds = parts.folds
        self._sharing = parts.sharing
        self._mode = connect_mode(state.mode, parts)
        self._leasing = Leasing(parts, self._mode)
        self._counting = Counting(state.counting, parts, self._mode, self._leasing)
        self._lifecycle = Lifecycle(state.lifecycle, parts, self._mode)
        self._waiting = WaitReport(state.waiting, parts, self._mode)
        self._cuts = Cuts(state.cuts, parts, self._mode)
        self._takes_cuts = bool(job.store)
        self._measures = job.placement in MEASURING
        self._requests = OperatorRequests(parts, self._mode, self._lifecycle, self._cuts)
        self._overtime = Overtime(parts, self._mode, self._lifecycle)
        self._deadlines = Deadlines(state.pauses, parts.outbox)
        self._register_deadlines(parts, state)

    @classmethod
    def restore(cls, job: m.JobSpec, snapshot: bytes, seat: Seat = FIRST_SEAT) -> "LeadMachine":
        """Build a lead that continues from this snapshot of another lead. The job's options must be
        the same."""
        return cls(job, seat, decode_state(job, snapshot))

    def snapshot(self) -> bytes:
        """Everything that the lead remembers between two events."""
        return encode_state(self._state)

    def _register_deadlines(self, parts: Parts, state: LeadState[sync.SyncPolicy]) -> None:
        register = self._deadlines.register
        workers, servers = self._lifecycle.suspicion, parts.servers.suspicion
        limit, removals, broken = parts.progress.goals.limit, parts.removals, parts.broken
        register(workers.deadline, self._lifecycle.evict_silent, workers.exclude_time)
        self._deadlines.register_without_deadline(broken.expire, broken.exclude_time)
        register(state.saving.deadline, self._give_up_saving)
        register(state.best.saving.deadline)
        register(servers.deadline, self._suspect_servers, servers.exclude_time)
        register(limit.deadline, self._end_overtime, limit.exclude_time)
        register(state.enrolment.deadline, self._leasing.on_time)
        register(removals.deadline, self._lifecycle.on_removals_due, removals.exclude_time)
        register(parts.stopping.deadline, self._end_stopping)
        if self._takes_cuts:
            register(self._cuts)
        register(parts.opening.deadline, self._open_after_timeout)

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        effects: list[Effect] = []
        self._outbox.out, ending = effects, self._state.ending
        if ending.over:
            return effects
        if self._takes_cuts and self._cuts.active:
            # this event may come before the tick that would detect a pause
            self._deadlines.exclude_pause(now_ns)
        handler = self._HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event, now_ns)
        if self._takes_cuts and self._cuts.active and not ending.over:
            self._cuts.advance(now_ns)
        return effects

    def wake_at(self) -> int | None:
        ending, rounds = self._state.ending, self._rounds
        if ending.over:
            return None
        wake_ns = self._deadlines.wake_ns
        if not rounds.open or ending.decided:
            return wake_ns  # the policy has no say here
        policy_ns = rounds.wake_ns
        if wake_ns is None or policy_ns is None:
            return policy_ns if wake_ns is None else wake_ns
        return min(wake_ns, policy_ns)

    def why(self) -> Waiting:
        return self._waiting.why()

    def check(self) -> None:
        self._plan.check()
        self._migration.check()
        self._routing.check()
        self._contributions.check(self._lifecycle.accepts)
        if not self._routing.moving:
            self._rounds.check(self._routing.primaries)

    # -- processes join ------------------------------------------------------------------------

    def _on_server_hello(self, event: ev.ServerHelloReceived, now_ns: int) -> None:
        fault = self._admission.fault(event.hello)
        if fault is not None:
            self._outbox.refuse(event.link, fault)
        elif self._servers.join(event.link, event.hello, now_ns) and self._routing.roster.gathered:
            resumes = self._routing.resumes
            if resumes is not None and self._routing.spec is None:
                self._servers.place(resumes)
            for link, hello in self._admission.open():
                self._admit(link, hello, now_ns)

    def _on_worker_hello(self, event: ev.WorkerHelloReceived, now_ns: int) -> None:
        fault = self._admission.fault(event.hello)
        if fault is not None:
            self._outbox.refuse(event.link, fault)
        elif self._routing.roster.gathered:
            self._admit(event.link, event.hello, now_ns)
        else:
            self._admission.wait(event.link, event.hello)

    def _admit(self, link: str, hello: m.WorkerHello, now_ns: int) -> None:
        if self._lifecycle.admit(link, hello, now_ns):
            self._deadlines.watch_for_pauses(now_ns)

    # -- members -------------------------------------------------------------------------------

    def _on_sized(self, message: m.ModelSize, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is not None:
            division = self._servers.divide(message.nbytes)
            self._outbox.tell(member, m.Divided(**self._outbox.identity(member), division=division))

    def _on_attach(self, message: m.Attach, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is not None:
            self._lifecycle.on_attach(member, message.spec, now_ns)

    def _on_data(self, message: m.Enrol | m.Delivered, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is not None and isinstance(message, m.Enrol):
            fault = self._leasing.on_enrol(message, member, now_ns)
            if fault is not None:
                self._lifecycle.refuse(member, fault, now_ns)
        elif member is not None and isinstance(message, m.Delivered):
            self._leasing.on_delivered(message, member, now_ns)

    def _on_report(self, message: m.Report, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        fault = self._progress.report(member, message)
        if fault is not None:
            self._lifecycle.refuse(member, fault, now_ns)
        elif not self._ending.decided:
            self._best.on_reported(message, self._mode.done, now_ns, last=self._ending.begun)

    def _on_leave(self, message: m.Leave, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        reason, failed = plain_reason(message.reason), message.failed
        self._lifecycle.leave(member, reason, now_ns, failed=failed, rejoins=message.rejoins)
        self._advance_between_folds(now_ns)

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        self._admission.on_link_closed(event.peer)
        self._operators.on_link_closed(event.peer)
        server, worker = server_number(event.peer), worker_number(event.peer)
        member = self.view.at(worker) if worker is not None else None
        if server is not None:
            fatal = self._servers.on_link_ended(server, event.incarnation, event.detail, now_ns)
            self._end_if_fatal(fatal, now_ns)
        elif member is not None and event.incarnation in (0, member.incarnation):
            self._lifecycle.remove(member, Reason("link-ended", {"detail": event.detail}), now_ns)
        elif worker is not None and self._removals.on_link_ended(worker, event.incarnation, now_ns):
            self._lifecycle.end_if_deserted(now_ns)
        self._advance_between_folds(now_ns)

    def _on_peers_heard(self, event: ev.PeersHeard, now_ns: int) -> None:
        for peer, incarnation in event.peers:
            server, worker = server_number(peer), worker_number(peer)
            if server is not None and self._servers.present(server, incarnation):
                self._servers.suspicion.hear(server, now_ns)
            elif worker is not None and self.view.get(worker, incarnation) is not None:
                self._lifecycle.suspicion.hear(worker, now_ns)

    # -- contributions -------------------------------------------------------------------------

    def _on_trailer(self, message: m.Trailer, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None and not self._removals.is_pending(message.worker, message.incarnation):
            return
        if member is not None and not member.entered:
            return  # a worker cannot contribute before it has entered
        self._lifecycle.suspicion.hear(message.worker, now_ns)
        fault = None if member is None else self._lifecycle.fault(member, message)
        if member is not None and fault is not None:
            self._lifecycle.refuse(member, fault, now_ns)
        else:
            if self._takes_cuts:
                self._cuts.on_computed(message.report.compute_ns)
            if self._measures:
                self._network.on_contribution(worker_name(message.worker))
            self._counting.on_trailer(message, member, now_ns)

    def _on_arrived(self, message: m.Arrived, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is not None or self._removals.is_pending(message.worker, message.incarnation):
            done = None if self._mode.promotes_in_folds else self._mode.done
            if self._measures:
                self._placement.on_arrived(message.server, now_ns)
            self._counting.on_arrived(message, member, now_ns)
            if done is not None and self._mode.done > done:
                self._reassign(now_ns)

    def _on_abstained(self, message: m.Abstained, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        if (fault := self._lifecycle.fault(member, message)) is not None:
            self._lifecycle.refuse(member, fault, now_ns)
        else:
            self._counting.on_abstained(message, member, now_ns)

    def _on_asking(self, message: m.Asking, now_ns: int) -> None:
        if self.view.get(message.worker, message.incarnation) is not None:
            self._mode.ask(sync.Asked(message.worker), now_ns)

    # -- folds ---------------------------------------------------------------------------------

    def _on_folded(self, message: m.Folded, now_ns: int) -> None:
        if not self._mode.on_folded(message):
            return
        if self._moves_in_fold(now_ns):
            self._rounds.keep_open()
        else:
            self._after_fold(now_ns)

    def _moves_in_fold(self, now_ns: int) -> bool:
        """With rounds: promote replicas whose copies are ready, now that every primary has folded.
        At this moment no contribution is in flight, and the workers will get the new routes before
        they are released, so they send no contribution twice. Returns True if the fold must wait
        for the routes. *No slice moves in a fold that becomes a cut.*"""
        first = self._rounds.round == 0
        if not self._mode.promotes_in_folds or first or self._ending.begun:
            return False
        self._routing.on_round(now_ns)
        return not self._cuts.awaits_fold(now_ns) and self._advance(now_ns, promotes=True)

    def _after_fold(self, now_ns: int) -> None:
        """After a fold by every primary: end the job, or release the members."""
        self._contributions.on_folded(self._rounds.round)
        self._sharing.on_folded()
        if self._network.settle(now_ns):
            self._link_report.on_settled(now_ns)
        removed = self._removals.on_view_known()
        self._counting.forget(removed)
        self._mode.on_closed(now_ns)
        if self._ending.goal is None:
            self._lifecycle.end_if_lost(now_ns)
        if self._ending.decided or self._rounds.folding:
            return
        self._best.on_folded(self._mode.done, now_ns)
        if self._ending.goal is not None:
            if self.job.save_model or self._stopping.at_once:
                self._sharing.ask()
            self._lifecycle.send_stop(self._ending.goal, self._folds, now_ns)
            return
        self._cuts.on_folded(now_ns)
        self._leasing.on_folded(removed, now_ns)
        self._folds.release(self._rounds.release, self._rounds.readers)
        opened = self._rounds.round
        self._mode.ask(sync.Opened(opened), now_ns)
        if opened == 0:
            self._lifecycle.enter_attached(now_ns)
        self._mode.end_if_idle(now_ns)
        self._mode.on_released(now_ns)
        if self._mode.promotes_in_folds:
            self._reassign(now_ns)
        self._advance_between_folds(now_ns)

    def _on_holding(self, message: m.Holding, now_ns: int) -> None:
        if self._sharing.on_holding(message):
            self._best.on_shared(self._mode.done, now_ns, last=self._ending.begun)
            self._mode.resume(now_ns)

    # -- servers -------------------------------------------------------------------------------

    def _end_if_fatal(self, fatal: Reason | None, now_ns: int) -> None:
        """End the job if it cannot continue without a server that was lost. `fatal`: the reason in
        that case, otherwise None."""
        if fatal is not None:
            self._ending.finish(fatal, self._mode.done, now_ns, failed=True, lost=True)

    def _on_unreachable(self, message: m.Unreachable, now_ns: int) -> None:
        server = server_number(message.peer)
        if message.worker >= 0:
            self._on_unopened(message, now_ns)
        elif message.silent_s:
            self._on_silent_link(message, now_ns)
        elif server is not None:
            incarnation, detail = message.peer_incarnation, message.detail
            fatal = self._servers.on_unreachable(
                message.server, server, incarnation, detail, now_ns
            )
            self._end_if_fatal(fatal, now_ns)

    def _on_silent_link(self, message: m.Unreachable, now_ns: int) -> None:
        """Handle the report of a server that nothing arrives over an open link to a worker or
        another server."""
        worker, server = worker_number(message.peer), server_number(message.peer)
        member = None if worker is None else self.view.get(worker, message.peer_incarnation)
        if member is not None and member.attached:
            heard_ns = self._lifecycle.suspicion.pulse(member.worker).heard_ns
        elif server is not None and self._servers.present(server, message.peer_incarnation):
            heard_ns = self._servers.heard_ns(server)
        else:
            return  # the report is about an earlier incarnation of the peer
        if self._ending.decided or not self._servers.present(message.server):
            return
        separation = self._broken.on_silent(message, heard_ns, now_ns)
        if separation is None or separation.leaves is None:
            return
        if member is not None and separation.leaves == message.peer:
            self._lifecycle.exclude(member, message.server, now_ns)
        else:
            self._lose_cut_off(separation, now_ns)

    def _on_unopened(self, message: m.Unreachable, now_ns: int) -> None:
        """Handle the report of a worker that rejoins and cannot connect to a server."""
        member = self.view.get(message.worker, message.incarnation)
        server = server_number(message.peer)
        if member is None or server is None or member.attached or self._ending.begun:
            return
        if not self._servers.present(server, message.peer_incarnation):
            self._lifecycle.call_for_servers(member, now_ns)
            return
        detail = plain(message.detail)
        fields = {"worker": member.worker, "name": member.name, "server": server}
        self._outbox.note("unopened", **fields, detail=detail)
        separation = self._broken.on_unopened(member.worker, server, now_ns)
        if separation is not None:
            self._lose_cut_off(separation, now_ns)

    def _lose_cut_off(self, separation: Separation, now_ns: int) -> None:
        server = None if separation.leaves is None else server_number(separation.leaves)
        if server is not None:
            self._end_if_fatal(self._servers.lose(server, separation.reason, now_ns), now_ns)

    def _on_caught_up(self, message: m.CaughtUp, now_ns: int) -> None:
        if self._servers.on_caught_up(message, now_ns):
            self._mode.on_learned(now_ns)

    def _advance(self, now_ns: int, *, promotes: bool) -> bool:
        busy = self._cuts.writers | self._best.senders
        return self._servers.advance(now_ns, promotes=promotes, busy=busy)

    def _advance_between_folds(self, now_ns: int) -> None:
        """Let slices take their next steps between two folds. With rounds, slices normally get new
        primaries only in the middle of a fold. Without members there are no folds, so they get them
        here."""
        if not self._ending.begun and not self._rounds.folding:
            in_folds = self._mode.promotes_in_folds and len(self.view) > 0
            self._advance(now_ns, promotes=not in_folds and not self._sharing.only_on_servers)

    def _reassign(self, now_ns: int) -> None:
        """Adopt a new assignment of slices to servers if the gain exceeds its cost."""
        if not self._ending.begun and self._placement.on_folded(self._mode.done, now_ns):
            self._advance_between_folds(now_ns)

    def _on_placed(self, message: m.Placed, now_ns: int) -> None:
        if not self._servers.on_placed(message, now_ns):
            return
        if self._routing.change is not None:
            self._after_rerouting(now_ns)
        else:
            for member in self.view.all_attached():
                self._outbox.route(member)

    def _on_seeded(self, message: m.Seeded, now_ns: int) -> None:
        self._routing.on_seeded(message)
        self._lifecycle.open_if_ready(now_ns)

    def _after_rerouting(self, now_ns: int) -> None:
        """Tell the members about the new routes, which every server applies now, and continue with
        everything that waited for them."""
        change, rows, versions = self._servers.on_followed(now_ns)
        news = change.promoted or change.joined or change.lost or change.left
        for member in self.view.all_attached():
            if news or not member.routed:
                self._outbox.route(member, self._secured(member))
        for server in change.left:
            self._servers.dismiss(server)
        if change.promoted:
            self._sharing.on_promoted()
            self._recount(rows, versions, now_ns)
            self._lifecycle.end_if_lost(now_ns)
            if (lost := self._sharing.lost) is not None:
                self._ending.lose_parameters(lost, change.promoted)
        self._mode.resume(now_ns)
        self._advance_between_folds(now_ns)
        if not self._rounds.open:
            self._lifecycle.open_if_ready(now_ns)
        elif not self._rounds.opening:
            self._lifecycle.enter_attached(now_ns)
        self._ending.on_rerouted(self._mode.done, now_ns)

    def _secured(self, member: Member) -> int:
        """The last contribution of a member that is in every slice and in every copy of a slice."""
        return self._contributions.secured(*member.key, self._rounds.folded)

    def _recount(
        self,
        rows: Mapping[int, tuple[m.Row, ...]],
        versions: Mapping[int, int],
        now_ns: int,
    ) -> None:
        """After a change of primaries, find out which contributions are complete and folded."""
        primary_since, epoch = self._routing.primary_since, self._routing.epoch
        for complete in self._contributions.reroute(primary_since, rows, epoch):
            trailer = complete.trailer
            member = self.view.get(trailer.worker, trailer.incarnation)
            self._counting.count(complete, member, now_ns)
        for worker, incarnation in self._contributions.owing_members():
            if self.view.get(worker, incarnation) is None:
                self._contributions.excuse(worker, incarnation)
        if self._mode.recount(versions):
            self._after_fold(now_ns)

    # -- checkpoints ---------------------------------------------------------------------------

    def _on_resume_asked(self, event: ev.ResumeAsked, now_ns: int) -> None:
        """Continue from a checkpoint: servers read the slices, and the lead takes its own state
        from the checkpoint's record."""
        record = event.record
        self._opening.on_resumed(now_ns)
        self.view.resume(record.view, {worker.name: worker.number for worker in record.workers})
        division = resume_division(self.job, event.spec)
        self._routing.resume(record.routing, event.spec, division)
        self._enrolment.resume(record)
        self._progress.resume(record)
        self._mode.part = record.part
        self._cuts.resume(record, event.kept_nbytes)

    def _on_cut_written(self, message: m.CutWritten, now_ns: int) -> None:
        self._cuts.on_written(message, now_ns)
        self._advance_between_folds(now_ns)  # a drained server may have waited for the model file

    def _on_kept(self, message: m.Kept, now_ns: int) -> None:
        if self.view.get(message.worker, message.incarnation) is not None:
            # a part of a worker's state is a sign of life: the worker's heartbeats wait behind it
            self._lifecycle.suspicion.hear(message.worker, now_ns)
            self._cuts.keeping.on_part(message, now_ns)

    # -- the model -----------------------------------------------------------------------------

    # A drained server may wait until its copies of the best model are written, or are given up.

    def _on_stored(self, event: ev.SliceStored, now_ns: int) -> None:
        self._ending.on_stored(event, now_ns)
        self._advance_between_folds(now_ns)

    def _on_saving_failed(self, event: ev.SavingFailed, now_ns: int) -> None:
        self._ending.on_saving_failed(event, self._mode.done, now_ns)
        self._advance_between_folds(now_ns)

    def _give_up_saving(self, now_ns: int) -> None:
        was_active = self._best.active
        self._ending.on_time(self._mode.done, now_ns)
        if was_active and not self._best.active:
            self._advance_between_folds(now_ns)

    # -- time ----------------------------------------------------------------------------------

    def _on_alive(self, message: m.Alive, now_ns: int) -> None:
        self._deadlines.exclude_pause(now_ns)
        if not self._lifecycle.on_heartbeat(message, now_ns):
            self._servers.beat(message.server, now_ns)
        self._broken.expire(now_ns)
        if not self._mode.promotes_in_folds:
            busy = (
                member for member in self.view.members() if member.entered and not member.resting
            )
            if self._network.settle(now_ns, (worker_name(member.worker) for member in busy)):
                self._link_report.on_settled(now_ns)
        if (line := self._waiting.line(now_ns)) is not None:
            self._outbox.note("waiting", **line)

    def _on_measured(self, message: m.RatesMeasured, now_ns: int) -> None:
        worker = message.worker
        if worker >= 0 and self.view.get(worker, message.incarnation) is not None:
            self._network.record(worker_name(worker), message.received, now_ns)
        elif worker < 0 and self._servers.present(message.server):
            self._network.record(server_name(message.server), message.received, now_ns)

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        self._deadlines.on_tick(now_ns)
        if self._rounds.open:
            self._mode.ask(sync.TimePassed(), now_ns)

    def _suspect_servers(self, now_ns: int) -> None:
        if not self._ending.over:
            self._servers.suspect(now_ns)

    def _end_overtime(self, now_ns: int) -> None:
        if not self._ending.over:
            self._overtime.on_time(now_ns)

    def _end_stopping(self, now_ns: int) -> None:
        if self._stopping.overdue(now_ns) and not self._ending.over:
            self._mode.stop_waiting(now_ns)

    def _open_after_timeout(self, now_ns: int) -> None:
        if not self._rounds.open:
            self._opening.on_time(now_ns)
            self._lifecycle.open_if_ready(now_ns)

    _HANDLERS: ClassVar[dict[type, Callable[["LeadMachine", Any, int], None]]] = {
        ev.WorkerHelloReceived: _on_worker_hello,
        ev.ServerHelloReceived: _on_server_hello,
        ev.OperatorHelloReceived: lambda lead, event, now_ns: lead._requests.on_hello(event),
        ev.OperatorRequested: lambda lead, event, now_ns: lead._requests.on_request(event, now_ns),
        ev.LinkClosed: _on_link_closed,
        ev.PeersHeard: _on_peers_heard,
        ev.StopAsked: lambda lead, event, now_ns: lead._requests.on_signal(event, now_ns),
        ev.Tick: _on_tick,
        ev.SliceStored: _on_stored,
        ev.ModelSaved: lambda lead, event, now_ns: lead._ending.on_saved(
            event, lead._mode.done, now_ns
        ),
        ev.SavingFailed: _on_saving_failed,
        ev.ResumeAsked: _on_resume_asked,
        ev.CutCommitted: lambda lead, event, now_ns: lead._cuts.on_committed(event, now_ns),
        m.Placed: _on_placed,
        m.Seeded: _on_seeded,
        m.ModelSize: _on_sized,
        m.Attach: _on_attach,
        m.Enrol: _on_data,
        m.Delivered: _on_data,
        m.Trailer: _on_trailer,
        m.Arrived: _on_arrived,
        m.Abstained: _on_abstained,
        m.Folded: _on_folded,
        m.Holding: _on_holding,
        m.Report: _on_report,
        m.Leave: _on_leave,
        m.Asking: _on_asking,
        m.Alive: _on_alive,
        m.RatesMeasured: _on_measured,
        m.Unreachable: _on_unreachable,
        m.CaughtUp: _on_caught_up,
        m.Drain: lambda lead, message, now_ns: lead._requests.on_drain_asked(message, now_ns),
        m.Withheld: lambda lead, message, now_ns: lead._cuts.on_withheld(message),
        m.Keeping: lambda lead, message, now_ns: lead._cuts.keeping.on_announced(message),
        m.Kept: _on_kept,
        m.CutTaken: lambda lead, message, now_ns: lead._cuts.on_taken(message, now_ns),
        m.CutWritten: _on_cut_written,
    }

"""The lead: the site's coordinator. View, routing, sync policy and data plan come together here.

It never sees a tensor. It counts what servers and workers report, asks the policy, and gives the
one word `Fold` that servers act on; it is a machine of its own even where there is one server. What
it keeps and what it says have files of their own, each with its rule; what is left here is what one
of them means for the others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.effects import End, server_number, worker_name, worker_number
from polyrhythm.core.lead.admission import Admission
from polyrhythm.core.lead.contributions import Complete, Contributions
from polyrhythm.core.lead.folds import Folds
from polyrhythm.core.lead.goals import STOPPED
from polyrhythm.core.lead.in_flight import InFlight
from polyrhythm.core.lead.measurements import in_range
from polyrhythm.core.lead.members import Member, View
from polyrhythm.core.lead.opening import Opening
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.pause_detector import PauseDetector
from polyrhythm.core.lead.presence import Members
from polyrhythm.core.lead.progress import IDLE_ROUNDS, NOT_FINITE, JobProgress
from polyrhythm.core.lead.removals import Removals
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import Routing
from polyrhythm.core.lead.servers import Servers
from polyrhythm.core.lead.sharing import Sharing
from polyrhythm.core.lead.stopping import Stopping
from polyrhythm.core.lead.waiting import WaitReport
from polyrhythm.core.lead_watch import link_timeout_s
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.model import difference, nonsense
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.registry import choose_policy
from polyrhythm.core.text import plain, refusal
from polyrhythm.wire import messages as m

_MOST_COMING = 16
"""So many contributions of one member may have come in part. An honest one has at most two that are
not acknowledged; those that it sends again after a failover are the same."""


class LeadMachine:
    def __init__(self, job: m.JobSpec) -> None:
        self.job = job
        self.view = View()
        self._policy = choose_policy(job)
        self._door = Admission(job.job)
        self._placing = Routing(job.servers, job.slice_nbytes, job.replicas)
        self._opening = Opening(job.workers, job.start_timeout_s)
        self._arrivals = Contributions(keeps=self._policy.traits.rounds and job.replicas > 0)
        self._windows = InFlight(m.WINDOW)
        self._rounds = Rounds()
        self._departures = Removals(
            job.start_timeout_s if job.respawn else 0.0, link_timeout_s(job.lead_timeout_s)
        )
        self._sharing = Sharing(job.seed, job.epochs, job.min_batch)
        self._dispatch = LeadOutbox(self.view, self._placing)
        self._presence = Members(job, self.view, self._departures, self._dispatch)
        self._site = Servers(job, self._placing, self._rounds, self._dispatch)
        self._outlook = JobProgress(
            job, self._policy.traits.rounds, self._rounds, self._sharing, self._dispatch
        )
        self._decisions = Folds(
            self._policy,
            self.view,
            self._placing,
            self._arrivals,
            self._departures,
            self._rounds,
            self._dispatch,
        )
        self._awaited = WaitReport(
            self._policy,
            self.view,
            self._placing,
            self._opening,
            self._arrivals,
            self._windows,
            self._rounds,
        )
        self._wakefulness = PauseDetector(job.heartbeat_s)
        self._stopping = Stopping()
        self._sleepers = (
            self._presence.suspicion,
            self._site.suspicion,
            self._departures,
            self._wakefulness,
            self._stopping,
        )
        """What wants to be woken beside the policy."""
        self._empty_handed: set[int] = set()
        """Workers that have had nothing to contribute so far, and of whom that was noted."""
        self._ending: Reason | None = None
        self._ended = False

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        effects = self._dispatch.begin()
        if not self._ended:
            handler = self._HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, now_ns)
        return effects

    def wake_at(self) -> int | None:
        if self._ended:
            return None
        wake_ns = self._decisions.wake_ns if self._rounds.open else self._opening.wake_at()
        for sleeper in self._sleepers:
            other_ns = sleeper.wake_ns
            if other_ns is not None and (wake_ns is None or other_ns < wake_ns):
                wake_ns = other_ns
        return wake_ns

    def why(self) -> Waiting:
        return self._awaited.why(self._ending)

    def check(self) -> None:
        self._sharing.check()
        self._placing.check()
        self._arrivals.check(self._presence.accepts)
        if not self._placing.moving:
            self._rounds.check(self._placing.primaries)

    # -- the door ------------------------------------------------------------------------------

    def _on_server_hello(self, event: ev.ServerHelloReceived, now_ns: int) -> None:
        fault = self._door.fault(event.hello)
        if fault is not None:
            self._dispatch.refuse(event.link, refusal(event.hello.name, fault))
        elif self._site.come(event.link, event.hello, now_ns) and self._placing.gathered:
            for waiting, worker in self._door.open():
                self._admit(waiting, worker, now_ns)

    def _on_worker_hello(self, event: ev.WorkerHelloReceived, now_ns: int) -> None:
        fault = self._door.fault(event.hello)
        if fault is not None:
            self._dispatch.refuse(event.link, refusal(event.hello.name, fault))
        elif self._placing.gathered:
            self._admit(event.link, event.hello, now_ns)
        else:
            self._door.wait(event.link, event.hello)

    def _admit(self, link: str, hello: m.WorkerHello, now_ns: int) -> None:
        holder = self.view.holder(hello.name)
        if holder is not None and holder.incarnation == hello.incarnation:
            self._departures.falls_asleep(*holder.key, now_ns)
            self._remove(holder, "it came back over another link", now_ns)
        elif holder is not None:
            fault = "a worker with this name is in the job; give another with --name"
            self._dispatch.refuse(link, f"{hello.name} was refused: {fault}")
            return
        if self._ending is not None:
            fault = f"{hello.name} was refused: the job is ending"
            self._dispatch.refuse(link, fault, ending=True)
            return
        self._opening.admitted(now_ns)
        self._wakefulness.begin(now_ns)
        self._presence.admit(link, hello.name, self._placing.specs, now_ns)

    # -- members come and go -------------------------------------------------------------------

    def _on_attach(self, message: m.Attach, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        if (fault := nonsense(message.spec)) is not None:
            self._refuse_member(member, f"{member.name}'s model cannot be held: {fault}", now_ns)
            return
        if self._placing.spec is None:
            self._site.place(message.spec)
        elif (fault := difference(self._placing.spec, message.spec)) is not None:
            self._refuse_member(member, f"{member.name}'s model differs: {fault}", now_ns)
            return
        self.view.attach(member)
        if self._placing.all_placed and self._placing.change is None:
            self._dispatch.route(member)
            if not self._rounds.open:
                self._open_if_ready(now_ns)
            elif not self._rounds.opening:
                self._enter(member, now_ns)

    def _enter(self, member: Member, now_ns: int) -> None:
        self.view.enter(member)
        self._ask(sync.Joined(member.worker), now_ns)

    def _on_enrol(self, message: m.Enrol, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        if not self._sharing.begun:
            self._dispatch.note("data", points=message.points, batch=message.batch)
        lease = self._sharing.enrol(member, message.points, message.batch, self.view)
        if isinstance(lease, str):
            self._refuse_member(member, f"{member.name}'s data set {lease}", now_ns)
        else:
            self._dispatch.tell(member, lease)

    def _on_leave(self, message: m.Leave, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        reason = plain(message.reason)
        self._remove(member, reason or "it was done", now_ns)
        if message.failed and self.job.on_error == "end" and not self._ended:
            fields = {"name": member.name, "detail": reason}
            self._finish(Reason("worker-failed", fields), now_ns, failed=True)

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        self._door.leave(event.peer)
        server, worker = server_number(event.peer), worker_number(event.peer)
        member = self.view.at(worker) if worker is not None else None
        if server is not None:
            fatal = self._site.link_ended(server, event.incarnation, event.reason, now_ns)
            self._end_without(fatal, now_ns)
        elif member is not None and event.incarnation in (0, member.incarnation):
            self._remove(member, event.reason, now_ns)
        elif worker is not None and self._departures.hung_up(worker, event.incarnation, now_ns):
            self._end_if_deserted(now_ns)

    def _remove(self, member: Member, reason: str, now_ns: int) -> None:
        self._presence.remove(member, reason)
        self._windows.forget(*member.key)
        self._outlook.goals.left(member.worker)
        self._outlook.learning.left(member.worker)
        if self._placing.lose(member.worker):
            self._site.tell_routes()
        if not self._rounds.open:
            self._opening.lost()
            self._open_if_ready(now_ns)
        if member.entered:
            self._departures.leave(member.key)
            self._rounds.left(member.worker)
            owed = bool(self._arrivals.owed)
            self._arrivals.excuse(*member.key)
            self._ask(sync.Left(member.worker), now_ns)
            if owed and not self._arrivals.owed:
                self._on_paid(now_ns)
        self._end_if_deserted(now_ns)

    def _end_if_deserted(self, now_ns: int) -> None:
        if len(self.view):
            return
        if self._ending is not None:
            self._finish(self._ending, now_ns, failed=self._ending.code == NOT_FINITE)
        elif self._stopping.asked:
            self._finish(STOPPED, now_ns, failed=False)
        elif self._rounds.open and self._departures.deserted(now_ns):
            self._finish(Reason("deserted"), now_ns, failed=True)

    # -- servers come and go -------------------------------------------------------------------

    def _end_without(self, fatal: Reason | None, now_ns: int) -> None:
        """A server is lost: it may be one without which the job cannot go on."""
        if fatal is not None:
            self._finish(fatal, now_ns, failed=True)

    def _on_unreachable(self, message: m.Unreachable, now_ns: int) -> None:
        self._end_without(self._site.unreachable(message, now_ns), now_ns)

    def _on_caught_up(self, message: m.CaughtUp, now_ns: int) -> None:
        if self._site.caught_up(message, now_ns) and not self._policy.traits.rounds:
            self._move_on(now_ns)

    def _move_on(self, now_ns: int) -> None:
        if self._ending is None and not self._ended:
            self._site.move_on(now_ns)

    def _on_placed(self, message: m.Placed, now_ns: int) -> None:
        if not self._site.placed(message, now_ns):
            return
        if self._placing.change is not None:
            self._on_followed(now_ns)
        else:
            for member in self._attached():
                self._dispatch.route(member)

    def _on_seeded(self, message: m.Seeded, now_ns: int) -> None:
        self._placing.seeded(message)
        self._open_if_ready(now_ns)

    def _on_followed(self, now_ns: int) -> None:
        """Every server goes by the new routes: so must workers, and what was under way goes on."""
        change, rows, versions = self._site.followed(now_ns)
        for member in self._attached():
            if change.promoted or change.lost or not member.routed:
                self._dispatch.route(member)
        if change.promoted:
            self._recount(rows, versions, now_ns)
        self._fold_if_put_off(now_ns)
        if not self._rounds.folding:
            self._move_on(now_ns)
        if not self._rounds.open:
            self._open_if_ready(now_ns)
        elif not self._rounds.opening:
            self._enter_early(now_ns)

    def _recount(
        self,
        rows: Mapping[int, tuple[m.Row, ...]],
        versions: Mapping[int, int],
        now_ns: int,
    ) -> None:
        """What has arrived and what is folded, by what the primaries of now say."""
        for complete in self._arrivals.reroute(
            self._placing.primary_since, rows, self._placing.epoch
        ):
            trailer = complete.trailer
            member = self.view.get(trailer.worker, trailer.incarnation)
            self._count(complete, member, now_ns)
        for worker, incarnation in self._arrivals.owing_members():
            if self.view.get(worker, incarnation) is None:
                self._arrivals.excuse(worker, incarnation)
        if self._decisions.recount(versions):
            self._after_fold(now_ns)

    def _fold_if_put_off(self, now_ns: int) -> None:
        if not self._ended:
            self._decisions.fold_if_put_off(now_ns)

    # -- signs of life -------------------------------------------------------------------------

    def _on_alive(self, message: m.Alive, now_ns: int) -> None:
        self._pass_over(self._wakefulness.paused_ns(now_ns), now_ns)
        if self.view.get(message.worker, message.incarnation) is not None:
            self._presence.beat(message.worker, now_ns)
        else:
            self._site.beat(message.server, now_ns)
        if (line := self._awaited.line(self._ending, now_ns)) is not None:
            self._dispatch.note("waiting", **line)

    def _pass_over(self, paused_ns: int, now_ns: int) -> None:
        if paused_ns:
            self._presence.suspicion.exclude_time(paused_ns, now_ns)
            self._site.suspicion.exclude_time(paused_ns, now_ns)
            self._departures.exclude_time(paused_ns)
            self._stopping.exclude_time(paused_ns)
            self._opening.exclude_time(paused_ns)
            self._dispatch.note("lead-paused", seconds=paused_ns / 1e9)

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        self._pass_over(self._wakefulness.paused_ns(now_ns), now_ns)
        for worker in self._presence.silent(now_ns):
            if (member := self._presence.evict(worker, now_ns)) is not None:
                self._remove(member, "it was silent for too long", now_ns)
        for worker, incarnation in self._departures.unwoken(now_ns, alone=not len(self.view)):
            self._presence.dismiss(worker, incarnation)
            self._departures.hung_up(worker, incarnation, now_ns)
        if not self._ended:
            self._site.suspect(now_ns)
        if self._departures.overdue(now_ns):
            self._end_if_deserted(now_ns)
        if self._stopping.overdue(now_ns) and not self._ended:
            self._stop_waiting(now_ns)
        if self._rounds.open:
            self._ask(sync.TimePassed(), now_ns)
        else:
            self._opening.tick(now_ns)
            self._open_if_ready(now_ns)

    def _on_stop_asked(self, event: ev.StopAsked, now_ns: int) -> None:
        if event.at_once or not self._rounds.open or not len(self.view):
            self._finish(STOPPED, now_ns, failed=False)
        elif self._ending is None and not self._stopping.asked:
            self._dispatch.note("stopping")
            if self._policy.traits.rounds:
                self._outlook.goals.stop()
                self._stopping.begin(now_ns)
                self._decisions.pause()
            else:
                self._outlook.break_off(STOPPED.code, now_ns)
                self._end_with_fold(STOPPED, now_ns)

    def _stop_waiting(self, now_ns: int) -> None:
        """The open round has been waited for long enough: fold it as it is, and stop."""
        self._stopping.settled()
        if self._ending is None and not self._rounds.folding:
            self._outlook.break_off(STOPPED.code, now_ns)
            self._end_with_fold(STOPPED, now_ns)

    def _end_with_fold(self, reason: Reason, now_ns: int) -> None:
        """End with one more fold, or with the one that is under way. Nobody has the version of that
        fold pushed, because a worker that computes would drop it: all workers pull it."""
        self._ending = reason
        if not self._rounds.folding:
            last = not self._policy.traits.rounds
            self._decisions.fold(sync.NO_WORKERS, reason, now_ns, last=last)

    # -- the way of one contribution -----------------------------------------------------------

    def _on_trailer(self, message: m.Trailer, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None and not self._presence.accepts(message.worker, message.incarnation):
            return
        if member is not None and not member.entered:
            return  # it has nothing to contribute to before it takes part
        self._presence.spoke(message.worker, now_ns)
        if member is not None and self._arrivals.coming(*member.key) >= _MOST_COMING:
            fault = f"{member.name} has {_MOST_COMING} contributions on their way"
            self._refuse_member(member, f"{fault}: at most {m.WINDOW} are waited for", now_ns)
            return
        if member is not None and not m.LEAST_WEIGHT <= message.weight < math.inf:
            fault = f"{member.name}'s contribution weighs {message.weight}"
            least = f"it must be a positive number, and at least {m.LEAST_WEIGHT}"
            self._refuse_member(member, f"{fault}: {least}", now_ns)
            return
        message = in_range(message)
        if not self._policy.traits.rounds:
            self._windows.sent(message.worker, message.incarnation, message.sequence, now_ns)
        complete = self._arrivals.trailer(message, self._placing.primary_since)
        if complete is not None:
            self._count(complete, member, now_ns)

    def _on_arrived(self, message: m.Arrived, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None and not self._presence.accepts(message.worker, message.incarnation):
            return
        if not self._policy.traits.rounds:
            self._rounds.folded_one(message.server)
        owed = bool(self._arrivals.owed)
        complete = self._arrivals.arrived(message, self._placing.primary_since)
        if complete is not None:
            self._count(complete, member, now_ns)
        if owed and not self._arrivals.owed:
            self._on_paid(now_ns)

    def _on_paid(self, now_ns: int) -> None:
        self._decisions.paid()
        self._fold_if_put_off(now_ns)

    def _count(self, complete: Complete, member: Member | None, now_ns: int) -> None:
        """`member`: whose it is, unless that one has left."""
        self._rounds.moved_ns = now_ns
        trailer = complete.trailer
        if self._policy.traits.rounds:
            self._rounds.arrived(trailer.worker, complete.round)
        else:
            self._windows.counted(trailer.worker, trailer.incarnation, trailer.sequence)
        self._outlook.count(trailer, now_ns)
        if member is not None:
            lease = trailer.lease
            if member.confirms and not self._arrivals.awaits(*member.key):
                lease, member.confirms = member.confirms, 0
            if self._sharing.moving:
                self._confirm_lease(member, lease, now_ns)
            self._ask(sync.MemberContributed(trailer.worker, complete.round, trailer), now_ns)
        if not self._policy.traits.rounds:
            self._advance(now_ns)
            self._end_if_idle(now_ns)

    def _confirm_lease(self, member: Member, number: int, now_ns: int) -> None:
        self._send_leases(self._sharing.confirm(member, number, self.view), now_ns)

    def _send_leases(self, leases: list[tuple[Member, m.Leased]], now_ns: int) -> None:
        for member, lease in leases:
            self._dispatch.tell(member, lease)
            if lease.chunks:
                self._call_back(member, now_ns)

    def _call_back(self, member: Member, now_ns: int) -> None:
        """Without rounds: one who rests has chunks to visit again."""
        if member.resting and not self._policy.traits.rounds:
            member.resting = False
            self._ask(sync.Returned(member.worker), now_ns)

    def _on_abstained(self, message: m.Abstained, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        member.resting = True
        self._rounds.abstained(message.worker)
        self._ask(sync.MemberAbstained(message.worker), now_ns)
        if self._arrivals.awaits(*member.key):
            member.confirms = message.lease  # what it visited before is not counted yet
        else:
            self._note_empty_handed(member)
            self._confirm_lease(member, message.lease, now_ns)
        if self._sharing.outdated(member, message.lease):
            self._call_back(member, now_ns)
        self._end_if_idle(now_ns)

    def _end_if_idle(self, now_ns: int) -> None:
        """Without rounds: everybody rests, and neither a chunk nor a contribution is on its way."""
        if self._policy.traits.rounds or self._arrivals.any or self._sharing.moving:
            return
        over = self._ending is not None or self._ended or not len(self.view)
        turning = self._rounds.folding or self._departures.any
        if not over and not turning and self.view.all_rest():
            self._finish(Reason("idle", {"rounds": IDLE_ROUNDS}), now_ns, failed=True)

    def _note_empty_handed(self, member: Member) -> None:
        new = (
            member.worker not in self._outlook.tally.workers
            and member.worker not in self._empty_handed
        )
        if new and not self._sharing.moving:  # otherwise some may be on their way to it
            self._empty_handed.add(member.worker)
            self._dispatch.note("empty-handed", worker=member.worker, name=member.name)

    # -- rounds --------------------------------------------------------------------------------

    def _attached(self) -> list[Member]:
        return [member for member in self.view.members() if member.attached]

    def _open_if_ready(self, now_ns: int) -> None:
        ready = self._placing.all_seeded and self._opening.due(self.view.attached)
        if self._rounds.open or not ready:
            return
        self._outlook.goals.opened(now_ns)
        self._decisions.open(self._attached(), now_ns)

    def _ask(self, event: sync.PolicyEvent, now_ns: int) -> None:
        if self._ending is None and not self._ended:
            self._decisions.ask(event, now_ns)

    def _on_asking(self, message: m.Asking, now_ns: int) -> None:
        if self.view.get(message.worker, message.incarnation) is not None:
            self._ask(sync.Asked(message.worker), now_ns)

    def _on_folded(self, message: m.Folded, now_ns: int) -> None:
        if self._decisions.folded(message):
            self._after_fold(now_ns)

    def _after_fold(self, now_ns: int) -> None:
        self._arrivals.folded(self._rounds.round)
        gone = self._departures.confirmed()
        for worker, incarnation in gone:
            self._arrivals.forget(worker, incarnation)
        if (
            self._ending is not None
            and not self._policy.traits.rounds
            and not self._decisions.frozen
        ):
            # the goal was reached while the view turned
            self._decisions.fold(sync.NO_WORKERS, self._ending, now_ns, last=True)
            return
        if self._ending is not None:
            self._send_stop(self._ending, now_ns)
            return
        if self._policy.traits.rounds:
            goal = self._outlook.folded(now_ns)
            if goal is not None:
                self._ending = goal
                self._send_stop(goal, now_ns)
                return
            if (trouble := self._outlook.no_way_on()) is not None:
                self._finish(trouble, now_ns, failed=True)
                return
        self._send_leases(self._sharing.share_again(self.view, gone), now_ns)
        self._decisions.release(self._rounds.release, self._rounds.readers)
        opened = self._rounds.round
        self._ask(sync.Opened(opened), now_ns)
        if opened == 0:
            self._enter_early(now_ns)
        self._end_if_idle(now_ns)
        self._move_on(now_ns)

    def _advance(self, now_ns: int) -> None:
        """Without rounds: as many contributions as there are members are worth one."""
        if self._ending is not None or self._ended:
            return
        goal = self._outlook.advance(len(self.view), now_ns)
        if goal is not None:
            self._end_with_fold(goal, now_ns)
        elif self._outlook.no_batches:
            self._finish(Reason("no-batches"), now_ns, failed=True)

    def _enter_early(self, now_ns: int) -> None:
        """Who attached while the first version was on its way is not a first member."""
        for member in self._attached():
            if not member.entered:
                self._enter(member, now_ns)

    def _send_stop(self, goal: Reason, now_ns: int) -> None:
        for member in self.view.members():
            if member.key not in self._rounds.enlisted:
                # the servers do not know it, so it cannot read the final version
                late = f"{member.name} came too late: {goal}"
                self._refuse_member(member, late, now_ns, ending=True)
                continue
            self._decisions.release_one(member, self._rounds.readers, stop=True, reason=str(goal))
        if not self._ended:
            self._end_if_deserted(now_ns)

    # -- the end -------------------------------------------------------------------------------

    def _finish(self, reason: Reason, now_ns: int, *, failed: bool) -> None:
        if self._ending is None and self._rounds.open:
            self._outlook.break_off(reason.code, now_ns)
        self._dispatch.stop(str(reason), failed=failed)
        for link, _ in self._door.open():
            self._dispatch.refuse(link, str(reason))
        self._dispatch.note(
            "ended",
            reason=str(reason),
            failed=failed,
            rounds=self._outlook.at,
            folds=self._rounds.folds,
            learning=self._outlook.learning.finding.fields(),
        )
        self._dispatch.do(End(reason, failed))
        self._ended = True

    def _on_report(self, message: m.Report, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is not None:
            metrics = dict(message.metrics)
            self._outlook.goals.reported(member.worker, metrics)
            self._dispatch.note("reported", worker=member.worker, name=member.name, metrics=metrics)

    def _refuse_member(
        self, member: Member, reason: str, now_ns: int, *, ending: bool = False
    ) -> None:
        self._dispatch.refuse(worker_name(member.worker), reason, ending=ending)
        self._remove(member, reason, now_ns)

    _HANDLERS: ClassVar[dict[type, Callable[["LeadMachine", Any, int], None]]] = {
        ev.WorkerHelloReceived: _on_worker_hello,
        ev.ServerHelloReceived: _on_server_hello,
        ev.LinkClosed: _on_link_closed,
        ev.StopAsked: _on_stop_asked,
        ev.Tick: _on_tick,
        m.Placed: _on_placed,
        m.Seeded: _on_seeded,
        m.Attach: _on_attach,
        m.Enrol: _on_enrol,
        m.Trailer: _on_trailer,
        m.Arrived: _on_arrived,
        m.Abstained: _on_abstained,
        m.Folded: _on_folded,
        m.Report: _on_report,
        m.Leave: _on_leave,
        m.Asking: _on_asking,
        m.Alive: _on_alive,
        m.Unreachable: _on_unreachable,
        m.CaughtUp: _on_caught_up,
    }

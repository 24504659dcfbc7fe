"""The life of a member: it is admitted, attaches its model, enrols a data set, enters, and is
removed.

*A member is removed at once when its link ends. A member that is silent for too long is evicted,
and told to rejoin once it is reachable.*
"""

import msgspec
from msgspec.structs import replace

from polyrhythm.core.effects import Bind, Drop
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.progress.progress import NOT_FINITE
from polyrhythm.core.lead.rounds.folds import Folds
from polyrhythm.core.lead.rounds.modes import Mode
from polyrhythm.core.liveness import Suspicion
from polyrhythm.core.machine import Reason
from polyrhythm.core.model import difference, nonsense
from polyrhythm.core.names import worker_name
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.values import plain
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import reasons as messages
from polyrhythm.wire.messages.operator import STOP
from polyrhythm.wire.messages.reasons import STREAM_ENDED, Field


class LifecycleState(msgspec.Struct):
    suspicion: Suspicion
    stream_ended: bool = False
    """Whether the last member that left had reached the end of its data stream."""


class Lifecycle:
    def __init__(self, state: LifecycleState, parts: Parts, mode: Mode) -> None:
        self._state = state
        self.suspicion = state.suspicion
        self._mode = mode
        self._job = parts.job
        self._policy = parts.policy
        self._view = parts.view
        self._opening = parts.opening
        self._routing = parts.routing
        self._network = parts.network
        self._contributions = parts.contributions
        self._steps = parts.steps
        self._rounds = parts.rounds
        self._removals = parts.removals
        self._enrolment = parts.enrolment
        self._outbox = parts.outbox
        self._servers = parts.servers
        self._broken = parts.broken
        self._progress = parts.progress
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._operators = parts.operators
        self._evaluator = parts.evaluator
        self._sharing = parts.sharing
        self._start_ns = round(parts.job.start_timeout_s * 1e9)

    def accepts(self, worker: int, incarnation: int) -> bool:
        """Whether contributions of this worker count. It is a member, or it was removed and some
        server may not know that yet."""
        if self._view.get(worker, incarnation) is not None:
            return True
        return self._removals.is_pending(worker, incarnation)

    def fault(self, member: Member, message: m.Trailer | m.Abstained) -> Reason | None:
        """Why the member must be removed because of this message; None if the message is valid."""
        if isinstance(message, m.Abstained):
            model = message.model
        else:
            model = message.report.model
            fault = self._contributions.fault(member.name, message)
            if fault is not None:
                return fault
        if model < 0:
            return None
        return self._steps.fault(member.name, message, model, self._routing.spec)

    # -- joining -------------------------------------------------------------------------------

    def admit(self, link: str, hello: m.WorkerHello, now_ns: int) -> bool:
        """Admit a worker that asks to join. Returns False if it was refused."""
        name, same_name = hello.name, self._view.named(hello.name)
        if same_name is not None and same_name.incarnation == hello.incarnation:
            self._removals.may_rejoin(*same_name.key, now_ns)
            self.remove(same_name, Reason("came-back"), now_ns)
        elif same_name is not None:
            self._outbox.refuse(link, Reason("name-taken", {"name": name}))
            return False
        if self._ending.begun:
            self._outbox.refuse(link, Reason("job-ending", {"name": name}), ending=True)
            return False
        self._opening.on_admitted(now_ns)
        self._progress.goals.limit.expect(now_ns + self._start_ns)
        again = self._view.known(name)
        member = self._view.admit(name, now_ns)
        self._removals.on_joined(member.worker)
        self.suspicion.expect(member.worker, now_ns)
        self._outbox.do(Bind(link, worker_name(member.worker), member.incarnation))
        self._network.learn(worker_name(member.worker), plain(hello.host), hello.identity)
        # Tell the servers about the worker before it learns their addresses and connects to them.
        self._outbox.introduce(member)
        identity, servers = self._outbox.identity(member), self._routing.roster.specs
        seat = self._outbox.seat.server
        self._outbox.tell(member, m.Admitted(**identity, job=self._job, servers=servers, seat=seat))
        what = "rejoined" if again else "joined"
        process = {"pid": hello.pid, "host": plain(hello.host)} if hello.pid else {}
        process |= {"device": plain(hello.device)} if hello.device else {}
        self._outbox.note(what, worker=member.worker, name=name, epoch=self._view.epoch, **process)
        return True

    def on_attach(self, member: Member, spec: m.ModelSpec, now_ns: int) -> None:
        """Check the model that a member announces. The first model becomes the job's model, and
        every other model must be equal to it."""
        division = self._routing.division
        fault = nonsense(spec) or nonsense(replace(spec, division=division))
        if division is None:
            fault = "its worker did not ask how to cut it into slices"
        if fault is not None:
            self.refuse(member, _refused("model-unfit", member, fault), now_ns)
            return
        if self._routing.spec is None:
            if spec.division not in (None, division):
                fault = "its slices differ from those that the lead has chosen"
                self.refuse(member, _refused("model-unfit", member, fault), now_ns)
                return
            self._servers.place(spec)
        elif (fault := difference(self._routing.spec, spec)) is not None:
            self.refuse(member, _refused("model-differs", member, fault), now_ns)
            return
        self._view.attach(member)
        self._note_working_links(member, now_ns)
        if self._routing.all_placed and self._routing.change is None:
            self._outbox.route(member)
            if not self._rounds.open:
                self.open_if_ready(now_ns)
            elif not self._rounds.opening:
                self._enter(member, now_ns)

    def _note_working_links(self, member: Member, now_ns: int) -> None:
        """Note that a member's links to all servers work: a worker attaches its model only when
        they are open."""
        if self._broken.any:
            for server, since_ns in self._broken.works(member.worker):
                seconds = (now_ns - since_ns) / 1e9
                fields = {"worker": member.worker, "name": member.name, "server": server}
                self._outbox.note("link-works", **fields, seconds=seconds)

    def open_if_ready(self, now_ns: int) -> None:
        """Open round 1 once all initial parameters and enough workers are there. The opening is the
        fold of round 0."""
        ready = self._routing.all_seeded and self._opening.due(self._view.attached)
        if self._rounds.open or not ready:
            return
        self._opening.on_opened()
        self._progress.goals.on_opened(now_ns)
        entering = self._view.all_attached()
        for member in entering:
            self._view.enter(member)
            self._progress.goals.limit.on_entered(member.worker, now_ns)
            self._policy.on(sync.Joined(member.worker), now_ns)
        self._enrolment.on_opened(now_ns + self._start_ns)
        self._evaluator.choose()
        release = frozenset(member.worker for member in entering)
        first = self._job.resume_round + 1
        opened = Reason("opened", {"round": first, "members": len(entering)})
        self._mode.fold(release, opened, now_ns)

    def send_stop(self, goal: Reason, folds: Folds, now_ns: int) -> None:
        """Let every member read the final version and then leave."""
        for member in self._view.members():
            if member.key not in self._rounds.enlisted:
                # the servers do not know this member, so it cannot read the final version
                late = Reason("too-late", {"name": member.name}).because(goal)
                self.refuse(member, late, now_ns, ending=True)
                continue
            folds.stop(member)
        self.end_if_deserted(now_ns)

    def _enter(self, member: Member, now_ns: int) -> None:
        member.late = True
        self._view.enter(member)
        self._progress.goals.limit.on_entered(member.worker, now_ns)
        self._evaluator.choose()
        self._mode.ask(sync.Joined(member.worker), now_ns)

    def enter_attached(self, now_ns: int) -> None:
        """Let those members enter that attached their model during the fold of round 0 or during a
        change of routes."""
        for member in self._view.all_attached():
            if not member.entered:
                self._enter(member, now_ns)

    # -- leaving -------------------------------------------------------------------------------

    def on_heartbeat(self, message: m.Alive, now_ns: int) -> bool:
        """Note a heartbeat. Returns whether its sender is a member."""
        member = self._view.get(message.worker, message.incarnation)
        if member is not None:
            member.loop_over = message.loop_over
            self.suspicion.beat(message.worker, now_ns)
        return member is not None

    def evict_silent(self, now_ns: int) -> None:
        """Remove every member that has been silent for too long."""
        for worker in self.suspicion.silent(now_ns):
            if (member := self._view.at(worker)) is not None:
                self._evict(member, now_ns)

    def _evict(self, member: Member, now_ns: int) -> None:
        pulse = self.suspicion.pulse(member.worker)
        fields: dict[str, Field] = {"name": member.name, **pulse.silence(now_ns)}
        self._outbox.note("evicted", worker=member.worker, **fields)
        evicted = m.Evicted(**self._outbox.identity(member), reason=Reason("silent", fields))
        self._outbox.tell(member, evicted)
        self._removals.may_rejoin(*member.key, now_ns)
        self.remove(member, Reason("evicted"), now_ns)

    def exclude(self, member: Member, server: int, now_ns: int) -> None:
        """Remove a member whose link to this server is broken. The member is told to rejoin; that
        succeeds when the link works again."""
        since_ns = self._broken.since_ns(member.worker, server)
        silent_s = (now_ns - since_ns) / 1e9
        fields: dict[str, Field] = {"name": member.name, "server": server, "silent_s": silent_s}
        self._outbox.note("cut-off", worker=member.worker, **fields)
        self._ask_to_rejoin(member, Reason("cut-off", fields), now_ns)
        self._broken.exclude(member.worker, server, since_ns, now_ns)

    def _ask_to_rejoin(self, member: Member, reason: Reason, now_ns: int) -> None:
        """Remove a member, and tell it to rejoin."""
        self._outbox.tell(member, m.Evicted(**self._outbox.identity(member), reason=reason))
        self._removals.may_rejoin(*member.key, now_ns)
        self.remove(member, reason, now_ns)

    def call_for_servers(self, member: Member, now_ns: int) -> None:
        """Tell a member to rejoin, because it has an outdated list of servers."""
        self._ask_to_rejoin(member, Reason("servers-changed"), now_ns)

    def close_links(self, now_ns: int) -> None:
        """Close the links of members that were evicted long ago. They have been told to rejoin, and
        a member reads this order before it notices the end of its link."""
        for worker, incarnation in self._removals.links_due(now_ns, alone=not len(self._view)):
            self._outbox.dismiss(worker, incarnation)
            self._outbox.do(Drop(worker_name(worker), Reason("not-woken")))
            self._removals.on_link_ended(worker, incarnation, now_ns)

    def on_removals_due(self, now_ns: int) -> None:
        """Close the links of evicted members whose time is over, and end the job if it is
        deserted."""
        self.close_links(now_ns)
        if self._removals.overdue(now_ns):
            self.end_if_deserted(now_ns)

    def refuse(self, member: Member, reason: Reason, now_ns: int, *, ending: bool = False) -> None:
        """Remove a member, and tell it why. `ending`: the reason is the end of the job instead of a
        fault of the member."""
        self._outbox.refuse(worker_name(member.worker), reason, ending=ending)
        self.remove(member, reason, now_ns)

    def leave(
        self, member: Member, reason: Reason, now_ns: int, *, failed: bool, rejoins: bool = False
    ) -> None:
        """Remove a member that leaves by itself. `failed`: its code raised an exception. `rejoins`:
        it will join again as a new incarnation."""
        if rejoins:
            self._removals.may_rejoin(*member.key, now_ns)
        fatal = self._fatal(member, reason) if failed else None
        self.remove(member, reason, now_ns, fatal=fatal)

    def _fatal(self, member: Member, reason: Reason) -> Reason | None:
        """Why the failure of this member ends the job; None if the job goes on. *With `--on-error
        end`, every failure ends the job. The failure of the only worker ends it too, unless this
        worker is started again, or the job is served, so that other workers may join.*"""
        if reason.code == messages.NOT_FINITE and self._job.on_nan == "end":
            return Reason("nan-end", {"name": member.name}).because(reason)
        alone = self._job.workers == 1 and len(self._view) == 1
        alone = alone and not self._job.respawn and not self._job.served
        if self._job.on_error == "end":
            return Reason("worker-failed", {"name": member.name}).because(reason)
        return (
            Reason("only-worker-failed", {"name": member.name}).because(reason) if alone else None
        )

    def remove(
        self, member: Member, reason: Reason, now_ns: int, *, fatal: Reason | None = None
    ) -> None:
        """`fatal`: why this removal ends the job; None if the job goes on."""
        self._view.remove(member.worker)
        self._network.forget(worker_name(member.worker))
        self.suspicion.forget(member.worker)
        self._broken.forget(member.worker)
        self._state.stream_ended = reason.code == STREAM_ENDED.code
        self._outbox.note("left", worker=member.worker, name=member.name, **reason.noted())
        self._mode.forget(*member.key)
        self._sharing.on_removed(member.key)
        self._steps.forget(*member.key)
        self._progress.goals.targets.left(member.worker)
        self._progress.learning.left(member.worker)
        if self._routing.lose_seeder(member.worker):
            self._servers.send_routes()
        if not self._rounds.open:
            # a served job waits: another worker may join
            if not self._job.served:
                self._opening.on_lost()
            self.open_if_ready(now_ns)
        if not self._ending.begun:
            self._evaluator.choose()
        if member.entered:
            self._removals.leave(member.key)
            self._rounds.on_left(member.worker)
            owed = bool(self._contributions.owed)
            self._contributions.excuse(*member.key)
            self._mode.ask(sync.Left(member.worker), now_ns)
            if owed and not self._contributions.owed:
                self._mode.on_repaid(now_ns)
        self.tell_operators()
        if fatal is not None and (self._ending.goal is None or len(self._view)):
            self._ending.finish(fatal, self._mode.done, now_ns, failed=True)
        self.end_if_deserted(now_ns)
        self.end_if_lost(now_ns)

    def end_if_lost(self, now_ns: int) -> None:
        """End the job if no process has the parameters any more (`--optimizer-on workers`)."""
        if not self._ending.begun and (lost := self._sharing.lost) is not None:
            self._ending.finish(lost, self._mode.done, now_ns, failed=True, lost=True)

    def tell_operators(self) -> None:
        """Tell the operators that have requested a stop how many workers it still waits for."""
        if len(self._view) and not self._ending.decided:
            remaining = Reason("stopping", {"workers": len(self._view)})
            self._operators.tell(STOP, remaining)

    def end_if_deserted(self, now_ns: int) -> None:
        """End the job if its last member has left and no worker is expected to join or rejoin. A
        served job waits for other workers until a user stops it."""
        if len(self._view):
            return
        self._finish_if_deserted(now_ns)
        if self._ending.decided:
            self._removals.expect_nobody()

    def _finish_if_deserted(self, now_ns: int) -> None:
        goal, done = self._ending.goal, self._mode.done
        if goal is not None:
            self._ending.finish(goal, done, now_ns, failed=goal.code == NOT_FINITE)
        elif self._stopping.asked:
            self._ending.finish(self._stopping.reason, done, now_ns, failed=False)
        elif self._job.served:
            return
        elif self._rounds.open and self._state.stream_ended:
            self._ending.finish(Reason("streams-ended"), done, now_ns, failed=False)
        elif self._rounds.open and self._removals.is_deserted(now_ns):
            self._ending.finish(Reason("deserted"), done, now_ns, failed=True)


def _refused(code: str, member: Member, detail: str) -> Reason:
    return Reason(code, {"name": member.name, "detail": detail})

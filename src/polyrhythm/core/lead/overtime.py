"""Ends a job whose workers do not finish their step after the time limit (`--max-seconds`), for
example because their own code hangs.

*If round 1 has not opened, because no worker has attached a model, all workers are removed, and the
job has failed. Otherwise the job ends in two steps:*

*First, the lead stops the job as if a user had requested it. Workers contribute what they have
computed, the servers fold the open round without the other workers, and every worker is offered the
final version.*

*Then the job waits for its workers. A worker that takes the final version runs the code after its
loop, and the job waits for it without a limit, as at every end. A worker that does not take the
final version within the patience is removed and counts as failed. The job ends when no worker is
left (decision 105).*
"""

from polyrhythm.core.lead.members.lifecycle import Lifecycle
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.progress.progress import NOT_FINITE
from polyrhythm.core.lead.rounds.modes import Mode
from polyrhythm.core.machine import Reason
from polyrhythm.core.names import worker_name
from polyrhythm.wire.messages.reasons import HUNG, UNATTACHED, Field


class Overtime:
    def __init__(self, parts: Parts, mode: Mode, lifecycle: Lifecycle) -> None:
        self._mode = mode
        self._lifecycle = lifecycle
        self._job = parts.job
        self._rounds = parts.rounds
        self._policy = parts.policy
        self._view = parts.view
        self._outbox = parts.outbox
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._progress = parts.progress
        self._limit = parts.progress.goals.limit

    def on_time(self, now_ns: int) -> None:
        if not self._limit.overdue(now_ns):
            return
        if self._ending.decided:
            self._limit.on_settled()
        elif not self._rounds.open:
            self._end_unopened(now_ns)
        elif self._limit.leaving:
            self._limit.on_settled()
            self._remove_hanging(now_ns)
        elif self._ending.begun or self._stopping.asked:
            # a goal was reached, or a stop requested
            self._await_leaving(now_ns)
        else:
            self._stop(now_ns)

    def _end_unopened(self, now_ns: int) -> None:
        """End the job if no worker has attached a model."""
        if self._view.attached:
            # a worker waits for its first parameters, which are being sent
            self._limit.wait_from(now_ns)
            return
        self._limit.on_settled()
        members = self._view.members()
        if not members:
            return  # the next worker that joins gets the whole start timeout
        for member in members:
            after_s = (now_ns - member.since_ns) / 1e9
            self._remove(
                member, Reason(UNATTACHED, {"name": member.name, "after_s": after_s}), now_ns
            )
        limits: dict[str, Field] = {
            "start_s": self._job.start_timeout_s,
            "limit_s": self._job.max_seconds,
            "joined": len(members),
        }
        self._ending.finish(Reason("not-opened", limits), self._mode.done, now_ns, failed=True)

    def _stop(self, now_ns: int) -> None:
        """Stop the job, because no fold came within the patience."""
        goal = self._progress.goals.reached(now_ns)
        assert goal is not None  # the time limit has passed
        reason = self._progress.judged(goal)
        if not len(self._view):
            failed = reason.code == NOT_FINITE
            self._ending.finish(reason, self._mode.done, now_ns, failed=failed)
            return
        missing = self._policy.why().reason.fields.get("missing")
        if not isinstance(missing, list):
            missing = [member.worker for member in self._view.members()]
        late: dict[str, Field] = {"missing": missing, "after_s": self._limit.after_s(now_ns)}
        self._outbox.note("overtime", **Reason("overtime", late).noted())
        self._stopping.reason = reason
        self._mode.stop(now_ns)
        self._await_leaving(now_ns)

    def _await_leaving(self, now_ns: int) -> None:
        """Give workers time to leave their loops once they are told to leave. With rounds, a stop
        first waits for contributions."""
        self._limit.leaving = True
        self._limit.wait_from(self._stopping.deadline.wake_ns or now_ns)

    def _remove_hanging(self, now_ns: int) -> None:
        """Remove the workers whose loops have not ended."""
        after_s = self._limit.after_s(now_ns)
        for member in [*self._view.members()]:
            if not member.loop_over and not self._ending.decided:
                self._remove(
                    member, Reason(HUNG, {"name": member.name, "after_s": after_s}), now_ns
                )

    def _remove(self, member: Member, hung: Reason, now_ns: int) -> None:
        self._outbox.send_away(worker_name(member.worker), hung, ending=True)
        self._lifecycle.remove(member, hung, now_ns)

"""Follows a contribution through the lead. Reports and the trailer make it complete. Then it counts
for the job's progress, and the policy is told of it.

*A contribution counts once, when it is complete. Its points then count as visited, and the lease
that it names is confirmed.*
"""

from collections.abc import Collection

import msgspec

from polyrhythm.core.lead.data.leasing import Leasing
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.rounds.contributions import Complete, clamp
from polyrhythm.core.lead.rounds.modes import Mode
from polyrhythm.core.machine import Reason
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.values import plain, plain_reason
from polyrhythm.wire import messages as m


class CountingState(msgspec.Struct):
    reports: dict[tuple[int, int], m.Abstained] = {}
    """Per member, a report of visited points. It waits until the contributions with the steps that
    used these points are complete."""
    noted: set[int] = set()
    """Workers about which the journal already says that they have no points to visit."""


class Counting:
    def __init__(self, state: CountingState, parts: Parts, mode: Mode, leasing: Leasing) -> None:
        self._reports = state.reports
        self._noted = state.noted
        self._mode = mode
        self._leasing = leasing
        self._view = parts.view
        self._routing = parts.routing
        self._contributions = parts.contributions
        self._rounds = parts.rounds
        self._plan = parts.plan
        self._outbox = parts.outbox
        self._progress = parts.progress
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._evaluator = parts.evaluator

    def on_trailer(self, trailer: m.Trailer, member: Member | None, now_ns: int) -> None:
        """Handle the trailer of a contribution. `member` is None if its sender was removed."""
        report = clamp(trailer.report)
        if report is not trailer.report:
            trailer = msgspec.structs.replace(trailer, report=report)
        self._mode.on_trailer(trailer, now_ns)
        complete = self._contributions.on_trailer(trailer, self._routing.primary_since)
        if complete is not None:
            self.count(complete, member, now_ns)

    def on_arrived(self, message: m.Arrived, member: Member | None, now_ns: int) -> None:
        """Handle a server's report of a contribution; `member` is None if its sender was
        removed."""
        self._mode.on_reported(message.server)
        owed = bool(self._contributions.owed)
        complete = self._contributions.on_arrived(message, self._routing.primary_since)
        if complete is not None:
            self.count(complete, member, now_ns)
        if owed and not self._contributions.owed:
            self._mode.on_repaid(now_ns)

    def count(self, complete: Complete, member: Member | None, now_ns: int) -> None:
        """Count a contribution that is complete; `member` is None if its sender was removed."""
        self._rounds.moved_ns = now_ns
        trailer, report = complete.trailer, complete.trailer.report
        holder, ahead = (trailer.worker, trailer.incarnation), self._mode.complete(complete)
        points = self._leasing.commit(holder, report, ahead=ahead)
        self._progress.count(trailer, points, now_ns)
        if member is not None:
            if self._reports:
                self._visit(member)
            lease = report.lease
            if member.confirms and not self._contributions.incomplete(*member.key):
                lease, member.confirms = member.confirms, 0
            self._leasing.on_confirmed(member, lease, now_ns)
            if report.terminated and self._evaluator.is_chosen(member):
                self._terminate(report.terminated, now_ns)
            event = sync.MemberContributed(trailer.worker, complete.round, report)
            self._mode.ask(event, now_ns)
            self._mode.tell(member, now_ns)
        self._mode.on_counted(now_ns)

    def _terminate(self, why: str, now_ns: int) -> None:
        """End the job: the evaluator has found that the parameters of its algorithm are final. The
        job ends with the fold that contains these parameters. It does not wait for the points of
        the open round, because the final parameters come from a sum over all points."""
        if not self._ending.begun and not self._stopping.asked:
            self._stopping.at_once = True
            self._stopping.reason = Reason("goal", {"goal": "terminated", "why": plain(why)})
            self._mode.stop(now_ns)

    def on_abstained(self, message: m.Abstained, member: Member, now_ns: int) -> None:
        """Handle the message of a member that contributes nothing to this round, because it has no
        points to visit or leaves its contribution out."""
        member.resting = True
        if message.skipped is None:
            self._reports[member.key] = message
            self._visit(member)
            if not self._leasing.waits(member, message.lease):
                self._rounds.on_abstained(message.worker)
        elif not self._skip(message, member, now_ns):
            return
        self._mode.ask(sync.MemberAbstained(message.worker), now_ns)
        if self._contributions.incomplete(*member.key):
            # The lease is confirmed later, when the earlier contributions of this member are
            # complete.
            member.confirms = message.lease
        else:
            if message.skipped is None:
                self._note_without_points(member)
            self._leasing.on_confirmed(member, message.lease, now_ns)
        if message.progress and message.skipped is None:
            self._mode.on_counted(now_ns)
        if message.skipped is not None:
            self._mode.call_back(member, now_ns)
            self._mode.on_counted(now_ns)
        elif self._leasing.is_outdated(member, message.lease):
            self._mode.call_back(member, now_ns)
        self._mode.end_if_idle(now_ns)

    def _skip(self, message: m.Abstained, member: Member, now_ns: int) -> bool:
        """Leave out a contribution at its member's request. The round continues without it, and its
        mean does not count the member. So the step keeps its size; it shrinks only when a worker
        has visited all of its points. Returns False if the job ends."""
        assert message.skipped is not None
        count, in_vain = self._progress.skip(message, self._commit(message))
        # The journal mentions the first, the tenth, the hundredth contribution that is left out,
        # and so on.
        if str(count).strip("0") == "1":
            fields = plain_reason(message.skipped).fields
            self._outbox.note(
                "skipped", worker=member.worker, name=member.name, count=count, fields=dict(fields)
            )
        if in_vain is not None:
            self._ending.finish(in_vain, self._mode.done, now_ns, failed=True)
        return in_vain is None

    def _visit(self, member: Member) -> None:
        """Count the points in the report of a member, once all of its contributions are complete:
        the steps that used these points are in them."""
        if self._reports and not self._contributions.incomplete(*member.key):
            message = self._reports.pop(member.key, None)
            if message is not None:
                self._progress.visit(member.worker, self._commit(message))

    def _commit(self, message: m.Abstained) -> int:
        """Record the progress of a member that contributes nothing; returns the number of points
        visited."""
        if not message.progress:
            return 0
        holder = (message.worker, message.incarnation)
        visited = m.ContributionReport(progress=message.progress, lease=message.lease)
        # the message may belong to the next fold instead of the one under way
        ahead = self._rounds.folding and message.round > self._rounds.round
        return self._leasing.commit(holder, visited, ahead=ahead)

    def forget(self, removed: Collection[tuple[int, int]]) -> None:
        """Forget members once every server knows of their removal."""
        for worker, incarnation in removed:
            self._contributions.forget(worker, incarnation)
        self._plan.lose(removed)

    def _note_without_points(self, member: Member) -> None:
        """Write to the journal, once per worker, that a worker has had no point to visit."""
        worker = member.worker
        new = worker not in self._progress.accounting.workers and worker not in self._noted
        # a moving chunk may go to this worker
        if new and not self._plan.moves:
            self._noted.add(worker)
            self._outbox.note("no-points", worker=worker, name=member.name)

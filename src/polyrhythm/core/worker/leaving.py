"""How a worker leaves the job, how it is removed, and how it rejoins.

*An evicted worker rejoins as a new incarnation, and drops its unacknowledged contributions. A
worker that has lost its link to a server rejoins in the same way. It first tells the lead, because
a job whose last worker rejoins must wait for it. A worker that rejoins and cannot reach a server
stays in the job without taking part in rounds, and tries again. A worker that has never reached all
servers fails.*

*A worker that is told to leave does not wait for other workers. It leaves when all of its
contributions are acknowledged, or after a time limit.*
"""

from polyrhythm.core import events as ev
from polyrhythm.core.effects import WITHOUT_PARAMETERS, End, Fail, Note, Rejoin, StopWaiting
from polyrhythm.core.machine import Reason
from polyrhythm.core.names import server_number
from polyrhythm.core.worker.joining import Parted
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.core.worker.state import WorkerState
from polyrhythm.wire import messages as m

SETTLE_NS = 5 * 10**9
"""How long a leaving worker waits for acknowledgements. With rounds they come only when the other
workers have contributed too. Contributions that have arrived count even if the worker leaves before
they are acknowledged."""


class Departure:
    __slots__ = ("_state",)

    def __init__(self, state: WorkerState) -> None:
        self._state = state

    # -- leaving -------------------------------------------------------------------------------

    def on_leave_asked(self, event: ev.LeaveAsked, now_ns: int) -> None:
        state = self._state
        state.asked = True
        state.leave_if_asked()
        if state.leaves:
            self.let_go(now_ns)

    def let_go(self, now_ns: int) -> bool:
        """Return control to the user's code: the worker was told to leave. Do nothing if the user's
        code has control already, or while a version is incomplete, because the user's code may
        still read the parameters. Returns whether control was returned."""
        state = self._state
        if state.user_computes or not state.mode.landing.whole:
            return False
        state.user_computes = True
        state.enter(Phase.PARTING, now_ns)
        # From now on the worker drops versions that it did not request. If it needs the final
        # version, it must pull that version.
        state.mode.must_pull = True
        state.mode.expect(None)
        state.outbox.out.append(StopWaiting())
        return True

    def on_leaving(self, event: ev.Leaving, now_ns: int) -> None:
        state = self._state
        state.leaving = event
        if event.at_once or event.failed or state.settled:
            self.depart(now_ns)
        elif state.phase is not Phase.LEAVING:
            state.enter(Phase.LEAVING, now_ns)
            state.leaves_by_ns = None if state.sharing else now_ns + SETTLE_NS
            state.mode.expect(None)

    def depart(self, now_ns: int) -> None:
        state = self._state
        assert state.leaving is not None
        reason, failed = state.leaving.reason, state.leaving.failed
        identity = state.outbox.identity()
        state.outbox.tell_lead(m.Leave(**identity, reason=reason, failed=failed))
        self._end(now_ns)
        state.outbox.out.append(End(reason))

    def fail(self, reason: Reason, now_ns: int, *, stopped: bool = False) -> None:
        self._end(now_ns)
        self._state.outbox.out.append(Fail(reason, stopped))

    def _end(self, now_ns: int) -> None:
        self._state.enter(Phase.ENDED, now_ns)
        self._state.leaves_by_ns = None

    def on_stop(self, message: m.Stop, now_ns: int) -> None:
        self.fail(message.reason, now_ns, stopped=True)

    def on_refusal(self, message: m.Refusal, now_ns: int) -> None:
        if message.ending and self._state.begun:
            self._end_loop(message.reason, now_ns)
        else:
            self.fail(message.reason, now_ns)

    def _end_loop(self, reason: Reason, now_ns: int) -> None:
        """End the loop of a worker that was not a member when the job ended. It cannot read the
        final version, so its loop ends without an error, with the parameters that it has."""
        state = self._state
        state.job_over = True
        state.over_because = reason
        state.user_computes = True
        state.enter(Phase.PARTING, now_ns)
        state.mode.expect(None)
        state.outbox.out.append(Note(WITHOUT_PARAMETERS, reason.noted()))
        state.outbox.out.append(StopWaiting(stop=True))

    # -- eviction and lost links ---------------------------------------------------------------

    def on_evicted(self, message: m.Evicted, now_ns: int) -> None:
        if message.incarnation == self._state.outbox.incarnation:
            self._lose_place(message.reason, now_ns)

    def on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        state = self._state
        if state.job_over:
            return
        lead = event.peer == state.outbox.seat.name
        # the detail names the process in which the lead runs
        peer = f"the lead ({event.peer})" if lead else event.peer
        fields = {"name": state.name, "peer": peer, "detail": event.detail}
        reason = Reason("link-lost", fields)
        server = None if lead else server_number(event.peer)
        if server is not None:
            if not state.joining.lose_link(server, event.incarnation):
                return
            state.pushes.relinking.add(server)
        if state.phase is Phase.LEAVING and (server is None or not state.survives(server)):
            # do not wait any longer: no other process can acknowledge what was sent to the lost
            # server
            self.depart(now_ns)
            return
        begun = state.mode.resumed >= 0 and not state.mode.stop
        if state.phase is Phase.JOINING and state.rejoins_because is not None:
            failed = Reason("rejoin-failed", {"attempt": event.detail})
            self.fail(failed.because(state.rejoins_because), now_ns)
        elif server is not None and state.phase is Phase.ADMITTED and state.begun:
            state.joining.on_unreached(server, event.incarnation, event.detail, now_ns)
        elif server is not None and state.job is not None:
            state.joining.wait_for_word(server, event.incarnation, reason, now_ns)
        elif not begun:
            self.fail(reason, now_ns)
        else:
            self._lose_place(reason, now_ns)

    def miss(self, parted: Parted, now_ns: int) -> None:
        """Rejoin: the link to a server is down, and the lead has not said in time whether that
        server is lost. When it rejoins, the worker learns which servers the job has. A worker whose
        loop has not begun fails if it cannot reach the same server a second time."""
        state = self._state
        missed = (parted.server, parted.incarnation)
        if missed in state.unreached and not state.begun:
            self.fail(parted.reason, now_ns)
            return
        state.unreached.add(missed)
        self._lose_place(parted.reason, now_ns)

    def _lose_place(self, reason: Reason, now_ns: int) -> None:
        """End this incarnation once the user's code has stopped using the parameters."""
        if self._state.phase is Phase.LEAVING:
            self.depart(now_ns)
        elif self._state.user_computes:
            self._state.over_because = reason
        else:
            self.come_back(reason, now_ns)

    def come_back(self, reason: Reason, now_ns: int) -> None:
        """Rejoin. If the worker was told to leave and has all slices of a version, it leaves
        instead."""
        state = self._state
        if state.leaves and state.mode.landing.whole:
            state.over_because = reason
            self.let_go(now_ns)
        else:
            self.rejoin(reason, now_ns)

    def rejoin(self, reason: Reason, now_ns: int) -> None:
        state = self._state
        state.over_because = None
        state.rejoins_because = reason
        before = state.outbox.incarnation
        # tell the lead, because a job whose last worker rejoins must wait for it
        state.outbox.tell_lead(m.Leave(**state.outbox.identity(), reason=reason, rejoins=True))
        state.begin(now_ns, state.mode.ticket)
        state.mode.expect(None)
        state.outbox.out.append(Rejoin(reason, before))

"""How a worker trains: what it contributes, when its contributions count, and when it continues.

*The user's code computes with one complete version, which does not change meanwhile.* The worker
holds its next contribution back while two contributions are unacknowledged (`pushes`), or until the
last one is answered (`modes`).
"""

from msgspec.structs import replace

from polyrhythm.core import events as ev
from polyrhythm.core.effects import CaptureState, ContributeNow, ShareState, TakeProgress
from polyrhythm.core.worker.leaving import Departure
from polyrhythm.core.worker.lifecycle import AWAITING, Phase
from polyrhythm.core.worker.state import WorkerState
from polyrhythm.wire import messages as m


class Training:
    __slots__ = ("_departure", "_state")

    def __init__(self, state: WorkerState, departure: Departure) -> None:
        self._state = state
        self._departure = departure

    # -- contributing --------------------------------------------------------------------------

    def on_computed(self, event: ev.Computed, now_ns: int) -> None:
        state = self._state
        state.user_computes = False
        if state.over_because is not None:
            self._departure.come_back(state.over_because, now_ns)
            return
        state.enter(Phase.WAITING, now_ns)
        mode, pushes = state.mode, state.pushes
        if mode.stop:
            self._read_final(now_ns)
        elif mode.answer_first and not state.leaves:
            pushes.held = event
            mode.expect(mode.ticket)
        elif pushes.full():
            pushes.held = event
        else:
            self._contribute(event, now_ns)
        if state.leaves:
            self._departure.let_go(now_ns)

    def _contribute_held(self, held: ev.Computed, now_ns: int) -> None:
        """Send the contribution that was held back, if it may be sent now. A leaving worker does
        not wait for the answer to its previous contribution."""
        state = self._state
        if not state.pushes.full() and (state.leaves or not state.mode.answer_first):
            state.pushes.held = None
            self._contribute(held, now_ns)

    def _contribute(self, event: ev.Computed, now_ns: int) -> None:
        state = self._state
        mode, pushes, leaves = state.mode, state.pushes, state.leaves
        pushes.sequence += 1
        if not leaves and mode.expect_next():
            self.resume_if_whole(now_ns)
        mode.contribute(event, pushes, leaves)
        if mode.overlaps and not leaves:
            self._resume(now_ns)

    def on_exhausted(self, event: ev.Exhausted, now_ns: int) -> None:
        state = self._state
        state.user_computes = False
        if state.over_because is not None:
            self._departure.come_back(state.over_because, now_ns)
            return
        mode = state.mode
        if mode.stop:
            state.enter(Phase.WAITING, now_ns)
            self._read_final(now_ns)
            return
        state.enter(mode.rests_in, now_ns)
        if mode.exhaust(leaves=state.leaves):
            self.resume_if_whole(now_ns)
        abstained = m.Abstained(
            **state.outbox.identity(),
            round=mode.landing.version + 1,
            lease=event.lease,
            skipped=event.skipped,
            progress=event.progress,
            model=event.model,
        )
        state.outbox.tell_lead(abstained)
        if state.leaves:
            self._departure.let_go(now_ns)

    def on_passed_all(self, event: ev.PassedAll, now_ns: int) -> None:
        state = self._state
        round_ = state.mode.landing.version + 1
        state.outbox.tell_lead(m.Asking(**state.outbox.identity(), round=round_))

    def on_pause(self, message: m.Pause, now_ns: int) -> None:
        if message.round == self._state.mode.resumed + 1:
            self._state.outbox.out.append(ContributeNow())

    # -- cuts ----------------------------------------------------------------------------------

    def on_withhold(self, message: m.Withhold, now_ns: int) -> None:
        state = self._state
        if message.incarnation == state.outbox.incarnation and not state.mode.stop:
            state.pushes.withheld = message.number
            identity = state.outbox.identity()
            withheld = m.Withheld(**identity, sequence=state.pushes.sequence, number=message.number)
            state.outbox.tell_lead(withheld)

    def on_keep(self, message: m.Keep, now_ns: int) -> None:
        """Let the process copy the state that belongs to a cut: the state after the last sent
        contribution. That is the present state if the next contribution is computed and held back,
        or if the worker rests. Otherwise it is the state at the end of the current iteration of the
        user's loop."""
        state = self._state
        if message.incarnation == state.outbox.incarnation:
            at_once = state.pushes.held is not None or state.phase is Phase.RESTING
            worker, incarnation = state.outbox.worker, state.outbox.incarnation
            state.outbox.out.append(CaptureState(message.number, worker, incarnation, at_once))

    # -- the state of the optimizer ------------------------------------------------------------

    def on_share(self, message: m.Share, now_ns: int) -> None:
        """Send the parameters and the state of a version to the servers, once this worker has that
        version and follows the routes of the order. The next version comes only when all servers
        hold the state."""
        state = self._state
        if message.incarnation != state.outbox.incarnation:
            return
        state.share_order, state.sharing = (None if message.done else message), False
        self.share_if_ready()
        if message.done and state.phase is Phase.LEAVING and state.settled:
            self._departure.depart(now_ns)

    def share_if_ready(self) -> None:
        state, order = self._state, self._state.share_order
        if order is None or state.mode.resumed != order.round:
            return
        if state.outbox.routing >= order.routing and state.joining.linked:
            state.share_order, state.sharing = None, True
            slices = tuple(state.mode.landing.slices.items())
            state.outbox.out.append(ShareState(slices, order.round, state.outbox.routing))

    def on_proceed(self, message: m.Proceed, now_ns: int) -> None:
        pushes = self._state.pushes
        if message.number == pushes.withheld:
            pushes.withheld = 0
            if pushes.held is not None:
                self._contribute_held(pushes.held, now_ns)

    # -- acknowledgements ----------------------------------------------------------------------

    def on_acknowledged(self, message: m.Acknowledged, now_ns: int) -> None:
        if message.incarnation == self._state.outbox.incarnation:
            self.acknowledge(message.server, message.sequence, message.routing, now_ns)

    def on_skipped(self, event: ev.Skipped, now_ns: int) -> None:
        state = self._state
        if state.joining.routed and event.incarnation in (0, state.outbox.incarnation):
            self.acknowledge(event.server, event.sequence, event.routing, now_ns)

    def acknowledge(self, server: int, sequence: int, routing: int, now_ns: int) -> None:
        state = self._state
        if state.pushes.acknowledge(server, sequence, routing):
            self.on_secured(now_ns)

    def on_secured(self, now_ns: int) -> None:
        """Send the contribution that was held back, or leave. Call this when every contribution is
        safe on the servers."""
        state = self._state
        pushes = state.pushes
        if pushes.held is not None:
            self._contribute_held(pushes.held, now_ns)
        if state.phase is Phase.LEAVING and state.settled:
            self._departure.depart(now_ns)

    # -- after the release ---------------------------------------------------------------------

    def _read_final(self, now_ns: int) -> None:
        """Read the final parameters, because the job has ended. The worker contributes nothing
        more."""
        state = self._state
        if state.mode.read_final(state.pushes.sequence):
            self.resume_if_whole(now_ns)

    def on_release(self, message: m.Release, now_ns: int) -> None:
        state = self._state
        outbox, pushes = state.outbox, state.pushes
        if message.incarnation != outbox.incarnation:
            return
        outbox.view = message.view
        if message.stop:
            pushes.held = None
            pushes.withheld = 0
        if state.phase is Phase.RESTING:
            state.enter(Phase.WAITING, now_ns)
        idle = state.phase in AWAITING and pushes.held is None
        state.mode.release(message, pushes.sequence, idle)
        if message.stop:
            state.leave_if_asked()
        self.resume_if_whole(now_ns)

    def on_progressed(self, message: m.Progressed, now_ns: int) -> None:
        state = self._state
        if message.incarnation == state.outbox.incarnation:
            # the next `Resume` repeats this, because no `Release` follows
            mode = state.mode
            mode.terms = replace(mode.terms, progress=message.progress, rank=message.rank)
            state.outbox.out.append(TakeProgress(message.progress, message.rank))

    def on_landed(self, event: ev.Landed, now_ns: int) -> None:
        state = self._state
        incarnation = event.incarnation
        if not state.joining.routed or (incarnation and incarnation != state.outbox.incarnation):
            return  # the slice was sent to an earlier incarnation of this worker
        mode, server = state.mode, event.server
        if event.early:
            mode.landing.land_early(server, event.slice, event.round, event.routing)
        else:
            mode.landing.land(server, event.slice, event.round, event.holds)
            self.acknowledge(server, event.sequence, event.routing, now_ns)
        if state.phase is Phase.RESTING:
            mode.landed_while_resting()
        if mode.landing.whole or mode.must_pull:
            self.resume_if_whole(now_ns)

    def resume_if_whole(self, now_ns: int) -> None:
        state = self._state
        if state.phase not in AWAITING or state.pushes.held is not None:
            return
        mode = state.mode
        if state.leaves and self._departure.let_go(now_ns):
            return
        if state.points is not None and not state.leased:
            return
        if mode.may_go_on():
            self._resume(now_ns)
        elif mode.must_pull:
            mode.pull_missing()

    def _resume(self, now_ns: int) -> None:
        state = self._state
        state.enter(Phase.COMPUTING, now_ns)
        state.begun = state.user_computes = True
        state.mode.resume()
        self.share_if_ready()

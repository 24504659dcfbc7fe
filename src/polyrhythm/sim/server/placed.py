"""The slices that the lead has placed on a simulated server: builds the slice store, and performs
the effects that change it or the leases of its readers.

This file mirrors `runtime/server/placed.py`, with sizes in place of bytes.
"""

from collections.abc import Callable

from polyrhythm.core import effects as fx
from polyrhythm.core.kinds import keeps_rows, sums_only
from polyrhythm.core.machine import Event
from polyrhythm.core.server.stepping import Stepping
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.errors import LinkError
from polyrhythm.sim.checker import Checker
from polyrhythm.sim.model.sizes import quantised_sizes, slice_sizes, state_sizes
from polyrhythm.sim.server import rows_store
from polyrhythm.sim.server import slice_store as store_modes
from polyrhythm.sim.server.slice_store import CarriedCopy, CarriedState, SimSliceStore
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import JobSpec


def choose_slice_store(job: JobSpec) -> type[SimSliceStore]:
    """The class of a server's slice store, which depends on the job's sync policy and kind."""
    if not traits_of(job.sync).rounds:
        return store_modes.SimOnArrivalSliceStore
    return rows_store.SimRowsSliceStore if keeps_rows(job.kind) else store_modes.SimRoundsSliceStore


class SimPlacedSlices:
    def __init__(
        self,
        server: int,
        job: m.JobSpec,
        checker: Checker | None,
        *,
        tell: Callable[[int, m.Message, int], None],
        put: Callable[[Event], None],
    ) -> None:
        """`tell` sends a message with a payload of this many bytes to another server. `put` hands
        an event to this server's machine."""
        self.store: SimSliceStore | None = None
        """The slice store; None until the lead has placed slices on this server."""
        self._server = server
        self._job = job
        self._checker = checker
        self._tell = tell
        self._put = put
        self._store_type = choose_slice_store(job)
        self._quantised: dict[int, int] = {}
        """The slices that contributions contain in quantised form, with their sizes."""

    def placed(self) -> SimSliceStore:
        """The slice store. Raises an error if the lead has not placed slices on this server."""
        if self.store is None:
            raise LinkError("slices came before this server was told to hold any")
        return self.store

    # -- routes --------------------------------------------------------------------------------

    def build(self, effect: fx.Build) -> SimSliceStore:
        self._quantised = quantised_sizes(effect.spec, self._job)
        self.store = self._store_type(
            self._server,
            slice_sizes(effect.spec, self._job),
            effect.routes,
            effect.routing,
            Stepping(self._job),
            keep=self._checker is not None,
            fresh=effect.fresh,
        )
        if sums_only(self._job):
            self.store.state_nbytes = state_sizes(effect.spec, self._job)
        if self._checker is not None:
            self._checker.memories[self._server] = self.store
        return self.store

    def take_shared(self, message: m.Shared) -> None:
        event = self.placed().take_shared(message)
        if event is not None:
            self._put(event)

    def reroute(self, effect: fx.Reroute) -> None:
        self._put(self.placed().reroute(effect.routes, effect.routing))

    # -- replicas ------------------------------------------------------------------------------

    def take_from_primary(self, message: CarriedCopy | CarriedState) -> None:
        """Apply a step or a state that a primary has sent."""
        store = self.placed()
        event = store.copy(message) if isinstance(message, CarriedCopy) else store.adopt(message)
        if self._checker is not None:
            self._checker.check_rows(self._server, message.slice)
        if event is not None:
            self._put(event)

    def send_steps(self) -> None:
        """Send the steps of this server's slices to their replicas."""
        store = self.placed()
        for peer, copy in store.take_outgoing_steps():
            nbytes = store.nbytes_at(copy.slice)
            # The step of a single contribution is forwarded in the form of the contribution.
            if copy.worker >= 0:
                nbytes = self._quantised.get(copy.slice, nbytes)
            self._tell(peer, copy, nbytes)

    def send_state(self, effect: fx.SendState) -> None:
        store = self.placed()
        for state in store.states(effect.to, effect.held, effect.routing):
            nbytes = store.nbytes_at(state.slice) if state.parts else 0
            self._tell(effect.to, state, nbytes)

    def fetch_state(self, effect: fx.FetchState) -> None:
        fetch = self.placed().fetch(effect.slices, effect.routing)
        self._tell(effect.primary, fetch, 0)

    # -- contributions, members and readers ----------------------------------------------------

    def add(self, message: m.Contribution) -> Event | None:
        """Add a slice of a contribution. Returns an event for this server's machine, if any."""
        store = self.store
        assert store is not None
        event = store.add(message)
        if store.outgoing_steps:
            self.send_steps()
        return event

    def enlist(self, effect: fx.Enlist) -> None:
        if self.store is not None:
            self.store.enlist(effect.members)

    def unlease(self, effect: fx.Unlease) -> None:
        if self.store is not None:
            self.store.unlease(effect.worker, effect.ticket)

    def free_slots(self, effect: fx.FreeSlots) -> None:
        self.placed().free(effect.slots)

    def freeze(self, effect: fx.Freeze) -> None:
        self.placed().freeze()

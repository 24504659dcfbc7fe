"""The slices that the lead has placed on a server: builds the slice store, and performs the effects
that change it or the leases of its readers."""

from collections.abc import Callable, Sequence

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Event
from polyrhythm.core.names import server_number, worker_name
from polyrhythm.errors import LinkError
from polyrhythm.io.link import Link, Payload, Sendable
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.net.peers import Peers
from polyrhythm.runtime.server.slice_store import (
    SliceStore,
    SummedSliceStore,
    choose_slice_store,
)
from polyrhythm.wire import messages as m


class PlacedSlices:
    def __init__(
        self,
        server: int,
        job: m.JobSpec,
        peers: Peers,
        *,
        tell: Callable[[int, m.Message, Sequence[Sendable]], None],
        put: Callable[[Event], None],
        shared: bool,
    ) -> None:
        """`tell` sends a message to another server. `put` hands an event to this server's machine.
        `shared`: other processes of this host can read the memory of the slices."""
        self.store: SliceStore | None = None
        """The slice store; None until the lead has placed slices on this server."""
        self._server = server
        self._job = job
        self._peers = peers
        self._tell = tell
        self._put = put
        self._shared = shared
        self._store_type = choose_slice_store(job)

    def placed(self) -> SliceStore:
        """The slice store. Raises an error if the lead has not placed slices on this server."""
        if self.store is None:
            raise LinkError("slices came before this server was told to hold any")
        return self.store

    # -- routes --------------------------------------------------------------------------------

    def build(self, effect: fx.Build) -> SliceStore:
        if self.store is not None:  # the seeder died, so the slices are allocated again
            self.store.close()
        self.store = self._store_type(
            self._server,
            effect,
            self._job,
            lambda nbytes: Segment(nbytes, shared=self._shared),
            tell=self._tell,
            put=self._put,
        )
        if isinstance(self.store, SummedSliceStore):
            self.store.link_over_bytes = self._link_over_bytes
        return self.store

    def _link_over_bytes(self, worker: int, incarnation: int) -> Link | None:
        link = self._peers.get(worker_name(worker))
        if link is None or link.incarnation != incarnation or link.kind.has_payload_references:
            return None
        return link

    def reroute(self, effect: fx.Reroute) -> SliceStore:
        store = self.placed()
        _, old = store.reroute(effect.routes, effect.routing)
        self._withdraw(old)
        return store

    # -- replicas ------------------------------------------------------------------------------

    def take_from_primary(self, message: m.Copy | m.State, payload: Payload | None) -> None:
        """Apply a step or a state that a primary has sent. This runs on the thread that reads the
        primary's link, so steps are applied in order."""
        follower = self.placed().follower
        data = None if payload is None else payload.view()
        if isinstance(message, m.Copy):
            follower.step(message, data)
        else:
            follower.adopt(message, data)

    def take_shared(self, message: m.Shared, payload: Payload | None) -> None:
        """Receive a part of the state that a worker shares. Ignored in jobs whose servers hold the
        state."""
        store = self.placed()
        if isinstance(store, SummedSliceStore):
            store.take_shared(message, memoryview(b"") if payload is None else payload.view())

    def free_states(self, peer: str) -> None:
        """Drop incomplete states from a peer whose link has closed."""
        server = server_number(peer)
        if server is not None and self.store is not None:
            self.store.follower.forget(server)

    def send_state(self, effect: fx.SendState) -> None:
        self.placed().send_state(effect.to, effect.held, effect.routing)

    def fetch_state(self, effect: fx.FetchState) -> None:
        fetch = self.placed().follower.fetch(effect.slices, effect.routing)
        self._tell(effect.primary, fetch, ())

    # -- members and readers -------------------------------------------------------------------

    def enlist(self, effect: fx.Enlist) -> None:
        if self.store is not None:
            self.store.enlist(effect.members)

    def unlease(self, effect: fx.Unlease) -> None:
        if self.store is not None:
            self._withdraw(self.store.unlease(effect.worker, effect.ticket))

    def free_slots(self, effect: fx.FreeSlots) -> None:
        self._withdraw(self.placed().primary.slots.free(effect.slots))

    def _withdraw(self, segments: list[Segment]) -> None:
        for segment in segments:
            for link in self._peers.all():
                link.withdraw(segment.id)

    def freeze(self, effect: fx.Freeze) -> None:
        self.placed().freeze()

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

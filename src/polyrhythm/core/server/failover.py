"""What a server does when routes change: it becomes the primary of slices, gives up slices, and
fetches copies.

*In a new routing epoch a server may become the primary of more or of fewer slices. It keeps the
contents of its slices, reports to the lead which contributions they contain, and fetches the slices
that it must copy. The primary of a slice acknowledges, reports and publishes a step only when every
replica has made the step too.*
"""

from collections.abc import Sequence

from polyrhythm.core import events as ev
from polyrhythm.core.effects import (
    FIRST_SLICES,
    NO_SLICE,
    Build,
    Drop,
    Note,
    Reach,
    Reroute,
    Send,
    SendState,
)
from polyrhythm.core.links import Links
from polyrhythm.core.machine import Reason
from polyrhythm.core.names import server_name
from polyrhythm.core.server.acks import EarlyAcks
from polyrhythm.core.server.modes import ServerMode
from polyrhythm.core.server.replication import ReplicaFetch, Replication, Step
from polyrhythm.core.server.state import ServerState
from polyrhythm.wire import messages as m


class Failover:
    def __init__(self, state: ServerState, mode: ServerMode) -> None:
        self._state = state
        self._mode = mode
        self._replica_fetch = ReplicaFetch(state.server)
        self.partners = Links()
        """Links to the servers that slices are copied to or from."""
        self.unseeded: set[int] = set()
        """The slices that lack their initial contents."""
        self._seeding = 0
        """The routing epoch whose order to allocate slices this server still has to answer. It
        answers when the slices have their initial contents. 0 if there is no such order."""
        self._built = False
        self._has_none = False
        """Whether this server has joined the job and holds no slice yet."""
        self._fetches: dict[int, m.Fetch] = {}
        """Per server, its request for states of slices that this server cannot answer yet."""
        self._early = EarlyAcks()
        self._held_back: list[Step] = []
        """Steps that all replicas have confirmed while slices move. The server acknowledges them to
        the workers once no slice moves."""
        mode.finished = self.place_if_ready

    # -- routes --------------------------------------------------------------------------------

    def follow(self) -> None:
        """Begin to change to the routes of the next epoch."""
        state, place = self._state, self._state.epoch.place
        assert place is not None
        holders = [set(r.holders) for r in place.routes if state.server in r.holders]
        self._note_slices(len(holders), len(place.routes))
        # a link to the lead's server exists already
        partners = set().union(*holders) - {state.server, state.seat.server}
        specs = [spec for spec in place.servers if spec.server in partners]
        self.partners.want(specs)
        if place.fresh or not self._built:
            self._built = True
            state.out.append(Build(place.spec, place.routes, place.routing, place.fresh))
            self._begin_with(place)
            self._enlist()
        else:
            # the event `Rerouted` reports on the members, so they must be set first
            self._enlist()
            state.out.append(Reroute(place.routes, place.routing))
        if self.partners:
            me = next(s.incarnation for s in place.servers if s.server == state.server)
            state.out.append(Reach(self.partners.dial(specs), me))
        self.place_if_ready()

    def _note_slices(self, held: int, slices: int) -> None:
        """Report that this server has joined and holds no slice, and later that it has got
        slices."""
        if not self._built and not held:
            self._report(NO_SLICE, held, slices)
        elif self._has_none and held:
            self._report(FIRST_SLICES, held, slices)

    def _report(self, what: str, held: int, slices: int) -> None:
        self._has_none = not held
        if self._state.seat.server != self._state.server:  # the journal is on the lead's side
            self._state.out.append(Note(what, {"held": held, "of": slices}))

    def _enlist(self) -> None:
        """Set the members that came with `Place`. A server that is the primary of no slice gets no
        `Fold`, so it learns the members only from `Place`."""
        epoch = self._state.epoch
        if epoch.introduced is not None:
            self._state.enlist(epoch.introduced)
            epoch.introduced = None

    def _begin_with(self, place: m.Place) -> None:
        state = self._state
        mine = self._primary_of(place)
        state.mine = frozenset(mine)
        kept = {i for i, route in enumerate(place.routes) if state.server in route.holders}
        self.unseeded = kept if place.fresh else set()
        self._seeding = place.routing if self.unseeded else 0
        self._replica_fetch.begin(place)
        state.replication = Replication()
        state.replication.reroute(mine.items(), place.routing)
        state.epoch.begin(place.routing)

    def _primary_of(self, place: m.Place) -> dict[int, m.Route]:
        server = self._state.server
        return {i: route for i, route in enumerate(place.routes) if route.primary == server}

    def on_rerouted(self, event: ev.Rerouted, now_ns: int) -> None:
        """Adapt leases, acknowledgements and replication to the slices that this server now has
        under the new routes."""
        state = self._state
        places = state.epoch.hold(event)
        if places is None:
            return
        place = places[-1]
        state.leases.on_rerouted()
        for each in places:
            self._replica_fetch.follow(each)
        before, state.mine = state.mine, frozenset(self._primary_of(place))
        moved = state.mine != before
        if moved:
            state.replication.reconsider(event.rows, event.version)
        settled, self._held_back = self._held_back, []
        for each in places:
            settled += state.replication.reroute(self._primary_of(each).items(), each.routing)
        state.view = max(state.view, place.view)
        if moved:
            # These steps were made in the slices that this server had before. `take_over`
            # acknowledges the steps that are in all of its present slices.
            settled = []
            state.epoch.since = place.routing
            # forget the order for the fold under way: the lead repeats it for slices that are not
            # folded
            state.folding = None
            state.leases.move(event.version)
            if event.version > 0:
                state.shared = -1
            self._mode.take_over(event, had_none=not before)
        # Confirm again what was copied: earlier confirmations may not cover all slices that this
        # server copies now.
        for primary, made in event.copied:
            self.on_step_copied(ev.StepCopied(primary, made))
        self._settle(settled, now_ns)
        for message in self._early.take():
            self.confirm(message, now_ns, adopted=isinstance(message, m.Adopted))
        self.answer_fetches()
        self.place_if_ready()

    def place_if_ready(self) -> None:
        """Tell the lead that this server applies the routes. Three conditions must hold: it has the
        slices that the routes give it, it has a link to every partner, and with rounds the last
        fold is on every replica."""
        state, epoch = self._state, self._state.epoch
        place, rerouted = epoch.place, epoch.rerouted
        if place is None or rerouted is None or not self.partners.complete:
            return
        state.out += self._replica_fetch.fetch(place)
        if state.folding is not None or not self._mode.may_be_placed():
            return
        epoch.arrive()
        contained = self._mode.contained()
        for worker, sequence in state.acks.on_folded(state.versions.version, named=contained):
            state.acknowledge(worker, sequence)
        rows = self._mode.placed_rows(rerouted.rows)
        state.tell_lead(m.Placed(**state.identity(), round=rerouted.version, rows=rows))
        self._report_seeded()
        for pull in list(state.leases.pulls.values()):
            self._mode.answer(pull)
        self.answer_fetches()

    def on_slice_seeded(self, event: ev.SliceSeeded) -> None:
        if event.routing != self._seeding or event.slice not in self.unseeded:
            # Ignore a seed that came twice, or that was sent before the slices were allocated
            # again.
            return
        self.unseeded.remove(event.slice)
        self._report_seeded()

    def _report_seeded(self) -> None:
        """Tell the lead that all slices have their initial contents. Wait until `Placed` was sent:
        slices from a checkpoint may be ready before all links to partners are open."""
        if self._seeding and not self.unseeded and self._seeding == self._state.epoch.routing:
            self._seeding = 0
            self._state.tell_lead(m.Seeded(**self._state.identity()))

    # -- replicas ------------------------------------------------------------------------------

    def on_state_adopted(self, event: ev.StateAdopted) -> None:
        if self._replica_fetch.on_adopted(event):
            state = self._state
            adopted = m.Adopted(
                term=state.seat.term, routing=state.epoch.held, server=state.server, rows=event.rows
            )
            state.out.append(Send(server_name(event.primary), adopted))

    def on_step_copied(self, event: ev.StepCopied) -> None:
        state = self._state
        copied = m.Copied(
            term=state.seat.term, routing=state.epoch.held, server=state.server, rows=event.rows
        )
        state.out.append(Send(server_name(event.primary), copied))

    def fetch(self, message: m.Fetch) -> None:
        """Answer a request for states. The request waits while this server is in an earlier epoch
        than the sender, or while a fold writes to its slices."""
        state, epoch = self._state, self._state.epoch
        if epoch.changing or state.writing or message.routing > epoch.held:
            self._fetches[message.server] = message
            return
        self._fetches.pop(message.server, None)
        # the request may name more slices than the peer copies now; the peer ignores the others
        if state.replication.copies(message.server):
            state.out.append(SendState(message.server, message.held, message.routing))

    def answer_fetches(self) -> None:
        for fetch in list(self._fetches.values()):
            self.fetch(fetch)

    def confirm(self, message: m.Copied | m.Adopted, now_ns: int, *, adopted: bool) -> None:
        state, peer = self._state, message.server
        if message.routing > state.epoch.held:
            if not self._early.keep(message):
                excess = Reason("unexpected-copies", {"server": peer})
                state.out.append(Drop(server_name(peer), excess))
            return  # the confirmation refers to routes that this server does not have yet
        if not state.replication.knows(peer, message.routing):
            return  # ignore a confirmation that does not cover all slices that the peer copies now
        caught_up = state.replication.caught_up(peer)
        settled = state.replication.confirm(peer, message.rows, adopted=adopted)
        if state.replication.caught_up(peer) and not caught_up:
            # The report names the epoch that the slices follow. The lead may not know yet that this
            # server applies it.
            held = state.epoch.held
            state.tell_lead(m.CaughtUp(**state.identity() | {"routing": held}, peer=peer))
        self._settle(settled, now_ns)
        self.place_if_ready()

    def _settle(self, steps: Sequence[Step], now_ns: int) -> None:
        """Let the mode acknowledge these steps, which all replicas have made. While slices move,
        keep them for later."""
        if self._state.epoch.changing:
            self._held_back += steps
            return
        for step in steps:
            self._mode.on_settled(step, now_ns)

    def on_link_closed(self, server: int, event: ev.LinkClosed) -> None:
        """Handle the end of the link to another server. Tell the lead if slices were copied over
        it."""
        if not self.partners.on_ended(server, event.incarnation):
            return
        self._early.forget(server)
        self._fetches.pop(server, None)
        if self.partners.wants(server, event.incarnation):
            gone = m.Unreachable(
                **self._state.identity(),
                peer=server_name(server),
                peer_incarnation=self.partners.incarnation(server),
                detail=event.detail,
            )
            self._state.tell_lead(gone)

"""The state that the parts of the server machine share, and the messages that they all send."""

from typing import Any

from polyrhythm.core.effects import Enlist, Send
from polyrhythm.core.events import Rerouted
from polyrhythm.core.kinds import sums_only
from polyrhythm.core.machine import Effect
from polyrhythm.core.names import LEAD, worker_name
from polyrhythm.core.seat import UNKNOWN_SEAT
from polyrhythm.core.server.acks import Acks
from polyrhythm.core.server.leases import Leases
from polyrhythm.core.server.replication import Replication
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import MemberSpec, Place


class RoutingEpoch:
    """The routing epoch of a server, and the epoch that it is changing to.

    *A change has three steps: the lead sends new routes; the server adds and removes slices
    accordingly; the server reports that it follows the routes. If the lead sends newer routes
    before the second step is complete, the server skips an epoch. Other servers may have applied
    that epoch, and sent requests and confirmations in it.*
    """

    def __init__(self) -> None:
        self.routing = 0
        """The epoch that this server has reported to the lead. Other processes can rely on it."""
        self.held = 0
        """The epoch whose routes the slices follow."""
        self.since = 0
        """The epoch in which this server's set of primary slices last changed."""
        self.place: Place | None = None
        """The routes of the epoch that the server changes to; None if it is not changing."""
        self.rerouted: Rerouted | None = None
        """The event that says what the slices contain; None until the server has the slices of the
        routes in `place`."""
        self.introduced: tuple[MemberSpec, ...] | None = None
        """The members in the message with the routes; None if a fold has named members since."""
        self._overtaken: list[Place] = []
        """The routes of skipped epochs: newer routes came before the server had the slices of these
        routes."""

    @property
    def changing(self) -> bool:
        """Whether the server still lacks slices of the newest routes."""
        return self.place is not None and self.rerouted is None

    def set_out(self, place: Place) -> None:
        if self.place is not None and self.rerouted is None:
            self._overtaken.append(self.place)
        self.place, self.rerouted = place, None
        self.introduced = place.members

    def begin(self, routing: int) -> None:
        """Begin with the first routes, whose slices are allocated and have no parameters yet."""
        self._overtaken.clear()
        self.rerouted = Rerouted(routing, 0, ())
        self.held = self.since = routing

    def hold(self, event: Rerouted) -> list[Place] | None:
        """Record that the server has the slices of the new routes. Returns the routes of the
        skipped epochs and of this epoch; None if newer routes have come meanwhile."""
        place = self.place
        if place is None or event.routing != place.routing:
            return None
        self.rerouted, self.held = event, event.routing
        overtaken, self._overtaken = self._overtaken, []
        return [*overtaken, place]

    def arrive(self) -> None:
        """Record that this server has reported the new epoch, so other processes can rely on it."""
        assert self.place is not None
        self.routing = self.place.routing
        self.place = None


class ServerState:
    def __init__(self, server: int, job: m.JobSpec, leases: Leases) -> None:
        self.server = server
        self.job = job
        self.sums_only = sums_only(job)
        self.leases = leases
        self.versions = leases.versions
        self.acks = Acks()
        self.replication = Replication()
        self.epoch = RoutingEpoch()
        self.mine: frozenset[int] = frozenset()
        """The slices whose primary this server is."""
        self.seat = UNKNOWN_SEAT
        self.view = 0
        self.folding: m.Fold | None = None
        self.writing = False
        """Whether the fold under way still writes to the slices. After that it only waits for
        replicas."""
        self.frozen = False
        self.cutting = 0
        """The number of the cut whose slices are being copied, or 0. Folds and changes of routes
        wait for the copy; the fold then comes first."""
        self.shared = 0
        """With `--optimizer-on workers`: the last version whose parameters and optimizer state this
        server has; -1 if there is none. Every server begins with those of version 0."""
        self.since_ns = 0
        """Since when the server has waited for what it waits for now."""
        self.out: list[Effect] = []

    @property
    def has_state(self) -> bool:
        """Whether this server has the parameters and the state of the present version: always, unless
        workers have them (`--optimizer-on workers`)."""
        return not self.sums_only or self.shared == self.versions.version

    def is_member(self, worker: int, incarnation: int) -> bool:
        return self.acks.members.get(worker) == incarnation

    def enlist(self, members: tuple[m.MemberSpec, ...]) -> None:
        """Set the members of the view that the lead has announced."""
        gone = self.acks.enlist(members)
        if gone is None:
            return
        for worker, incarnation in gone:
            # The worker keeps its leases until its link ends, because it may still read the
            # versions.
            self.leases.pulls.pop(worker, None)
            self.replication.forget_worker(worker, incarnation)
        self.out.append(Enlist(members))

    def identity(self) -> dict[str, Any]:
        return {
            "term": self.seat.term,
            "view": self.view,
            "routing": self.epoch.routing,
            "server": self.server,
        }

    def tell_lead(self, message: m.Message) -> None:
        self.out.append(Send(LEAD, message))

    def report(self, worker: int, incarnation: int, sequence: int, round_: int) -> None:
        """Tell the lead that a contribution is in all slices whose primary this server is."""
        arrived = m.Arrived(
            term=self.seat.term,
            view=self.view,
            routing=self.epoch.held,
            server=self.server,
            worker=worker,
            incarnation=incarnation,
            sequence=sequence,
            round=round_,
        )
        self.out.append(Send(LEAD, arrived))

    def acknowledge(self, worker: int, sequence: int) -> None:
        message = m.Acknowledged(
            term=self.seat.term,
            view=self.view,
            routing=self.epoch.since,
            server=self.server,
            worker=worker,
            incarnation=self.acks.members[worker],
            sequence=self.acks.acknowledge(worker, sequence),
        )
        self.out.append(Send(worker_name(worker), message))

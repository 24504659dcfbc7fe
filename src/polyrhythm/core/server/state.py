"""The state that the parts of the server machine share, and the messages that they all send."""

from typing import Any

from polyrhythm.core.effects import Enlist, Send
from polyrhythm.core.machine import Effect
from polyrhythm.core.names import LEAD, worker_name
from polyrhythm.core.server.acks import Acks
from polyrhythm.core.server.leases import Leases
from polyrhythm.core.server.replication import Replication
from polyrhythm.core.server.routing_epoch import RoutingEpoch
from polyrhythm.wire import messages as m


class ServerState:
    def __init__(self, server: int, job: m.JobSpec, leases: Leases) -> None:
        self.server = server
        self.job = job
        self.leases = leases
        self.versions = leases.versions
        self.acks = Acks()
        self.replication = Replication()
        self.epoch = RoutingEpoch()
        self.mine: frozenset[int] = frozenset()
        """The slices that this server is the primary of."""
        self.term = 0
        self.view = 0
        self.folding: m.Fold | None = None
        self.writing = False
        """Whether the fold under way is writing to the slices. When it has written them, it only
        waits for replicas."""
        self.frozen = False
        self.cutting = 0
        """The number of the cut whose slices are being copied, or 0. Folds and changes of routes
        wait until the copy is complete, and the fold then comes first."""
        self.since_ns = 0
        """When the server began to wait for what it waits for now."""
        self.out: list[Effect] = []

    def is_member(self, worker: int, incarnation: int) -> bool:
        return self.acks.members.get(worker) == incarnation

    def enlist(self, members: tuple[m.MemberSpec, ...]) -> None:
        """The lead has named the members of its view: set them."""
        gone = self.acks.enlist(members)
        if gone is None:
            return
        for worker, incarnation in gone:
            # The worker keeps its leases until its link closes, because it may still read the
            # versions.
            self.leases.pulls.pop(worker, None)
            self.replication.forget_worker(worker, incarnation)
        self.out.append(Enlist(members))

    def identity(self) -> dict[str, Any]:
        return {
            "term": self.term,
            "view": self.view,
            "routing": self.epoch.routing,
            "server": self.server,
        }

    def tell_lead(self, message: m.Message) -> None:
        self.out.append(Send(LEAD, message))

    def report(self, worker: int, incarnation: int, sequence: int, round_: int) -> None:
        """Tell the lead that a contribution is in all slices of which this server is the
        primary."""
        arrived = m.Arrived(
            term=self.term,
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
            term=self.term,
            view=self.view,
            routing=self.epoch.since,
            server=self.server,
            worker=worker,
            incarnation=self.acks.members[worker],
            sequence=self.acks.acknowledge(worker, sequence),
        )
        self.out.append(Send(worker_name(worker), message))

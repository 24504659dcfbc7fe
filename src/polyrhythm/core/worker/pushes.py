"""What one incarnation of a worker contributes, until every slice of it is acknowledged.

*A worker keeps a contribution until every slice acknowledged it, with at most 2 unacknowledged. After a
routing change it sends again only what was not acknowledged, and only to the servers that are the
primaries now of what others were before. An acknowledgement is of the slices that its server was the
primary of in the epoch that it was given in.*
"""

from msgspec.structs import replace

from polyrhythm.core.effects import PushSlices
from polyrhythm.core.events import Computed
from polyrhythm.core.worker.assembly import NOTHING, Assembly
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.outstanding import Outstanding, SentContribution
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m


class Pushes:
    def __init__(self, post: WorkerOutbox) -> None:
        self._post = post
        self.sequence = 0
        """Of the last contribution that was begun."""
        self.outstanding = Outstanding()
        self.held: Computed | None = None
        """Computed, and kept back."""
        self.relinking: set[int] = set()
        """Servers whose link has ended, and what was on its way to them with it; or whose place
        another has."""
        self._early: dict[int, tuple[int, int]] = {}
        """Per server, what it acknowledged as the primary of what this worker does not know yet."""

    @property
    def full(self) -> bool:
        """As many are unacknowledged as may be."""
        return len(self.outstanding) >= m.WINDOW

    @property
    def acknowledged(self) -> int:
        """The last one that every server has acknowledged."""
        return self.outstanding.first(self.sequence + 1) - 1

    def send(
        self, computed: Computed, landing: Assembly, pull: int = 0, pulled: int = NOTHING
    ) -> None:
        """The contribution whose sequence was taken last, computed on what has landed. `pull`: ask
        for the parameters with this ticket; `pulled`: those of this ticket were copied."""
        post, sequence, round_ = self._post, self.sequence, landing.version + 1
        sent = self.outstanding.send(sequence, round_, computed, landing.routes)
        for server, slices in landing.slices.items():
            if server not in self.relinking:  # otherwise after what must be sent to it again
                self._push(server, slices, sent, pull, pulled)
        # no more than 15 keywords: Python would put them into a dict, which takes longer than all else
        trailer = m.Trailer(
            term=post.term,
            view=post.view,
            routing=post.routing,
            worker=post.worker,
            incarnation=post.incarnation,
            sequence=sequence,
            round=round_,
            weight=computed.weight,
            objective=computed.objective,
            compute_ns=computed.compute_ns,
            wait_ns=computed.wait_ns,
            transfer_ns=computed.transfer_ns,
            progress=computed.progress,
            lease=computed.lease,
            steps=computed.steps,
        )
        probed = computed.probe_ns or computed.probe_points or computed.probe is not None
        if probed or computed.abandoned_ns or computed.batch:
            trailer = replace(
                trailer,
                probe=computed.probe,
                probe_points=computed.probe_points,
                probe_ns=computed.probe_ns,
                abandoned_ns=computed.abandoned_ns,
                batch=computed.batch,
                micro_ns=computed.micro_ns,
            )
        post.tell_lead(trailer)

    def _push(
        self,
        server: int,
        slices: tuple[int, ...],
        sent: SentContribution,
        pull: int = 0,
        pulled: int = NOTHING,
    ) -> None:
        post, computed = self._post, sent.computed
        post.do(
            PushSlices(
                server,
                slices,
                sent.sequence,
                sent.round,
                post.view,
                post.routing,
                computed.buffer,
                computed.weight,
                computed.rates,
                pull,
                pulled,
            )
        )

    def acknowledge(self, server: int, sequence: int, routing: int) -> bool:
        """False if it was said in an epoch that this worker is not in: of which slices that is said,
        the lead will say."""
        if routing > self._post.routing:
            early = self._early.get(server, (0, 0))
            self._early[server] = max(early, (sequence, routing))
            return False
        self.outstanding.acknowledge(server, sequence, routing)
        return True

    def reroute(self, routes: tuple[m.Route, ...]) -> None:
        """Others are primaries now, and all of them are linked: what is not acknowledged goes to
        them."""
        relinked, self.relinking = self.relinking, set()
        for sent, moved in self.outstanding.reroute(routes, relinked):
            for server, slices in moved.items():
                self._push(server, slices, sent)

    def take_early(self) -> list[tuple[int, int, int]]:
        """What was acknowledged too early, to be looked at again: server, sequence, epoch."""
        early, self._early = self._early, {}
        return [(server, sequence, routing) for server, (sequence, routing) in early.items()]

    def check(self) -> None:
        if len(self.outstanding) > m.WINDOW:
            raise InvariantBroken(f"{len(self.outstanding)} contributions unacknowledged")

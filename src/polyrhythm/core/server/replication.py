"""The steps of a primary that its replicas have confirmed (`Replication`), and the slices that a
server copies from other primaries (`ReplicaFetch`)."""

from collections.abc import Iterable

from polyrhythm.core.effects import FetchState
from polyrhythm.core.events import StateAdopted
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Place, Route, Row

Step = tuple[int, int, int]
"""A contribution as (worker, incarnation, sequence). A fold has no worker, and its round in place
of the sequence."""
_FOLD = (-1, 0)
_NOTHING = (0, 0)


def fold_step(round_: int) -> Step:
    return (*_FOLD, round_)


class Replication:
    """The steps that this primary has made and that some replica has not confirmed.

    *A primary acknowledges a step only after every replica in its routing epoch has confirmed it.
    Only the lead can remove a replica from that set, with a new epoch.* A step is a fold or,
    without rounds, a contribution. A confirmation covers all slices that the peer copies from this
    primary, and every earlier step.

    *When a learner has the state that it fetched, the primary begins to wait for its confirmations.
    Once the learner also has the steps that were made before that moment, it has everything that
    can have been acknowledged.* A peer may be a replica of some slices and a learner of others.
    Until it has the state of the others, its confirmations cover only the slices whose replica it
    is.
    """

    def __init__(self) -> None:
        self.replicas: frozenset[int] = frozenset()
        self.learners: frozenset[int] = frozenset()
        self._slices: dict[int, frozenset[int]] = {}
        """Per peer, which slices it copies from this primary."""
        self._since: dict[int, int] = {}
        """Per peer, the routing epoch in which the set of slices that it copies last grew."""
        self._have: dict[int, dict[int, tuple[int, int]]] = {}
        """Per peer and worker, the incarnation and the sequence that the peer has confirmed last.
        The peer has everything of earlier incarnations too."""
        self._adopted: set[int] = set()
        """The learners that have the state that they fetched."""
        self._owed: dict[Step, set[int]] = {}
        """Per step, in the order of the steps: the peers that must still confirm it."""
        self._followed: dict[int, set[Step]] = {}
        """Per learner, the steps that it has not confirmed and that were made before the primary
        began to wait for it."""

    @property
    def pending(self) -> bool:
        return bool(self._owed)

    @property
    def late_peers(self) -> list[int]:
        """The servers that have not confirmed the oldest unconfirmed step."""
        return sorted(next(iter(self._owed.values()), ()))

    def reroute(self, routes: Iterable[tuple[int, Route]], routing: int) -> list[Step]:
        """Set the routes of the slices whose primary this server is. Returns the steps that all
        peers have now confirmed."""
        replicas, learners = set[int](), set[int]()
        slices: dict[int, set[int]] = {}
        for slice_, route in routes:
            replicas.update(route.replicas)
            learners.update(route.learners)
            for peer in (*route.replicas, *route.learners):
                slices.setdefault(peer, set()).add(slice_)
        self.replicas, self.learners = frozenset(replicas), frozenset(learners)
        for peer in [peer for peer in self._slices if peer not in slices]:
            self._forget(peer)
        for peer, theirs in slices.items():
            if not theirs <= self._slices.get(peer, frozenset()):
                self._since[peer] = routing
                self._have[peer] = {}
                self._adopted.discard(peer)
            self._slices[peer] = frozenset(theirs)
        for peer in self._slices.keys() - self.learners:
            self._followed.pop(peer, None)
            self._adopted.discard(peer)
        return self._settled()

    def _forget(self, peer: int) -> None:
        del self._slices[peer], self._since[peer], self._have[peer]
        for owed in self._owed.values():
            owed.discard(peer)
        self._adopted.discard(peer)
        self._followed.pop(peer, None)

    def copies(self, peer: int) -> bool:
        """Whether `peer` copies anything from this primary."""
        return peer in self._slices

    def knows(self, peer: int, routing: int) -> bool:
        """Whether a confirmation that `peer` sent in this epoch covers the slices that it copies
        now."""
        return peer in self._slices and routing >= self._since[peer]

    # -- steps ---------------------------------------------------------------------------------

    def issue(self, step: Step) -> bool:
        """Wait for the confirmations of a step of this server, which is sent to all peers. Returns
        True if no peer must confirm it."""
        if not self._slices:
            return True
        lacking = {peer for peer in self._slices if not self._has(peer, step)}
        for peer in self.learners - self._adopted:
            self._followed.setdefault(peer, set()).add(step)
        owed = lacking & (self.replicas | self._adopted)
        if owed:
            self._owed[step] = owed
        return not owed

    def confirm(self, peer: int, rows: Iterable[Row], *, adopted: bool = False) -> list[Step]:
        """Record a peer's report that every slice that it copies contains these steps and all
        earlier ones. Returns the steps that all peers have now confirmed. `adopted`: the peer has
        the state that it fetched."""
        if adopted:
            self._have[
                peer
                # forget the earlier confirmations: they did not cover the slices that the peer was
                # learning
            ] = {}
            self._adopted |= {peer} & self.learners
        have = self._have[peer]
        for row in rows:
            said = (row.incarnation, row.sequence)
            have[row.worker] = max(have.get(row.worker, _NOTHING), said)
        for step, owed in self._owed.items():
            if self._has(peer, step):
                owed.discard(peer)
        if peer in self._adopted:
            followed = self._followed.get(peer, set())
            followed -= {step for step in followed if self._has(peer, step)}
        return self._settled()

    def _has(self, peer: int, step: Step) -> bool:
        worker, incarnation, sequence = step
        return self._have[peer].get(worker, _NOTHING) >= (incarnation, sequence)

    def caught_up(self, peer: int) -> bool:
        """Whether the learner has adopted the state that it requested, and has confirmed every step
        that the primary made before it began to wait for the learner."""
        return peer in self._adopted and not self._followed.get(peer)

    def reconsider(self, rows: Iterable[Row], version: int) -> None:
        """Forget the steps that are not in all slices: this server has become the primary of more
        slices, which contain only these rows. The steps are issued again."""
        last = {(row.worker, row.incarnation): row.sequence for row in rows} | {_FOLD: version}
        self._owed = {s: owed for s, owed in self._owed.items() if last.get(s[:2], 0) >= s[2]}

    def forget_worker(self, worker: int, incarnation: int) -> None:
        """Forget a worker that has left and needs no acknowledgement. Learners must still confirm
        its steps, which may have been acknowledged before."""
        key = (worker, incarnation)
        self._owed = {step: owed for step, owed in self._owed.items() if step[:2] != key}

    def _settled(self) -> list[Step]:
        done = [step for step, owed in self._owed.items() if not owed]
        for step in done:
            del self._owed[step]
        return done

    def check(self) -> None:
        for step, owed in self._owed.items():
            strangers = owed - self.replicas - self.learners
            if strangers:
                raise InvariantBroken(
                    f"step {step} waits for s{min(strangers)}, which copies nothing from this primary"
                )


class ReplicaFetch:
    """Which slices a server copies from which primary, and which of them it has requested.

    *A copy belongs to the primary that it was fetched from. If the slice gets another primary, the
    copy is dropped, and fetched again if the new routes name this server as a holder.*
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._copies: dict[int, int] = {}
        """Per slice that this server copies, the primary from which it was fetched."""
        self._fetching: dict[int, tuple[int, frozenset[int]]] = {}
        """Per primary, the routing epoch of the last request to it, and the requested slices."""

    def begin(self, place: Place) -> None:
        """Begin with newly built slices. In a new job, all holders get the initial parameters from
        a worker, and nothing is fetched."""
        self._copies = {}
        if place.fresh:
            for slice_, route in enumerate(place.routes):
                if self._server in route.holders and self._server != route.primary:
                    self._copies[slice_] = route.primary

    def follow(self, place: Place) -> None:
        """Drop copies whose primary has changed, so that they are requested again."""
        wanted = self._wanted(place)
        self._copies = {s: of for s, of in self._copies.items() if s in wanted.get(of, ())}
        self._fetching = {
            of: (routing, asked & wanted[of])
            for of, (routing, asked) in self._fetching.items()
            if of in wanted
        }

    def fetch(self, place: Place) -> list[FetchState]:
        """Request from every primary the slices that this server must copy and does not have
        yet."""
        asks = []
        for primary, slices in self._wanted(place).items():
            missing = frozenset(slices.difference(self._copies))
            if not missing <= self._fetching.get(primary, (0, frozenset()))[1]:
                self._fetching[primary] = (place.routing, missing)
                asks.append(FetchState(primary, tuple(sorted(missing)), place.routing))
        return asks

    def on_adopted(self, event: StateAdopted) -> bool:
        """Note that the requested slices have arrived. Returns False if more slices were requested
        since then."""
        asked, slices = self._fetching.get(event.primary, (0, frozenset[int]()))
        if asked != event.routing:
            return False
        del self._fetching[event.primary]
        self._copies.update(dict.fromkeys(slices, event.primary))
        return True

    def _wanted(self, place: Place) -> dict[int, set[int]]:
        """Per primary, the slices that this server must copy from it."""
        wanted: dict[int, set[int]] = {}
        for slice_, route in enumerate(place.routes):
            if self._server in (*route.replicas, *route.learners):
                wanted.setdefault(route.primary, set()).add(slice_)
        return wanted

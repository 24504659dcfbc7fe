"""Which of a primary's steps its replicas have made too.

*A primary acknowledges only after every replica named in its routing epoch confirmed. Only the lead
shrinks that set, by a new epoch.* A step is a fold, or without rounds a contribution. What a peer
confirms holds for all slices that it copies from this primary, and for every earlier step.

*A learner is not waited for until it holds the state that it fetched; from then on it is, and once it
has every step that was made before, nothing can be acknowledged any more that it lacks.* A peer may be
a replica of some slices and learn others: then its word is of the ones until it holds the others.
"""

from collections.abc import Iterable

from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Route, Row

Step = tuple[int, int, int]
"""A contribution: worker, incarnation, sequence. A fold: nobody's, with its round."""
_FOLD = (-1, 0)
_NOTHING = (0, 0)


def fold_step(round_: int) -> Step:
    return (*_FOLD, round_)


class Replication:
    def __init__(self) -> None:
        self.replicas: frozenset[int] = frozenset()
        self.learners: frozenset[int] = frozenset()
        self._slices: dict[int, frozenset[int]] = {}
        """Per peer, which slices it copies from this primary."""
        self._since: dict[int, int] = {}
        """Per peer, the routing epoch in which it came to copy what it copies."""
        self._have: dict[int, dict[int, tuple[int, int]]] = {}
        """Per peer, of each worker the incarnation and the sequence that it has confirmed last. Who
        has something of an incarnation has everything of those before."""
        self._adopted: set[int] = set()
        """Learners that hold the state they fetched."""
        self._owed: dict[Step, set[int]] = {}
        """Who must still confirm, in the order of the steps."""
        self._followed: dict[int, set[Step]] = {}
        """Per learner, the steps that were made before it was waited for and that it lacks."""

    @property
    def pending(self) -> bool:
        return bool(self._owed)

    @property
    def awaited(self) -> list[int]:
        """Who is waited for by the oldest step that is not confirmed."""
        return sorted(next(iter(self._owed.values()), ()))

    def reroute(self, routes: Iterable[tuple[int, Route]], routing: int) -> list[Step]:
        """The routes of the slices that this server is the primary of. Returns the steps that
        nobody is waited for any more."""
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
        """Whether what `peer` said in that epoch is about what it copies now."""
        return peer in self._slices and routing >= self._since[peer]

    # -- steps ---------------------------------------------------------------------------------

    def issue(self, step: Step) -> bool:
        """A step was made here, and goes to everybody who copies. True if nobody is waited for."""
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
        """A peer has these steps and all before them, in every slice that it copies; the steps that
        nobody is waited for any more. `adopted`: it holds the state that it fetched."""
        if adopted:
            self._have[peer] = {}  # what it said before was not of the slices that it learned
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
        """A learner holds its state and every step that was made before it was waited for."""
        return peer in self._adopted and not self._followed.get(peer)

    def reconsider(self, rows: Iterable[Row], version: int) -> None:
        """This server is the primary of other slices too, which have no more than this in them: a
        step that they lack is made when they have it."""
        last = {(row.worker, row.incarnation): row.sequence for row in rows} | {_FOLD: version}
        self._owed = {s: owed for s, owed in self._owed.items() if last.get(s[:2], 0) >= s[2]}

    def forget_worker(self, worker: int, incarnation: int) -> None:
        """It left: nobody waits for an acknowledgement of what it sent. A learner must have it all
        the same, because it may be acknowledged."""
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
                raise InvariantBroken(f"{step} waits for s{min(strangers)}, which copies nothing")

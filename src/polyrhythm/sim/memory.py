"""What a server holds, without the numbers: the core's ledger, and which contributions are where.

With rounds a slice is folded when the lead says so, without them as it comes. A slice in a slot is
known by a stamp that changes when it is written, so that a reader whose slot is written while it
reads is noticed. The contributions themselves are kept only when asked for: with
many workers they are most of the work.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from polyrhythm.core.events import Contributed, Repeated, SliceSeeded
from polyrhythm.core.ledger import Ledger, Verdict
from polyrhythm.core.versions import SliceVersions
from polyrhythm.errors import InvariantBroken, LinkError
from polyrhythm.wire.messages import Contribution, MemberSpec, Seed

Given = tuple[int, int, int]
"""A contribution: worker, incarnation, sequence."""
_NOTHING = 0


class Memory:
    def __init__(
        self, server: int, slices: Mapping[int, int], routing: int, *, rounds: bool, keep: bool
    ) -> None:
        self.slices = dict(slices)
        """Per slice held here, its bytes as they travel."""
        self.nbytes = sum(slices.values())
        self.contents: dict[int, Counter[Given]] = {slice_: Counter() for slice_ in slices}
        """Per slice, what was folded into it so far (if kept)."""
        self.weights = dict.fromkeys(slices, 0.0)
        """Per slice, the weight of all that was folded into it so far."""
        self._server = server
        self._routing = routing
        self._keep = keep
        self._ledger = Ledger()
        self._latest = None if rounds else SliceVersions(list(slices))
        self._frozen = False
        self._aggregate = dict.fromkeys(slices, 0.0)
        self._added: dict[int, list[Given]] = {slice_: [] for slice_ in slices}
        self._stamps: dict[tuple[int, int], int] = {}
        self._writes = 0

    def enlist(self, members: tuple[MemberSpec, ...]) -> None:
        self._ledger.enlist({member.worker: member.incarnation for member in members})

    def seed(self, message: Seed) -> SliceSeeded | None:
        """Take the initial parameters of one slice; None for those of a seeder that is gone."""
        if message.routing != self._routing:
            return None
        self.nbytes_of(message.slice)
        self._write(message.slice, 0)
        return SliceSeeded(message.slice, message.routing)

    def add(self, message: Contribution) -> Contributed | Repeated | None:
        """Add one slice of a contribution; an event once that made it complete here."""
        if self._frozen:
            return None
        slice_ = message.slice
        worker, incarnation, sequence = message.worker, message.incarnation, message.sequence
        verdict = self._ledger.judge(worker, incarnation, sequence, slice_)
        if verdict is Verdict.STRANGER:
            return None  # it was evicted, or is not let in yet: it will be told
        if verdict is Verdict.REPEATED:
            return Repeated(worker, incarnation, sequence)
        self._aggregate[slice_] += message.weight
        if self._keep:
            self._added[slice_].append((worker, incarnation, sequence))
        if self._latest is not None:
            slot = self._latest.target(slice_)
            self._fold_slice(slice_, slot)
            self._latest.folded(slice_, slot)
        round_ = self._ledger.add(worker, incarnation, sequence, slice_, message.slices)
        return None if round_ is None else Contributed(worker, incarnation, sequence, round_)

    def nbytes_of(self, slice_: int) -> int:
        nbytes = self.slices.get(slice_)
        if nbytes is None:
            raise LinkError(f"the peer sent slice {slice_}, which is not held here")
        return nbytes

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, round_: int, slot: int) -> float:
        """Fold every aggregate into `slot`; the largest weight folded."""
        weight = max(self._aggregate.values(), default=0.0)
        for slice_ in self.slices:
            self._fold_slice(slice_, slot)
        self._ledger.close(round_)
        return weight

    def _fold_slice(self, slice_: int, slot: int) -> None:
        self._write(slice_, slot)
        self.weights[slice_] += self._aggregate[slice_]
        self._aggregate[slice_] = 0.0
        contents, added = self.contents[slice_], self._added[slice_]
        contents.update(added)
        for given in added:
            if contents[given] > 1:
                raise InvariantBroken(f"s{self._server}: {given} is in slice {slice_} twice")
        added.clear()

    def _write(self, slice_: int, slot: int) -> None:
        self._writes += 1
        self._stamps[slice_, slot] = self._writes

    def freeze(self) -> None:
        self._frozen = True

    def holds(self, given: Given) -> bool:
        """Every slice has this contribution, folded or about to be (if kept)."""
        return all(
            given in self.contents[slice_] or given in self._added[slice_] for slice_ in self.slices
        )

    # -- readers -------------------------------------------------------------------------------

    def lease(self, worker: int, ticket: int) -> tuple[int, ...]:
        """Without rounds: the slot of each slice as it is now, leased to this worker."""
        assert self._latest is not None
        return self._latest.lease(worker, ticket)

    def unlease(self, worker: int, ticket: int | None) -> None:
        assert self._latest is not None
        self._latest.release(worker, ticket)
        self.free(self._latest.surplus())
        if self._keep:
            self._latest.check()

    def free(self, slots: Sequence[int]) -> None:
        """What lay in these slots is no more."""
        for slot in slots:
            for slice_ in self.slices:
                self._stamps.pop((slice_, slot), None)

    def stamps(self, slots: Sequence[int]) -> list[int]:
        """What lies in these slots now, a slot per slice."""
        held = zip(self.slices, slots, strict=True)
        return [self._stamps.get(place, _NOTHING) for place in held]

"""Leases: which slot holds which version, and which readers still read it.

*A lease of a version begins with the pull. It ends when the reader has copied the version, or when
its link closes. A fold writes into the current slot if that has no lease, otherwise into a spare
slot.* In this module slots are numbers. The runtime owns their memory, and allocates a slot when an
effect first names it.

When slices move between servers, the slices that stay on a server keep their slots and leases.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Pull

_CURRENT_AND_SPARE = 2
_IDLE_NBYTES = 4 * 2**20
_MOST_IDLE = 16
Key = TypeVar("Key", bound=Hashable)


class Versions:
    """The slots of a job with rounds, in which all slices are folded together.

    `rotating`: the updater is plain addition, which builds the next version in a slot other than
    the current one. That slot is then chosen when a round opens instead of when it closes.
    """

    def __init__(self, rotating: bool = False) -> None:
        self.version = 0
        self.slot = 0
        self._rotating = rotating
        self._fill = 1 if rotating else 0
        self._leases: dict[int, tuple[int, int]] = {}
        """Per reader, the version that it was sent and the slot that holds it."""
        self._earlier: dict[tuple[int, int], list[int]] = {}
        """Earlier leases of readers that were later sent another version, or other slices. Per
        reader and version: the slots, oldest first."""
        self._readers: Counter[int] = Counter()
        """Per slot, the number of leases."""
        self._made = {self.slot, self._fill}
        self._read_by_replicas: set[int] = set()
        """The slots that were current when slices moved. They are kept because replicas may still
        read them."""

    @property
    def slots(self) -> int:
        """The number of slots in use: current, leased or being filled."""
        return len({self.slot, self._fill, *self._readers})

    def surplus(self) -> tuple[int, ...]:
        """Slots to free. One spare slot is kept for the next slow reader."""
        if len(self._made) <= _CURRENT_AND_SPARE:
            return ()
        idle = sorted(self._made - {self.slot, self._fill, *self._readers})[1:]
        self._made.difference_update(idle)
        return tuple(idle)

    def leased(self, slot: int) -> bool:
        return slot in self._readers

    def target(self) -> tuple[int, int]:
        """Choose two slots: the one to fold into, and the one for the aggregate of the next
        round."""
        if self._rotating:
            return self._fill, self._free({self._fill, *self._read_by_replicas})
        if not self.leased(self.slot):
            return self.slot, self.slot
        spare = self._free({self.slot})
        return spare, spare

    def _free(self, taken: set[int]) -> int:
        slot = 0
        while slot in taken or self.leased(slot):
            slot += 1
        return slot

    def on_folded(self, version: int, slot: int, fill: int) -> None:
        self.version, self.slot, self._fill = version, slot, fill
        self._made |= {slot, fill}
        # no replica reads an older slot: every replica confirms this fold before the next one
        # begins
        self._read_by_replicas.clear()

    def move(self, version: int) -> None:
        """Handle a change of the slices whose primary this server is; all of them have `version`.
        Earlier leases stay until their readers end them. Every reader may be sent this version
        again."""
        for reader, (leased, slot) in self._leases.items():
            self._earlier.setdefault((reader, leased), []).append(slot)
        self._leases.clear()
        self._read_by_replicas.add(self.slot)
        self.version = version

    def lease(self, reader: int) -> bool:
        """Lease the current version to `reader`. Returns False if the reader was sent this version
        before. *Leases of earlier versions stay: the reader may still receive them, even if it has
        asked for another version.*"""
        before = self._leases.get(reader)
        if before is not None:
            if before[0] == self.version:
                return False
            self._earlier.setdefault((reader, before[0]), []).append(before[1])
        self._leases[reader] = (self.version, self.slot)
        self._readers[self.slot] += 1
        return True

    def leases(self) -> set[tuple[int, int]]:
        """The readers with the versions that they were sent since slices last moved."""
        return {(reader, version) for reader, (version, _) in self._leases.items()}

    def release(self, reader: int, version: int) -> bool:
        """End the leases of a reader that has copied `version`: it has also copied or dropped all
        versions before. Returns True if a slot has no other lease. A version that was sent both
        before and after slices moved has two leases; each call releases one."""
        freed = bool(self._earlier) and self._end_before(reader, version)
        if self._earlier and (slots := self._earlier.get((reader, version))) is not None:
            slot = slots.pop(0)
            if not slots:
                del self._earlier[reader, version]
            return _drop(self._readers, slot) or freed
        lease = self._leases.get(reader)
        if lease is None or lease[0] > version:
            return freed
        del self._leases[reader]
        return _drop(self._readers, lease[1]) or freed

    def _end_before(self, reader: int, version: int) -> bool:
        """End the leases of versions before `version`, if the reader was sent a later one since then.
        Returns True if a slot has no other lease."""
        freed = False
        for key in [key for key in self._earlier if key[0] == reader and key[1] < version]:
            for slot in self._earlier.pop(key):
                freed = _drop(self._readers, slot) or freed
        return freed

    def on_contributed(self, reader: int, version: int, *, here: bool = True) -> None:
        """End the leases of earlier versions. The reader has contributed what it computed from
        `version`, and drops earlier versions if they still arrive. `here`: the reader has copied
        `version` from this server, so the lease of `version` ends too."""
        if self._earlier:
            self._end_before(reader, version)
        lease = self._leases.get(reader)
        if lease is not None and lease[0] < version + here:
            self.forget(reader)

    def forget(self, reader: int) -> bool:
        """End the current lease of this reader. Returns True if its slot has no other lease."""
        lease = self._leases.pop(reader, None)
        return lease is not None and _drop(self._readers, lease[1])

    def forget_all(self, reader: int) -> None:
        """End every lease of this reader: its link has closed."""
        self.forget(reader)
        for key in [key for key in self._earlier if key[0] == reader]:
            for slot in self._earlier.pop(key):
                _drop(self._readers, slot)

    def check(self) -> None:
        if self._rotating and self.leased(self._fill):
            raise InvariantBroken(f"slot {self._fill} is being filled while a reader leases it")
        # a `Counter` would take several times as long to build as a dict
        leased: dict[int, int] = {}
        for version, slot in self._leases.values():
            if version > self.version:
                raise InvariantBroken("a version that was never folded is leased")
            leased[slot] = leased.get(slot, 0) + 1
        for slots in self._earlier.values():
            for slot in slots:
                leased[slot] = leased.get(slot, 0) + 1
        if not dict.__eq__(self._readers, leased):
            raise InvariantBroken("readers were miscounted")


class SliceVersions:
    """The slots of a policy without rounds: each slice has its own current slot. A reader leases,
    for every slice, the slot that is current at that moment.

    This class has no lock: the caller holds the lock that orders folds and leases.
    """

    def __init__(self, slices: Sequence[int], nbytes: int = _IDLE_NBYTES) -> None:
        """`nbytes`: the size of a slot in bytes."""
        self._slots = dict.fromkeys(slices, 0)
        self._idle = _idle_slots(nbytes)
        self._leases: dict[int, dict[int, list[tuple[tuple[int, int], ...]]]] = {}
        """Per reader and ticket, the leased slices with their slots. A ticket has several such
        lists if slices moved meanwhile."""
        self._readers: Counter[tuple[int, int]] = Counter()
        self._made = {0}

    def slot(self, slice_: int) -> int:
        return self._slots[slice_]

    def hold(self, slices: Sequence[int], nbytes: int) -> int:
        """Set the slices whose primary this server is. Slices that stay keep their slots. New
        slices begin in the returned slot."""
        first = min(self._made)
        self._slots = {slice_: self._slots.get(slice_, first) for slice_ in slices}
        self._idle = _idle_slots(nbytes)
        return first

    def target(self, slice_: int) -> int:
        """The slot to fold the slice into: its current slot if that is not leased, else a spare
        slot."""
        slot = self._slots[slice_]
        if not self._readers[slice_, slot]:
            return slot
        spare = 0
        while spare == slot or self._readers[slice_, spare]:
            spare += 1
        return spare

    def on_folded(self, slice_: int, slot: int) -> None:
        self._slots[slice_] = slot
        self._made.add(slot)

    def lease(self, reader: int, ticket: int) -> tuple[int, ...]:
        """Lease the current slot of every slice to `reader` until `release`. Returns the slots.
        Leases of earlier answers stay, because the reader may still copy them."""
        held = tuple(self._slots.items())
        self._leases.setdefault(reader, {}).setdefault(ticket, []).append(held)
        self._readers.update(held)
        return tuple(self._slots.values())

    def release(self, reader: int, ticket: int | None) -> None:
        """End the leases of a reader that has copied the answer with `ticket`, and needs no earlier
        one. If slices moved, a ticket may have been answered twice. It then has two leases, and
        each call releases one. None: the reader is gone."""
        leases = self._leases.get(reader)
        if leases is None:
            return
        for old in [old for old in leases if ticket is None or old <= ticket]:
            ended = leases[old][:1] if old == ticket else leases[old]
            rest = leases[old][len(ended) :]
            for held in (pair for lease in ended for pair in lease):
                _drop(self._readers, held)
            if rest:
                leases[old] = rest
            else:
                del leases[old]
        if not leases:
            del self._leases[reader]

    @property
    def used(self) -> set[int]:
        """Slots that hold the current version of a slice, or that are leased."""
        return {*self._slots.values(), *(slot for _, slot in self._readers)}

    def surplus(self) -> tuple[int, ...]:
        """Slots to free. One spare slot is kept for the next slow reader. If slots are small,
        several are kept: to allocate a slot and share it with every reader costs more than its
        memory."""
        if len(self._made) <= self._idle + 1:
            return ()
        idle = sorted(self._made - self.used)[self._idle :]
        self._made.difference_update(idle)
        return tuple(idle)

    def check(self) -> None:
        leased = Counter(
            held
            for tickets in self._leases.values()
            for leases in tickets.values()
            for lease in leases
            for held in lease
        )
        if dict(self._readers) != dict(leased):  # counters that differ in zeros would be equal
            raise InvariantBroken("leases of slices were miscounted")


class Leases:
    """Records which version a server has sent to which reader, and which pulls it has not answered
    yet.

    *Usually a reader's next contribution or `Pulled` ends its lease. A reader that requested a
    version, or was sent one after slices moved, must name that version to this server: its
    contribution or `Pulled` may refer to a version that another primary sent.*

    `rotating`: see `Versions`. `replicas`: the job has replicas. Without replicas, until routes
    change for the first time, no reader can have copied a version from another primary, or request
    it twice.
    """

    def __init__(self, *, rotating: bool, replicas: bool) -> None:
        self._rerouted = replicas
        """Whether a reader may have copied a version from another primary, or may request one twice:
        the job has replicas, or the routes have changed."""
        self.versions = Versions(rotating=rotating)
        self.pulls: dict[int, Pull] = {}
        """Per reader, the pull that cannot be answered yet."""
        self._moved = False
        """Whether slices have moved since the last fold."""
        self._apart: set[int] = set()
        """The readers that requested a version, or were sent one after slices moved."""

    def ask(self, pull: Pull) -> None:
        """Queue a pull. A pull can overtake an earlier request that came with a contribution, so
        keep the request for the later round."""
        before = self.pulls.get(pull.worker)
        if before is None or before.round < pull.round:
            self.pulls[pull.worker] = pull

    def on_rerouted(self) -> None:
        """Note that the routes change. Then readers may request versions again that are already
        being sent to them, even if this server keeps all of its slices."""
        if not self._rerouted:
            self._rerouted = True
            self._apart.update(reader for reader, _ in self.versions.leases())

    def move(self, version: int) -> None:
        """Handle a change of the slices whose primary this server is; all of them have
        `version`."""
        self._moved = True
        self.versions.move(version)

    def lease(self, reader: int, asked: bool = False) -> bool:
        """Lease the current version to `reader`. Returns False if this version was sent to the
        reader already. It must not be sent twice: the reader could still read the second answer
        after the end of the lease."""
        if self.pulls:
            self.pulls.pop(reader, None)
        if not self.versions.lease(reader):
            return False
        if self._rerouted:
            (self._apart.add if asked or self._moved else self._apart.discard)(reader)
        return True

    def on_published(self) -> None:
        """Note that a fold has made a new version and that all waiting readers have been sent
        it."""
        self._moved = False

    def names_this_server(self, reader: int) -> bool:
        """Whether a `Pulled` of this reader certainly means a version that this server sent."""
        return reader not in self._apart

    def on_contributed(self, reader: int, version: int) -> None:
        """End the lease of the version from which a reader has computed its contribution: it has
        copied that version. *The lease of a later version stays: a worker that leaves may
        contribute before it receives that version. If the reader requested the version, it may have
        copied it from another primary. Then only its leases of earlier versions end.*"""
        self.versions.on_contributed(reader, version, here=reader not in self._apart)

    def release(self, reader: int, version: int) -> bool:
        """End the lease of a version that `reader` has copied. Returns True if the slot of that
        version has no other lease."""
        return self.versions.release(reader, version)

    def forget(self, reader: int) -> None:
        """End all leases of a reader whose link has closed."""
        self.versions.forget_all(reader)


def _idle_slots(nbytes: int) -> int:
    return max(1, min(_MOST_IDLE, _IDLE_NBYTES // max(1, nbytes)))


def _drop(readers: Counter[Key], key: Key) -> bool:
    """Remove one lease of this slot. Returns True if the slot has no other lease."""
    count = readers[key]
    if count != 1:
        readers[key] = count - 1
        return False
    del readers[key]
    return True

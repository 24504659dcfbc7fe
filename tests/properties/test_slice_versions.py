"""Versions of single slices: a fold never writes to a slot that a reader leases, and no more slots
exist than readers need. Tests that switch a rule off must find a violation."""

from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from polyrhythm.core.server.leases import SliceVersions, Versions

SLICES = (2, 5, 7)
READERS = 4
ANSWERS = 2
HUNT = settings(
    max_examples=500, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False
)
readers = st.integers(0, READERS - 1)


class SliceReaders(RuleBasedStateMachine):
    """The versions under test, and a simulated memory that creates a slot when it is first
    written."""

    versions_class: ClassVar[type[SliceVersions]] = SliceVersions

    def __init__(self) -> None:
        super().__init__()
        self.versions = self.versions_class(SLICES)
        self.memory: dict[int, dict[int, int]] = {0: dict.fromkeys(SLICES, 0)}
        self.folds = dict.fromkeys(SLICES, 0)
        self.reading: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        """Per reader and ticket, and per slice: the leased slot, and the content that it must
        keep."""
        self.ticket = 0

    @rule(slice_=st.sampled_from(SLICES))
    def fold(self, slice_: int) -> None:
        slot = self.versions.target(slice_)
        self.folds[slice_] += 1
        self.memory.setdefault(slot, {})[slice_] = self.folds[slice_]
        self.versions.on_folded(slice_, slot)

    @rule(reader=readers)
    def lease(self, reader: int) -> None:
        """Lease all slices for a reader. It may ask again while its last answer is in flight."""
        if len(self.tickets(reader)) == ANSWERS:
            return
        self.ticket += 1
        slots = self.versions.lease(reader, self.ticket)
        seen = {
            slice_: (slot, self.folds[slice_]) for slice_, slot in zip(SLICES, slots, strict=True)
        }
        self.reading[reader, self.ticket] = seen

    def tickets(self, reader: int) -> list[int]:
        return sorted(ticket for owner, ticket in self.reading if owner == reader)

    @rule(reader=readers, early=st.booleans())
    def pulled(self, reader: int, early: bool) -> None:
        """A reader reports that it has copied an answer. `early`: the first of two answers."""
        if tickets := self.tickets(reader):
            upto = tickets[0] if early else tickets[-1]
            self.versions.release(reader, upto)
            for ticket in tickets:
                if ticket <= upto:
                    del self.reading[reader, ticket]

    @rule(reader=readers)
    def closed(self, reader: int) -> None:
        self.versions.release(reader, None)
        for ticket in self.tickets(reader):
            del self.reading[reader, ticket]

    @rule()
    def free(self) -> None:
        for slot in self.versions.surplus():
            del self.memory[slot]
        assert len(self.memory) <= len(self.needed()) + 1, "surplus memory stays"

    def needed(self) -> set[int]:
        current = {self.versions.slot(slice_) for slice_ in SLICES}
        leased = {slot for seen in self.reading.values() for slot, _ in seen.values()}
        return current | leased

    @invariant()
    def readers_see_what_they_were_sent(self) -> None:
        self.versions.check()
        for slice_ in SLICES:
            found = self.memory.get(self.versions.slot(slice_), {}).get(slice_)
            assert found == self.folds[slice_], "the current slices are not there"
        for seen in self.reading.values():
            for slice_, (slot, what) in seen.items():
                assert self.memory[slot][slice_] == what, "a leased slice was overwritten"

    @invariant()
    def slots_are_few(self) -> None:
        assert self.versions.used == self.needed()
        assert len(self.memory) <= ANSWERS * READERS + 2, "more slots than readers can need"


TestSliceReaders = SliceReaders.TestCase


class IgnoresLeases(SliceVersions):
    def target(self, slice_: int) -> int:
        return self.slot(slice_)


class FreesWhatIsRead(SliceVersions):
    def surplus(self) -> tuple[int, ...]:
        idle = sorted(self._made - set(self._slots.values()))
        self._made.difference_update(idle)
        return tuple(idle)


class NeverTheSame(SliceVersions):
    """Every fold writes to a slot that was never used before."""

    def target(self, slice_: int) -> int:
        return max(self._made) + 1

    def surplus(self) -> tuple[int, ...]:
        return ()


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (IgnoresLeases, "a leased slice was overwritten"),
        (FreesWhatIsRead, r"^\d"),
        (NeverTheSame, "more slots than readers can need|surplus memory stays"),
    ],
)
def test_slices_are_overwritten_or_memory_is_wasted_with_a_rule_switched_off(
    mutant: type[SliceVersions], message: str
) -> None:
    machine = type("Mutant", (SliceReaders,), {"versions_class": mutant})
    with pytest.raises((AssertionError, KeyError), match=message):
        run_state_machine_as_test(machine, settings=HUNT)


def test_a_fold_is_in_place_while_no_reader_has_a_lease() -> None:
    versions = SliceVersions(SLICES)
    assert versions.target(2) == 0
    versions.lease(0, 1)
    assert versions.target(2) == 1
    versions.release(0, 1)
    assert versions.target(2) == 0


def test_small_idle_slots_are_kept() -> None:
    freed = {}
    for nbytes in (1_000, 100 * 2**20):
        versions = SliceVersions(SLICES, nbytes)
        for ticket in range(3):
            versions.lease(ticket, ticket)
            for slice_ in SLICES:
                versions.on_folded(slice_, versions.target(slice_))
        for ticket in range(3):
            versions.release(ticket, ticket)
        freed[nbytes] = versions.surplus()
    assert freed == {1_000: (), 100 * 2**20: (1, 2)}, "the current slot and one spare are kept"


def test_a_new_ticket_replaces_the_earlier_lease() -> None:
    """A reader that asks again does not read the earlier answer any more."""
    versions = SliceVersions(SLICES)
    versions.lease(0, 1)
    versions.on_folded(2, versions.target(2))
    versions.lease(0, 2)
    versions.release(0, 1)
    assert versions.target(2) not in (versions.slot(2),), "the newer lease stands"
    assert versions.target(2) == 0, "the older one is gone"


# -- the same for whole versions -------------------------------------------------------------------


class Frugal(RuleBasedStateMachine):
    """The same rules for slots that hold whole versions. A slot may be freed only if it is not
    leased, not current and not being filled, and one spare slot is kept."""

    rotating = False
    versions_class: ClassVar[type[Versions]] = Versions

    def __init__(self) -> None:
        super().__init__()
        self.versions = self.versions_class(rotating=self.rotating)
        self.made = {0, 1} if self.rotating else {0}
        self.fill = 1 if self.rotating else 0
        self.reading: dict[tuple[int, int], int] = {}
        """Per reader and version, the leased slot."""

    @rule()
    def fold(self) -> None:
        slot, self.fill = self.versions.target()
        self.made |= {slot, self.fill}
        self.versions.on_folded(self.versions.version + 1, slot, self.fill)

    @rule(reader=readers)
    def lease(self, reader: int) -> None:
        """A reader may ask again while an earlier version is on its way to it."""
        if sum(key[0] == reader for key in self.reading) < ANSWERS:
            self.versions.lease(reader)
            self.reading[reader, self.versions.version] = self.versions.slot

    @rule(reader=readers, first=st.booleans())
    def pulled(self, reader: int, first: bool) -> None:
        found = sorted(key for key in self.reading if key[0] == reader)
        if found:
            upto = found[0] if first else found[-1]
            self.versions.release(*upto)
            self.reading = {
                key: slot for key, slot in self.reading.items() if key[0] != reader or key > upto
            }

    @rule()
    def free(self) -> None:
        needed = {self.versions.slot, self.fill, *self.reading.values()}
        freed = set(self.versions.surplus())
        assert freed <= self.made, "freed twice"
        assert not freed & needed, "freed what is needed"
        self.made -= freed
        assert len(self.made) <= len(needed) + 1, "surplus memory stays"

    @invariant()
    def slots_are_few(self) -> None:
        assert len(self.made) <= ANSWERS * READERS + 3


class RotatingFrugal(Frugal):
    rotating = True


class FreesLeased(Versions):
    def surplus(self) -> tuple[int, ...]:
        idle = sorted(self._made - {self.slot, self._fill})
        self._made.difference_update(idle)
        return tuple(idle)


class KeepsAll(Versions):
    def surplus(self) -> tuple[int, ...]:
        return ()


@pytest.mark.parametrize("machine", [Frugal, RotatingFrugal])
def test_surplus_versions_are_freed(machine: type[Frugal]) -> None:
    run_state_machine_as_test(machine)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [(FreesLeased, "freed what is needed"), (KeepsAll, "surplus memory stays")],
)
def test_surplus_versions_stay_with_a_rule_switched_off(
    mutant: type[Versions], message: str
) -> None:
    machine = type("Mutant", (RotatingFrugal,), {"versions_class": mutant})
    with pytest.raises(AssertionError, match=message):
        run_state_machine_as_test(machine, settings=HUNT)

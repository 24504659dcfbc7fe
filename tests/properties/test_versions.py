"""A slot is never written while a reader leases it. A test that switches this rule off must find a
violation."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from polyrhythm.core.server.leases import Versions

readers = st.integers(0, 3)


class Readers(RuleBasedStateMachine):
    """The versions under test, and a simulated memory that records what was written to each
    slot."""

    rotating = False

    def __init__(self) -> None:
        super().__init__()
        self.versions = Versions(rotating=self.rotating)
        self.memory: dict[int, object] = {0: 0}
        self.reading: dict[int, tuple[int, int]] = {}
        if self.rotating:
            self.memory[1] = "growing"

    @rule()
    def fold(self) -> None:
        slot, fill = self.versions.target()
        version = self.versions.version + 1
        self.memory[slot] = version
        if self.rotating:
            self.memory[fill] = "growing"
        self.versions.folded(version, slot, fill)

    @rule(reader=readers)
    def lease(self, reader: int) -> None:
        self.versions.lease(reader)
        self.reading[reader] = (self.versions.version, self.versions.slot)

    @rule(reader=readers)
    def pulled(self, reader: int) -> None:
        if reader in self.reading:
            version, _ = self.reading.pop(reader)
            self.versions.release(reader, version)

    @rule(reader=readers)
    def closed(self, reader: int) -> None:
        self.versions.forget(reader)
        self.reading.pop(reader, None)

    @invariant()
    def readers_see_what_they_were_sent(self) -> None:
        self.versions.check()
        assert self.memory[self.versions.slot] == self.versions.version
        for version, slot in self.reading.values():
            assert self.memory[slot] == version, "a leased version was overwritten"

    @invariant()
    def slots_are_few(self) -> None:
        used = 2 + len({slot for _, slot in self.reading.values()})
        assert self.versions.slots <= used
        assert len(self.memory) <= 2 + len(range(4))


class RotatingReaders(Readers):
    rotating = True


TestReaders = Readers.TestCase
TestRotatingReaders = RotatingReaders.TestCase


def test_an_old_release_does_not_free_a_newer_lease() -> None:
    versions = Versions()
    versions.lease(7)
    slot, fill = versions.target()
    versions.folded(1, slot, fill)
    versions.lease(7)
    versions.release(7, 0)
    assert versions.leased(versions.slot)


def test_without_leases_folds_are_in_place() -> None:
    versions = Versions()
    assert versions.target() == (0, 0)
    versions.lease(1)
    assert versions.target()[0] != 0
    versions.forget(1)
    assert versions.target() == (0, 0)


def test_a_leased_version_is_overwritten_if_leases_are_ignored(monkeypatch) -> None:
    monkeypatch.setattr(Versions, "leased", lambda self, slot: False)
    with pytest.raises(AssertionError, match="overwritten"):
        run_state_machine_as_test(Readers)


def test_a_leased_version_is_overwritten_if_leases_are_ignored_with_rotating_slots(
    monkeypatch,
) -> None:
    monkeypatch.setattr(Versions, "leased", lambda self, slot: False)
    with pytest.raises(AssertionError, match="overwritten"):
        run_state_machine_as_test(RotatingReaders)

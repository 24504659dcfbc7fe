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
        self.reading: dict[tuple[int, int], int] = {}
        """Per reader and version, the leased slot."""
        if self.rotating:
            self.memory[1] = "growing"

    @rule()
    def fold(self) -> None:
        slot, fill = self.versions.target()
        version = self.versions.version + 1
        self.memory[slot] = version
        if self.rotating:
            self.memory[fill] = "growing"
        self.versions.on_folded(version, slot, fill)

    @rule(reader=readers)
    def lease(self, reader: int) -> None:
        """A reader may ask again while an earlier version is on its way to it."""
        if sum(key[0] == reader for key in self.reading) < 2:
            self.versions.lease(reader)
            self.reading[reader, self.versions.version] = self.versions.slot

    @rule(reader=readers, first=st.booleans(), contributes=st.booleans())
    def copied(self, reader: int, first: bool, contributes: bool) -> None:
        """A reader has copied one of its versions, and says so or contributes."""
        found = sorted(key for key in self.reading if key[0] == reader)
        if not found:
            return
        upto = found[0] if first else found[-1]
        if contributes and upto == found[-1]:
            self.versions.on_contributed(*upto)
        else:
            self.versions.release(*upto)
        self._end(reader, upto[1])

    @rule(reader=readers)
    def contributed_before(self, reader: int) -> None:
        """A reader contributes before it has copied any version that it was sent."""
        found = [key[1] for key in self.reading if key[0] == reader]
        if found:
            self.versions.on_contributed(reader, min(found) - 1)

    @rule(reader=readers)
    def closed(self, reader: int) -> None:
        self.versions.forget_all(reader)
        self._end(reader, self.versions.version)

    def _end(self, reader: int, version: int) -> None:
        self.reading = {
            key: slot for key, slot in self.reading.items() if key[0] != reader or key[1] > version
        }

    @invariant()
    def readers_see_what_they_were_sent(self) -> None:
        self.versions.check()
        assert self.memory[self.versions.slot] == self.versions.version
        for (_, version), slot in self.reading.items():
            assert self.memory[slot] == version, "a leased version was overwritten"

    @invariant()
    def slots_are_few(self) -> None:
        used = 2 + len(set(self.reading.values()))
        assert self.versions.slots <= used
        assert len(self.memory) <= 2 + 2 * len(range(4))


class RotatingReaders(Readers):
    rotating = True


TestReaders = Readers.TestCase
TestRotatingReaders = RotatingReaders.TestCase


def test_an_old_release_does_not_free_a_newer_lease() -> None:
    versions = Versions()
    versions.lease(7)
    slot, fill = versions.target()
    versions.on_folded(1, slot, fill)
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

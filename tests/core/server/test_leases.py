import pytest

from polyrhythm.core.server.leases import Leases, SliceVersions, Versions


def readers(*, replicas: bool = True) -> Leases:
    return Leases(rotating=False, replicas=replicas)


def test_a_version_in_flight_is_not_leased_again() -> None:
    made = readers()
    assert made.lease(0)
    assert not made.lease(0, asked=True)


def test_a_contribution_ends_the_lease_of_its_sender() -> None:
    made = readers()
    made.lease(0)
    made.on_contributed(0, 0)
    assert made.versions.leases() == set()


@pytest.mark.parametrize("asked", [False, True])
def test_a_contribution_from_an_earlier_version_ends_no_lease(asked: bool) -> None:
    """A worker that is leaving still contributes, although a version is being sent to it. The fold
    of that contribution is published to this worker too."""
    made = readers()
    made.versions.on_folded(2, 0, 0)
    made.lease(0, asked)
    made.on_contributed(0, 1)
    assert made.versions.leases() == {(0, 2)}
    made.versions.on_folded(3, 1, 1)
    assert made.lease(0)
    assert made.versions.leased(0) and made.versions.leased(1)
    made.versions.check()
    assert made.release(0, 2) and not made.versions.leased(0)
    assert made.release(0, 3) and not made.versions.leased(1)


def test_a_contribution_from_the_last_version_shows_that_earlier_ones_were_copied() -> None:
    made = readers()
    for version in (1, 2):
        made.versions.on_folded(version, version, version)
        made.lease(0)
        made.on_contributed(0, 0)
    assert made.versions.leased(1) and made.versions.leased(2)
    made.on_contributed(0, 2)
    made.versions.on_folded(3, 3, 3)
    made.lease(0)
    assert [slot for slot in range(4) if made.versions.leased(slot)] == [3]
    made.versions.check()
    made.on_contributed(0, 1)
    made.forget(0)
    assert not made.versions.leased(3)


def test_a_version_from_before_a_move_stays_leased_to_a_worker_that_has_not_copied_it() -> None:
    made = readers()
    made.versions.on_folded(2, 0, 0)
    made.lease(0)
    made.move(2)
    made.on_contributed(0, 1)
    made.versions.on_folded(3, 1, 1)
    made.lease(0)
    assert made.versions.leased(0) and made.versions.leased(1)


def test_a_reader_that_asked_ends_its_lease_by_naming_the_version() -> None:
    made = readers()
    made.lease(0, asked=True)
    made.on_contributed(0, 0)
    assert not made.names_this_server(0) and made.versions.leases() == {(0, 0)}, (
        "on what another sent"
    )
    assert made.release(0, 0)


def test_without_replicas_every_pulled_refers_to_this_server() -> None:
    made = readers(replicas=False)
    made.lease(0, asked=True)
    assert made.names_this_server(0)


def test_after_new_routes_a_reader_that_asked_names_its_version() -> None:
    """It may have asked again for a version that was on its way, so a second answer may be on its way
    when it contributes."""
    made = readers(replicas=False)
    made.lease(0, asked=True)
    made.on_contributed(0, 0)
    assert not made.versions.leases()
    made.on_rerouted()
    made.lease(0, asked=True)
    made.on_contributed(0, 0)
    assert made.versions.leases() == {(0, 0)}


def test_a_version_sent_before_and_after_a_move_is_released_once_for_each() -> None:
    made = readers()
    made.lease(0)
    made.move(0)
    assert made.lease(0), "the same version, with other slices"
    assert not made.release(0, 0) and made.versions.leases() == {(0, 0)}
    assert made.release(0, 0) and made.versions.leases() == set()


def test_a_slot_stays_leased_when_slices_move() -> None:
    versions = Versions()
    versions.lease(0)
    versions.move(0)
    assert versions.target() == (1, 1), "the reader still reads the slices that stayed in slot 0"
    versions.release(0, 0)
    assert versions.target() == (0, 0)


@pytest.mark.parametrize("reports", [False, True])
def test_a_reader_that_has_copied_a_later_version_ends_its_earlier_leases(reports: bool) -> None:
    """A reader that shares memory does not report every version that it has read. If it has copied a
    later version, it has read the earlier ones. The mere lease of a later version does not show that the
    reader has read the earlier ones: the reader may have asked for that version while an earlier one was
    on its way to it."""
    versions = Versions()
    versions.lease(0)
    versions.move(0)
    for version in (1, 2):
        versions.on_folded(version, *versions.target())
        versions.lease(0)
    assert [slot for slot in range(4) if versions.leased(slot)] == [0, 1, 2]
    versions.check()
    if reports:
        assert versions.release(0, 2)
    else:
        versions.on_contributed(0, 2)
    assert not any(versions.leased(slot) for slot in range(4))
    versions.check()


def test_the_slot_that_replicas_may_read_is_not_filled_after_a_move() -> None:
    versions = Versions(rotating=True)
    versions.on_folded(1, *versions.target())
    assert versions.target() == (0, 1)
    versions.move(0)
    assert versions.target() == (0, 2)


def test_slices_that_stay_keep_their_slots_and_leases_when_others_move() -> None:
    versions = SliceVersions((0, 1))
    versions.lease(0, 1)
    versions.on_folded(0, versions.target(0))
    versions.hold((0, 2), 1)
    assert (versions.slot(0), versions.slot(2)) == (1, 0)
    versions.lease(0, 1)
    versions.release(0, 1)
    assert versions.target(0) == 0, "the first answer is copied"
    versions.check()
    versions.release(0, 1)
    assert versions.target(0) == 1, "the second one too"
    versions.check()


def test_a_closed_link_ends_the_leases_from_before_and_after_a_move() -> None:
    made = readers()
    made.lease(0)
    made.move(1)
    made.lease(0)
    made.forget(0)
    assert made.versions.leases() == set()
    made.lease(0)
    assert made.release(0, 1), "the lease from before is not in the way"


def test_a_pulled_does_not_refer_to_this_server_between_a_move_and_the_next_fold() -> None:
    made = readers()
    made.move(1)
    made.lease(0)
    assert not made.names_this_server(0)
    made.on_published()
    made.lease(1)
    assert made.names_this_server(1)


@pytest.mark.parametrize("rotating", [False, True])
def test_leases_of_a_reader_that_asks_for_every_version_do_not_pile_up(rotating: bool) -> None:
    leases = Leases(rotating=rotating, replicas=True)
    for version in range(1, 40):
        slot, fill = leases.versions.target()
        leases.versions.on_folded(version, slot, fill)
        assert leases.lease(0, asked=True)
        leases.on_contributed(0, version)
        leases.versions.check()
        assert leases.versions.leases() == {(0, version)}, "it may be in flight from here"
        assert leases.versions.slots <= 3

from polyrhythm.core.server.readers import Readers


def readers(*, replicas: bool = True) -> Readers:
    return Readers(rotating=False, replicas=replicas)


def test_a_version_on_its_way_is_not_sent_again() -> None:
    made = readers()
    assert made.lease(0)
    assert not made.lease(0, asked=True)


def test_who_contributes_reads_no_more() -> None:
    made = readers()
    made.lease(0)
    made.contributed(0)
    assert made.versions.leases() == set()


def test_who_asked_ends_its_lease_with_its_own_word() -> None:
    made = readers()
    made.lease(0, asked=True)
    made.contributed(0)
    assert not made.says(0) and made.versions.leases() == {(0, 0)}, "on what another sent"
    assert made.release(0, 0)


def test_without_replicas_there_is_no_other_who_sends() -> None:
    made = readers(replicas=False)
    made.lease(0, asked=True)
    assert made.says(0)


def test_leases_of_the_memory_before_end_apart() -> None:
    made = readers()
    made.lease(0)
    made.move(0)
    assert made.lease(0), "the same version, in other memory"
    assert not made.release(0, 0) and made.versions.leases() == {(0, 0)}
    assert made.release(0, 0) and made.versions.leases() == set()


def test_who_is_gone_reads_nothing_before_or_after_a_move() -> None:
    made = readers()
    made.lease(0)
    made.move(1)
    made.lease(0)
    made.forget(0)
    assert made.versions.leases() == set()
    made.lease(0)
    assert made.release(0, 1), "the lease from before is not in the way"


def test_until_the_next_fold_is_published_readers_are_told_apart() -> None:
    made = readers()
    made.move(1)
    made.lease(0)
    assert not made.says(0)
    made.published()
    made.lease(1)
    assert made.says(1)

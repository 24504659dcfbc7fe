"""The messages between an engine and an actor: nothing is lost, and their order is kept."""

import pytest

pytest.importorskip("ray")

from polyrhythm.engines.ray_process import Inbox, Outbox


def test_an_entry_is_returned_again_until_it_is_confirmed() -> None:
    outbox = Outbox()
    outbox.put(b"one")
    outbox.put(b"two", printed=True)
    assert outbox.take(0, 0).entries == [(False, b"one"), (True, b"two")]
    again = outbox.take(1, 0)
    assert again.first == 1 and again.entries == [(True, b"two")]
    assert outbox.take(2, 0).entries == []


def test_the_exit_status_comes_with_the_last_entry() -> None:
    outbox = Outbox()
    large = bytes(3 << 20)
    for _ in range(3):
        outbox.put(large)
    outbox.end(0)
    first = outbox.take(0, 0)
    assert len(first.entries) == 1 and first.status is None, "a call returns at most 4 MiB"
    second = outbox.take(1, 0)
    assert len(second.entries) == 1 and second.status is None
    assert outbox.take(2, 0).status == 0
    assert outbox.take(3, 0).status == 0, "a call that is repeated gets it again"


def test_an_outbox_is_full_until_its_entries_are_confirmed() -> None:
    outbox = Outbox()
    outbox.put(bytes(5 << 20))
    assert outbox.full
    outbox.take(0, 0)
    assert outbox.full
    outbox.take(1, 0)
    assert not outbox.full


def test_messages_are_read_in_the_order_of_their_numbers() -> None:
    inbox = Inbox()
    inbox.put(1, b"second")
    inbox.put(0, b"first")
    inbox.put(2, b"third")
    assert [inbox.get() for _ in range(3)] == [b"first", b"second", b"third"]

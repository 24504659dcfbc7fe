"""Confirmations of a routing epoch that this server has not reached are kept until their link
closes, and take bounded memory."""

from polyrhythm.core.server.acks import MOST_RUNS, EarlyAcks
from polyrhythm.wire.messages import Adopted, Copied, Row


def copied(sequence: int, routing: int = 2, server: int = 1) -> Copied:
    return Copied(server=server, routing=routing, rows=(Row(7, 1, sequence),))


def test_a_run_of_confirmations_is_kept_as_the_last_of_each_worker() -> None:
    early = EarlyAcks()
    for sequence in range(100_000):
        assert early.keep(copied(sequence))
    assert early.keep(Copied(server=1, routing=2, rows=(Row(8, 1, 3),)))
    (kept,) = early.take()
    assert set(kept.rows) == {Row(7, 1, 99_999), Row(8, 1, 3)}
    assert early.take() == []


def test_early_confirmations_keep_their_order() -> None:
    """`Adopted` replaces all earlier confirmations of its server, so those before and after it must
    not be merged."""
    early = EarlyAcks()
    adopted = Adopted(server=1, routing=2, rows=(Row(7, 1, 4),))
    for message in (copied(9), adopted, copied(5)):
        early.keep(message)
    assert early.take() == [copied(9), adopted, copied(5)]


def test_a_server_that_confirms_too_many_epochs_is_not_believed() -> None:
    early = EarlyAcks()
    believed = [early.keep(copied(1, routing)) for routing in range(MOST_RUNS + 5)]
    assert believed == [True] * MOST_RUNS + [False] * 5
    assert early.keep(copied(1, server=2))


def test_early_confirmations_are_forgotten_when_the_link_closes() -> None:
    early = EarlyAcks()
    early.keep(copied(1))
    early.keep(copied(1, server=2))
    early.forget(1)
    assert [message.server for message in early.take()] == [2]

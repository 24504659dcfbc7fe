"""Contributions to a row wait until a fold names them; a row that a fold does not name is deleted."""

from polyrhythm.core.server.worker_rows import MOST_WAITING, WaitingContributions, WorkerRows
from polyrhythm.wire.messages import Row

ANNA, BERT = (0, 1), (1, 4)


def row(who: tuple[int, int], sequence: int) -> Row:
    return Row(*who, sequence)


def rows() -> WorkerRows[int]:
    return WorkerRows(lambda row, difference: row + difference)


def test_a_contribution_waits_until_a_fold_names_it() -> None:
    waiting: WaitingContributions[int] = WaitingContributions()
    waiting.hold(row(ANNA, 1), 10)
    assert waiting.take([row(ANNA, 0)]) == []
    assert waiting.take([row(ANNA, 1)]) == [(row(ANNA, 1), 10)]
    assert not len(waiting)


def test_a_fold_takes_contributions_in_the_order_of_workers_and_sequences() -> None:
    waiting: WaitingContributions[int] = WaitingContributions()
    for whose, value in ((row(BERT, 1), 1), (row(ANNA, 2), 2), (row(ANNA, 1), 3)):
        waiting.hold(whose, value)
    taken = waiting.take([row(BERT, 1), row(ANNA, 2)])
    assert [value for _, value in taken] == [3, 2, 1]


def test_contributions_to_a_deleted_row_are_dropped() -> None:
    waiting: WaitingContributions[int] = WaitingContributions()
    waiting.hold(row(ANNA, 1), 10)
    waiting.hold(row((0, 9), 1), 20)
    assert waiting.take([row(BERT, 5)]) == []
    assert not len(waiting), (
        "neither the worker nor an earlier incarnation of it has a row any more"
    )


def test_a_version_has_the_rows_that_are_named_and_no_others() -> None:
    kept = rows()
    kept.fold([row(ANNA, 1), row(BERT, 1)], [(row(BERT, 1), 5), (row(ANNA, 1), 7)])
    kept.fold([row(ANNA, 2), row(BERT, 1)], [(row(ANNA, 2), -2)])
    assert list(kept.rows.items()) == [(ANNA, 5), (BERT, 5)], "in the order of the workers"
    kept.fold([row(BERT, 1)], [])
    assert kept.rows == {BERT: 5}


def test_a_worker_that_rejoins_begins_with_an_empty_row() -> None:
    kept, again = rows(), (0, 8)
    kept.fold([row(ANNA, 1)], [(row(ANNA, 1), 7)])
    kept.fold([row(again, 0)], [])
    assert kept.rows == {}
    kept.fold([row(again, 1)], [(row(again, 1), 3)])
    assert kept.rows == {again: 3}


def test_a_worker_cannot_fill_the_memory_of_a_server() -> None:
    waiting: WaitingContributions[int] = WaitingContributions()
    for sequence in range(1, 3 * MOST_WAITING):
        waiting.hold(row(ANNA, sequence), sequence)
    waiting.hold(row(BERT, 1), 7)
    assert len(waiting) == MOST_WAITING + 1
    assert waiting.take([row(BERT, 1)]) == [(row(BERT, 1), 7)]

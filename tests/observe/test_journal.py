"""The journal while its file cannot be written. A limit on the size of files stands for a full disk: it
too cuts a line in the middle."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec

from polyrhythm.observe.journal import (
    FileJournal,
    JournalReader,
    SentJournal,
    read_journal,
    whole_lines,
)


@contextlib.contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file of this process can grow beyond `nbytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def kinds(path: Path) -> list[str]:
    return [line["what"] for line in read_journal(path)]


def test_a_torn_line_is_completed_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal, reader = FileJournal(path), JournalReader(path)
    journal.note("joined", name="worker-0")
    assert len(list(reader.new_lines())) == 1 and journal.part() is None
    with room_for(path.stat().st_size + 10):
        journal.note("joined", name="worker-1")
        journal.note("left", name="worker-1")
        journal.retry(now=True)
        assert journal.fault == f"cannot write {path}: File too large" == journal.incomplete
        assert not path.read_bytes().endswith(b"\n") and kinds(path) == ["joined"]
        part = journal.part()
        assert part is not None and journal.part() is None
        reader.hand(part)
        assert [line["what"] for line in reader.new_lines()] == ["joined", "unwritten", "left"]
        journal.note("ended")
    journal.retry(now=True)
    assert journal.fault is None and journal.incomplete is None
    expected = ["joined", "joined", "unwritten", "left", "ended", "written-again"]
    assert kinds(path) == expected
    part = journal.part()
    assert part is not None
    reader.hand(part)
    handed = [line["what"] for line in reader.new_lines()]
    assert handed == ["ended", "written-again"], "every line is read once, from the file or not"
    journal.close()


def test_lines_that_were_read_from_the_file_are_not_read_again(tmp_path: Path) -> None:
    """The journal is written again before its lines are handed over for the first time."""
    path = tmp_path / "journal.jsonl"
    journal, reader = FileJournal(path), JournalReader(path)
    with room_for(5):
        journal.note("joined", name="worker-0")
        journal.note("joined", name="worker-1")
    journal.retry(now=True)
    read = [line["what"] for line in reader.new_lines()]
    assert read == ["joined", "unwritten", "joined", "written-again"]
    part = journal.part()
    assert part is not None
    reader.hand(part)
    assert not list(reader.new_lines())
    journal.note("left", name="worker-0")
    part = journal.part()
    assert part is not None
    reader.hand(part)
    assert [line["what"] for line in reader.new_lines()] == ["left"]
    journal.close()


def test_held_lines_need_little_memory_and_routine_ones_are_left_out_first(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path, most_held_nbytes=4000)
    with room_for(5):
        for round_ in range(1000):
            journal.note("rounds", round=round_)
            if round_ % 100 == 0:
                journal.note("joined", name=f"worker-{round_}")
        part = journal.part()
        assert part is not None
        assert sum(map(len, map(bytes, part.lines))) <= 4000, "the command does not read"
    journal.close()
    lines = list(read_journal(path))
    rounds = [line["round"] for line in lines if line["what"] == "rounds"]
    assert rounds[0] == 0, "a part of this line was in the file"
    assert rounds[-1] == 999 and rounds == sorted(rounds)
    names = [line["name"] for line in lines if line["what"] == "joined"]
    assert names == [f"worker-{round_}" for round_ in range(0, 1000, 100)]
    (over,) = [line for line in lines if line["what"] == "written-again"]
    assert over["missing"] == 1000 - len(rounds) > 800
    assert journal.incomplete == f"{over['missing']} lines are missing in {path}"


def test_what_is_no_line_of_json_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line = msgspec.json.encode({"at_s": 1.0, "what": "joined"}) + b"\n"
    path.write_bytes(line + line[:9] + line + line + line[:9])
    assert kinds(path) == ["joined", "joined"]
    reader = JournalReader(path)
    assert len(list(reader.new_lines())) == 2
    with path.open("ab") as file:
        file.write(line[9:])
    assert len(list(reader.new_lines())) == 1


def pages(journal: FileJournal | SentJournal, most_nbytes: int) -> bytes:
    """Read a journal page by page, as an operator does."""
    read = b""
    while True:
        page = journal.page(len(read), most_nbytes)
        assert len(page.lines) <= most_nbytes
        read += page.lines
        if page.last:
            return read


def test_the_pages_of_a_journal_are_its_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path)
    assert journal.page(0, 100).last and pages(journal, 100) == b""
    for number in range(50):
        journal.note("joined", name=f"worker-{number}")
    written = path.read_bytes()
    for most_nbytes in (1, 7, len(written) - 1, len(written), len(written) + 1):
        assert pages(journal, most_nbytes) == written
    assert journal.page(len(written) + 1, 100).last, "an operator may ask for bytes beyond the end"
    path.unlink()
    journal.note("left")
    assert pages(journal, 64).startswith(written), "the folder of the run was deleted"
    journal.close()


def test_the_pages_contain_lines_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path)
    journal.note("joined", name="worker-0")
    with room_for(path.stat().st_size + 10):
        journal.note("joined", name="worker-1")
        journal.note("left", name="worker-1")
        held = pages(journal, 16)
        assert [line["what"] for line, _ in whole_lines(held.splitlines(keepends=True))] == [
            *("joined", "joined", "unwritten", "left")
        ]
    journal.retry(now=True)
    assert pages(journal, 16).startswith(held) and pages(journal, 16) == path.read_bytes()
    journal.close()


def test_a_journal_that_is_sent_has_pages_too(tmp_path: Path) -> None:
    journal = SentJournal(tmp_path / "journal.jsonl")
    journal.note("joined", name="worker-0")
    part = journal.part()
    assert part is not None and journal.part() is None
    journal.note("left", name="worker-0")
    kept = pages(journal, 20).splitlines()
    assert kept[:1] == [bytes(line) for line in part.lines] and len(kept) == 2
    with room_for(1):
        journal.note("ended")
        assert journal.incomplete is None, "the command that runs the job has the line"
    assert len(pages(journal, 20).splitlines()) >= 3
    journal.close()

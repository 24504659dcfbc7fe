"""The names of the workers that are in a job, read from its journal."""

from pathlib import Path

from polyrhythm.observe.journal import FileJournal
from polyrhythm.observe.runs import Members


def test_who_comes_back_is_present(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal.jsonl")
    members = Members(tmp_path / "journal.jsonl")
    journal.note("joined", name="guest")
    assert members.present() == {"guest"}
    journal.note("left", name="guest")
    assert members.present() == frozenset()
    journal.note("rejoined", name="guest")
    assert members.present() == {"guest"}
    journal.close()

"""Who is in a job now, whoever started them: a fold over its journal."""

from pathlib import Path

from polyrhythm.observe.journal import JournalReader


class Members:
    def __init__(self, journal: Path) -> None:
        self._reader = JournalReader(journal)
        self._names: set[str] = set()

    def present(self) -> frozenset[str]:
        for line in self._reader.new_lines():
            if line["what"] in ("joined", "rejoined"):
                self._names.add(line["name"])
            elif line["what"] == "left":
                self._names.discard(line["name"])
        return frozenset(self._names)

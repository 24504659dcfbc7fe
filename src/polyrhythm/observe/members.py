"""Who is in a job now, and whether its servers have met: a fold over its journal."""

from pathlib import Path

from polyrhythm.observe.journal import JournalReader


class Members:
    def __init__(self, journal: Path) -> None:
        self._reader = JournalReader(journal)
        self._names: set[str] = set()
        self._servers: set[int] = set()
        self._most_servers = 0

    def present(self) -> frozenset[str]:
        """The workers that are in the job, whoever started them."""
        self._read()
        return frozenset(self._names)

    def gathered(self, servers: int) -> bool:
        """Whether so many servers were in the job at once, now or before."""
        self._read()
        return self._most_servers >= servers

    def _read(self) -> None:
        for line in self._reader.new_lines():
            match line["what"]:
                case "joined" | "rejoined":
                    self._names.add(line["name"])
                case "left":
                    self._names.discard(line["name"])
                case "server-joined":
                    self._servers.add(line["server"])
                case "server-left" | "server-lost":
                    self._servers.discard(line["server"])
            self._most_servers = max(self._most_servers, len(self._servers))

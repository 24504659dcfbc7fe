"""Reads from the journal of a job which workers are in the job, whether all servers have joined,
and whether an operator is stopping the job."""

from pathlib import Path

from polyrhythm.observe.journal import JournalPart, JournalReader


class Members:
    def __init__(self, journal: Path) -> None:
        self._reader = JournalReader(journal)
        self._names: set[str] = set()
        self._servers: set[int] = set()
        self._most_servers = 0
        self._stopping_for: str | None = None
        self.attached = False
        """Whether a worker has attached a model."""
        self.ended = False
        """Whether the lead has ended the job."""

    def hand(self, part: JournalPart) -> None:
        """Take lines of the journal that are perhaps not in its file."""
        self._reader.hand(part)

    def present(self) -> frozenset[str]:
        """The names of the workers in the job. Workers that joined with `polyrhythm worker` are
        included."""
        self._read()
        return frozenset(self._names)

    def stopping_for(self) -> str | None:
        """The name of the operator who asked to stop the job; None if no operator did."""
        self._read()
        return self._stopping_for

    def gathered(self, servers: int) -> bool:
        """Whether this many servers have been in the job at the same time."""
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
                case "placed":
                    self.attached = True
                case "stopping":
                    self._stopping_for = line.get("by")
                case "ended":
                    self.ended = True
                    self._stopping_for = line["fields"].get("by")
            self._most_servers = max(self._most_servers, len(self._servers))

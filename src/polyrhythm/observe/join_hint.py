"""How another process joins a running job: one hint for the start of a job, `status`, `why` and
`story`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from polyrhythm.core.names import is_loopback

UNKNOWN = "HOST:PORT"
ANY_FILE = "FILE.py"
"""The word for a file with the code of a worker, in commands that join a job without code."""
COLOCATED = "colocated"
"""The role of a command that starts a worker and a server."""


class JoinHint(msgspec.Struct, frozen=True):
    """What a process must know to join. On the job's host, commands of the same user need only the
    address to find the job's file and its secret."""

    address: str = UNKNOWN
    file: str = ""
    """The file with the code of the job, as its user wrote it; empty for a built-in job."""
    served: bool = False
    """Whether the job has no code (`polyrhythm serve`)."""
    secret_file: str = ""
    """The path of the file with the job's secret, on the host of the job; empty if joining needs no
    such file."""
    insecure: bool = False
    local_servers: int = 0
    """How many servers the command of the job starts. These servers have the lowest numbers."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "JoinHint":
        """Make the hint from the journal's line that says where the lead listens."""
        host = line.get("reached_at") or line["host"]
        here = is_loopback(host)
        indexed = line.get("indexed", "secret_file" not in line)
        file = line.get("file", "")
        return cls(
            f"[{host}]:{line['port']}" if ":" in host else f"{host}:{line['port']}",
            file if not here or file == ANY_FILE else "",
            line.get("served", False),
            "" if here and indexed else line.get("secret_file", ""),
            not here,
            line.get("local_servers", 0),
        )

    def command(self, role: str = "worker") -> str:
        """The command that joins the job as a worker, as a server or as both (`COLOCATED`)."""
        words = ["polyrhythm", "server" if role == "server" else "worker"]
        if self.file and role != "server":
            words.append(self.file)
        if role == COLOCATED:
            words.append("--colocate")
        words += ["--connect", self.address]
        if self.insecure and role != "worker":
            words.append("--insecure")
        if self.secret_file:
            words += ["--secret-file", self.secret_file]
        return " ".join(words)

    def text(self, role: str = "worker") -> str:
        """The complete hint: the command that joins the job, and where the secret is."""
        command = self.command(role)
        if self.served and role == "worker":
            command = f'polyrhythm.connect("{self.address}") in Python, or {command}'
        if self.secret_file and self.insecure:
            command += " (give a copy of this file, which only you can read)"
        return command

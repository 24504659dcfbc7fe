"""Where a command that joins a job finds the job's secret: a file that the user names, the environment,
or the index of this user's jobs on this host. Never the command line, which `ps` shows to all users."""

import os
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.errors import UsageError
from polyrhythm.io.jobindex import Index
from polyrhythm.io.secretfile import VARIABLE, parse_secret, read_secret
from polyrhythm.wire.proof import Secret

SECRET = "secret"
"""The file in a run's folder."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job before it is dialled."""

    secret: Secret
    job: str = ""
    """Its id, where it is a job of this user on this host."""
    path: str = ""
    """Its file, where it is a job of this user on this host: as the user named it to `train`."""


def find_secret(host: str, port: int, file: Path | None) -> Known:
    text = os.environ.pop(VARIABLE, None)  # the processes that a job starts have no use for it
    if file is not None:
        return Known(read_secret(file))
    if text is not None:
        return Known(parse_secret(os.fsencode(text), f"${VARIABLE}"))
    entry = Index(os.environ).find(host, port)
    if entry is None:
        raise UsageError(
            f"no secret is known for {host}:{port}: no job of this user on this machine listens"
            " there; for a job of another machine or user, give its run's file 'secret' with"
            f" --secret-file FILE or its text in ${VARIABLE}"
        )
    return Known(read_secret(Path(entry.secret_file)), entry.job, entry.path)

"""Finds the secret of the job that a command joins: in a file that the user names, in the
environment, or through the index of this user's jobs on this host. The secret is never given on the
command line, because `ps` shows command lines to all users.

*A command that starts a job takes the secret from the environment too.* So a launcher gives one secret
to all processes of a job, before any of them runs.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.errors import LinkError, RunError
from polyrhythm.io.addresses import nothing_listens
from polyrhythm.io.index import JobIndex
from polyrhythm.io.secretfile import VARIABLE, parse_secret, read_secret
from polyrhythm.wire.proof import Secret

SECRET = "secret"
"""The name of the file with the secret, in the folder of a run."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a command knows about a job before it connects to the job."""

    secret: Secret
    job: str = ""
    """The job's id; empty unless this user started the job on this host."""
    path: str = ""
    """The path of the job's file, as it was given to `train`; empty unless this user started the
    job on this host."""


def given_secret() -> Secret | None:
    """The secret that the environment gives to a new job; None if it gives none. The variable
    stays, because a job may begin again in this process (`--on-loss resume`)."""
    text = os.environ.get(VARIABLE)
    return None if text is None else parse_secret(os.fsencode(text), f"${VARIABLE}")


def find_secret(host: str, port: int, file: Path | None) -> Known:
    text = os.environ.pop(VARIABLE, None)  # child processes must not inherit the secret
    if file is not None:
        return Known(read_secret(file))
    if text is not None:
        return Known(parse_secret(os.fsencode(text), f"${VARIABLE}"))
    entry = JobIndex(os.environ).find(host, port)
    if entry is None and nothing_listens(host, port):
        raise LinkError(
            f"no job listens at {host}:{port}: it has ended, or has another address; 'polyrhythm"
            " status RUN' shows the address of a running job"
        )
    if entry is None:
        raise RunError(
            f"no secret is known for {host}:{port}: no job of this user on this machine listens"
            " there; for a job of another machine or user, give its run's file 'secret' with"
            f" --secret-file FILE or its text in ${VARIABLE}"
        )
    return Known(entry.secret, entry.job, entry.path)

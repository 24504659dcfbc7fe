"""A job's secret in a file that only its user can read."""

import os
import secrets
import stat
from pathlib import Path

from polyrhythm.errors import UsageError
from polyrhythm.wire.proof import FEWEST_CHARACTERS, Secret

VARIABLE = "POLYRHYTHM_SECRET"
"""The environment variable from which a command may get the secret of the job that it joins or
starts."""
_RANDOM_NBYTES = 32
_MOST_NBYTES = 4096
_ROOT = 0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def fresh_secret() -> Secret:
    return Secret(secrets.token_hex(_RANDOM_NBYTES))


def create_secret(path: Path, secret: Secret | None = None) -> Secret:
    """Write this secret, or a fresh one, to a new file of mode 0600. Raises OSError if it cannot be
    written."""
    secret = secret or fresh_secret()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        os.fchmod(fd, 0o600)
        if os.fstat(fd).st_mode & _OTHERS:
            raise UsageError(
                f"{path} would be readable by other users, because its file system keeps no"
                " permissions: choose another --runs-dir"
            )
        file.write(f"{secret.text}\n")
    return secret


def read_secret(path: Path) -> Secret:
    """Read the secret from a file that the user or the index of jobs has named."""
    try:
        # O_NONBLOCK, because opening a pipe would block
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"the secret file {path} is not a regular file")
            if status.st_uid not in (os.getuid(), _ROOT):
                raise UsageError(
                    f"the secret file {path} belongs to another user, who can change it: make"
                    f" your own copy"
                )
            if status.st_mode & _OTHERS:
                raise UsageError(
                    f"the secret file {path} can be read or changed by other users: make it"
                    f" private with 'chmod 600 {path}'"
                )
            text = file.read(_MOST_NBYTES)
    except OSError as error:
        raise UsageError(f"cannot read the secret file {path}: {error.strerror}") from None
    return parse_secret(text, f"the secret file {path}")


def parse_secret(text: bytes, source: str) -> Secret:
    """The secret in this text; `source` names its origin in error messages."""
    try:
        word = text.decode("ascii").strip()
    except UnicodeDecodeError:
        word = "\n"  # refused below
    if not word and not text.strip():
        raise UsageError(f"{source} is empty: copy the file 'secret' of the run's folder")
    if len(word) < FEWEST_CHARACTERS or not word.isprintable() or " " in word:
        raise UsageError(
            f"{source} does not contain the secret of a job, which is one line of at least"
            f" {FEWEST_CHARACTERS} letters"
            " and digits, as in the file 'secret' of the run's folder"
        )
    return Secret(word)

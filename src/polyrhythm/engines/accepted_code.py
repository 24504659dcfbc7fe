"""The code that a joining worker gets from the lead, if its user accepts that (`--accept-code`)."""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from polyrhythm.errors import CodeMissing, LinkError, UsageError
from polyrhythm.io.codefile import check_size, digest_of
from polyrhythm.observe.reasons import in_words
from polyrhythm.runtime.operator import ask_lead
from polyrhythm.wire.messages import JobSpec, OperatorRequest
from polyrhythm.wire.messages.operator import CODE
from polyrhythm.wire.proof import Secret

_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.py")


@contextlib.contextmanager
def accepted_code(
    host: str, port: int, name: str, job: JobSpec, secret: Secret
) -> Iterator[tuple[Path, str]]:
    """Get the job's file from the lead, and keep it in a folder that only this user can enter,
    until the end of the `with` block. Yields its path and its digest. Raises CodeMissing if the
    lead does not send it, and LinkError if it is not the file of the job."""
    source = _fetch(host, port, name, job, secret)
    digest = digest_of(source)
    if digest != job.code_digest:
        raise LinkError("the lead has sent a file that is not the job's: the digests differ")
    given = Path(job.name).name
    with tempfile.TemporaryDirectory(prefix="polyrhythm-code-") as folder:
        path = Path(folder) / (given if _MODULE.fullmatch(given) else "job.py")
        path.write_bytes(source)
        yield path, digest


def _fetch(host: str, port: int, name: str, job: JobSpec, secret: Secret) -> bytes:
    for answer in ask_lead(host, port, name, job.job, secret, OperatorRequest(what=CODE)):
        if answer.failed:
            raise CodeMissing(in_words(answer.reason))
        if answer.done:
            try:
                check_size(len(answer.source), Path(job.name).name)
            except UsageError as error:
                raise CodeMissing(str(error)) from None
            return answer.source
    raise LinkError("the lead has ended the link before it had sent the job's file")

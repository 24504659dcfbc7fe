"""The file with a job's code, as it is sent to a worker on another host that accepts it.

*Only the code of a single file of limited size is sent, and only if it is still the file with which
the job began. A file that imports modules which lie beside it, or that is part of a package, would
not run alone, so it is not sent.*
"""

import ast
import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

from polyrhythm.errors import UsageError
from polyrhythm.wire.messages.operator import MOST_CODE_NBYTES


def digest_of(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def read_code(path: Path, digest: str) -> bytes:
    """The contents of the file, if it may be sent. Raises UsageError otherwise. `digest`: the
    digest of the file when the job began."""
    try:
        status = path.stat()
        # the file may be a pipe, and reading a pipe could take forever
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("the job's file cannot be read any more: it is not a regular file")
        check_size(status.st_size, path.name)
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the job's file cannot be read any more: {error.strerror}") from None
    if digest_of(source) != digest:
        raise UsageError(f"{path.name} was changed after the job had begun, so it is not sent")
    if (path.parent / "__init__.py").exists():
        raise UsageError(f"{path.name} is part of a package, so it is not sent: {_ADVICE}")
    if (others := sorted(set(_neighbours(path, source)))) != []:
        raise UsageError(
            f"{path.name} imports {', '.join(others)} from its own folder, so it is not sent: {_ADVICE}"
        )
    return source


_ADVICE = "copy the folder to the worker's machine, and name the file there"


def check_size(nbytes: int, name: str) -> None:
    if nbytes > MOST_CODE_NBYTES:
        raise UsageError(
            f"{name} has {nbytes} bytes, and at most {MOST_CODE_NBYTES} are sent: copy it to the"
            " worker's machine, and name it there"
        )


def _neighbours(path: Path, source: bytes) -> Iterator[str]:
    """The modules in the folder of the file that the file imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level + (node.module or "")
            continue
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            first = module.partition(".")[0]
            beside = path.with_name(f"{first}.py"), path.with_name(first)
            if beside[0].is_file() and beside[0] != path:
                yield f"{first}.py"
            elif first and beside[1].is_dir() and any(beside[1].glob("*.py")):
                yield f"{first}/"

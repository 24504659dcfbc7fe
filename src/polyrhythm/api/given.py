"""Checks two options and converts them for the job: `--init`, the initial model, and `--set`, options of
the job's own code."""

from collections.abc import Mapping
from pathlib import Path

from polyrhythm.core.model import MODEL, named
from polyrhythm.errors import UsageError


def checked_init(path: Path) -> Path:
    """The absolute path of the file that --init names, or of the folder with the files of several
    models. Raises an error if a file cannot be read."""
    from polyrhythm.store.model_open import check_readable

    path = path.expanduser().resolve()
    if not path.is_dir():
        check_readable(path)
        return path
    files = [each for each in sorted(path.iterdir()) if each.name == MODEL or named(each.name)]
    if not files:
        raise UsageError(f"--init {path} is a folder without a model: it has no {MODEL}")
    for file in files:
        check_readable(file)
    return path


def own_options(given: list[str] | Mapping[str, object] | None) -> dict[str, str]:
    """The options for the job's own use, from a dict or from a list of NAME=VALUE."""
    if isinstance(given, Mapping):
        return {str(key): str(value) for key, value in given.items()}
    options = {}
    for pair in given or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {pair!r} is not understood: give NAME=VALUE")
        options[key] = value
    return options

"""Open a model's file, with one line if it cannot be read. This module does not import torch, so that
commands can check a file quickly."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from polyrhythm.errors import StoreError


def check_readable(path: Path) -> None:
    """Raise StoreError if this is not a file in the safetensors format."""
    with opened(path, "np"):
        pass


@contextlib.contextmanager
def opened(path: Path, framework: str = "pt") -> Iterator[Any]:
    """The file, as a reader of safetensors for this framework."""
    try:
        with path.open("rb"):
            pass  # for the words of the operating system, which the library does not repeat
        with safe_open(path, framework) as file:
            yield file
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise StoreError(f"{path} is not a whole safetensors file: {error}") from None

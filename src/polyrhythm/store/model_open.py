"""Opens a model's file, and raises an error of one line if it cannot be read. This module does not
import torch, so that commands can check a file quickly."""

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
    """Open the file with the safetensors reader for this framework."""
    try:
        with path.open("rb"):
            # Open the file without the library first: the library would hide the system's reason
            # why it cannot be opened.
            pass
        with safe_open(path, framework) as file:
            yield file
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise StoreError(f"{path} is not a whole safetensors file: {error}") from None

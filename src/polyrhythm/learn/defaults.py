"""Reads a job's default settings, such as its number of passes, from its source code. This does not
import torch."""

import ast
import importlib.util
from pathlib import Path
from typing import Any

from polyrhythm.errors import UsageError
from polyrhythm.learn.load import JOBS


def defaults_of(job: str) -> dict[str, Any]:
    """Return the module's `DEFAULTS`, which must be a literal; empty if it has none."""
    path = Path(job)
    if job in JOBS:
        spec = importlib.util.find_spec(JOBS[job])
        assert spec is not None and spec.origin is not None
        path = Path(spec.origin)
    for node in ast.parse(path.read_bytes()).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="DEFAULTS")], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id="DEFAULTS"), value=ast.expr() as value)
            ):
                try:
                    return dict(ast.literal_eval(value))
                except (ValueError, TypeError):
                    raise UsageError(
                        f"{job}: DEFAULTS is read without running the file; write it as a literal,"
                        ' for example DEFAULTS = {"epochs": 10}'
                    ) from None
    return {}

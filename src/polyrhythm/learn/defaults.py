"""How long a job trains if nobody says: read from its source, without importing torch."""

import ast
import importlib.util
from pathlib import Path
from typing import Any

from polyrhythm.learn.load import JOBS


def defaults_of(job: str) -> dict[str, Any]:
    """The module's literal `DEFAULTS`, or nothing."""
    path = Path(job)
    if job in JOBS:
        spec = importlib.util.find_spec(JOBS[job])
        assert spec is not None and spec.origin is not None
        path = Path(spec.origin)
    for node in ast.parse(path.read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="DEFAULTS")], value=value):
                return dict(ast.literal_eval(value))
    return {}

"""Finds a job's `main(worker)` by its name on the command line: a built-in job or a file."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from polyrhythm.errors import UsageError

JOBS = {
    "digits": "polyrhythm.learn.jobs.digits",
    "mnist-lr": "polyrhythm.learn.jobs.mnist_lr",
    "mnist-cnn": "polyrhythm.learn.jobs.mnist_cnn",
    "fashion-mnist-lenet": "polyrhythm.learn.jobs.fashion_mnist_lenet",
    "cifar10-vgg11": "polyrhythm.learn.jobs.cifar10_vgg11",
    "char-transformer": "polyrhythm.learn.jobs.char_transformer",
    "exchange": "polyrhythm.learn.jobs.exchange",
}
HIDDEN = {"exchange"}
"""Built-in jobs that `train` does not list. `exchange` belongs to `bench exchange`."""


def check_job(job: str) -> None:
    """Raise an error if a job cannot be run. This does not run its code."""
    if job in JOBS:
        return
    if not job.endswith(".py"):
        known = ", ".join(name for name in JOBS if name not in HIDDEN)
        raise UsageError(f"there is no job {job!r}: choose one of {known}, or give a FILE.py")
    path = Path(job)
    try:
        tree = ast.parse(path.read_bytes(), filename=job)
    except OSError as error:
        raise UsageError(f"cannot read {job}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{job} is not Python: {error}") from None
    if not any(_binds_main(node) for node in tree.body):
        raise UsageError(
            f"{job} has no main: write 'def main(worker):' in it, the loop that every worker runs"
        )


def _binds_main(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef(name="main") | ast.ClassDef(name="main"):
            return True
        case ast.Assign(targets=targets):
            return any(isinstance(t, ast.Name) and t.id == "main" for t in targets)
        case ast.ImportFrom(names=names) | ast.Import(names=names):
            return any((alias.asname or alias.name) in ("main", "*") for alias in names)
    return False


def load_module(job: str) -> ModuleType:
    if job in JOBS:
        return importlib.import_module(JOBS[job])
    path = Path(job).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"cannot load {job}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def load_main(job: str) -> Callable[[Any], None]:
    main = getattr(load_module(job), "main", None)
    if not callable(main):
        raise UsageError(f"{job} has no main(worker) that can be called")
    return main  # type: ignore[no-any-return]

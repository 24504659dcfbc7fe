"""Finds a job's `main(worker)` by its name on the command line, a built-in job or a file, and reads
the job's default settings. This does not import torch."""

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
    "kmeans": "polyrhythm.learn.jobs.kmeans",
    "fcm": "polyrhythm.learn.jobs.fcm",
    "gmm": "polyrhythm.learn.jobs.gmm",
    "lr": "polyrhythm.learn.jobs.lr",
    "nmf": "polyrhythm.learn.jobs.nmf",
    "exchange": "polyrhythm.learn.jobs.exchange",
}
HIDDEN = {"exchange"}
"""Built-in jobs that `train` does not list. `exchange` belongs to `bench exchange`."""


def check_job(job: str) -> None:
    """Raise an error if a job cannot be run. This does not run its code."""
    if job in JOBS:
        return
    if not job.endswith(".py"):
        if Path(file := f"{job}.py").is_file():
            raise UsageError(f"there is no job {job!r}, but a file: give {file}")
        known = ", ".join(name for name in JOBS if name not in HIDDEN)
        raise UsageError(f"there is no job {job!r}: choose one of {known}, or give a FILE.py")
    path = Path(job)
    try:
        tree = ast.parse(path.read_bytes(), filename=job)
    except OSError as error:
        raise UsageError(f"cannot read {job}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{job} is not Python: {error}") from None
    mains = [node for node in tree.body if _binds_main(node)]
    if mains and isinstance(mains[-1], ast.FunctionDef) and not mains[-1].decorator_list:
        _check_parameters(mains[-1].args, job)
    if not mains:
        raise UsageError(
            f"{job} has no main: write 'def main(worker):' in it, the loop that every worker runs"
        )


def _check_parameters(args: ast.arguments, job: str) -> None:
    """Raise an error if `main` cannot be called with one argument."""
    places = [*args.posonlyargs, *args.args]
    least = len(places) - len(args.defaults)
    named = [arg for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if not value]
    if least > 1 or named or not (places or args.vararg):
        raise UsageError(
            f"main in {job} cannot be called with one argument: write 'def main(worker):', because"
            " every worker calls it with its Worker"
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
    name = path.stem
    if _is_taken(name, path):
        # The folder comes last in `sys.path`: the job can import its modules, but they do not
        # replace installed modules.
        name = f"polyrhythm_job_{name}"
        sys.path.append(str(path.parent))
    else:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"cannot load {job}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _is_taken(name: str, path: Path) -> bool:
    """Whether the name of the file at `path` is also that of a module of Python or of an installed
    module. The file must not replace that module."""
    known = sys.modules.get(name)
    if known is not None:
        return getattr(known, "__file__", None) != str(path)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin != str(path)


def load_main(job: str) -> Callable[[Any], None]:
    main = getattr(load_module(job), "main", None)
    if not callable(main):
        raise UsageError(f"{job} has no main(worker) that can be called")
    return main  # type: ignore[no-any-return]


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

"""polyrhythm: trains a PyTorch model on machines that differ in speed, join late and fail."""

from polyrhythm import release

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it would be slow

__version__ = release.VERSION

__all__ = [
    "AttachedOptimizer",
    "ConnectedWorker",
    "Result",
    "Service",
    "Worker",
    "__version__",
    "connect",
    "errors",
    "runs",
    "serve",
    "simulate",
    "train",
]

if TYPE_CHECKING:
    from polyrhythm import errors
    from polyrhythm.api.connecting import connect
    from polyrhythm.api.result import Result, runs
    from polyrhythm.api.serving import Service, serve
    from polyrhythm.api.simulating import simulate
    from polyrhythm.api.training import train
    from polyrhythm.engines.worker_process import ConnectedWorker
    from polyrhythm.learn.attached import AttachedOptimizer
    from polyrhythm.learn.worker import Worker

_MODULES = {
    "AttachedOptimizer": "polyrhythm.learn.attached",
    "ConnectedWorker": "polyrhythm.engines.worker_process",
    "Result": "polyrhythm.api.result",
    "Service": "polyrhythm.api.serving",
    "Worker": "polyrhythm.learn.worker",
    "connect": "polyrhythm.api.connecting",
    "runs": "polyrhythm.api.result",
    "serve": "polyrhythm.api.serving",
    "simulate": "polyrhythm.api.simulating",
    "train": "polyrhythm.api.training",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is used for the first time: `Worker` needs torch, which takes
    seconds to import."""
    from importlib import import_module

    if name == "errors":
        return import_module("polyrhythm.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'polyrhythm' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

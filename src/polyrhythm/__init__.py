"""polyrhythm: a parameter server for machines that keep different time."""

from typing import TYPE_CHECKING, Any

from polyrhythm import errors, release

__version__ = release.VERSION

__all__ = ["Result", "Worker", "__version__", "errors", "runs", "simulate", "train"]

if TYPE_CHECKING:
    from polyrhythm.api.result import Result, runs
    from polyrhythm.api.simulating import simulate
    from polyrhythm.api.training import train
    from polyrhythm.learn.worker import Worker

_MODULES = {
    "Result": "polyrhythm.api.result",
    "Worker": "polyrhythm.learn.worker",
    "runs": "polyrhythm.api.result",
    "simulate": "polyrhythm.api.simulating",
    "train": "polyrhythm.api.training",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used for the first time: `Worker` needs torch, which takes
    seconds to import."""
    if name not in _MODULES:
        raise AttributeError(f"module 'polyrhythm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

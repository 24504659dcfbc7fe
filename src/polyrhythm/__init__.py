"""polyrhythm: a parameter server for machines that keep different time."""

from typing import TYPE_CHECKING, Any

from polyrhythm import release

__version__ = release.VERSION

__all__ = ["Worker", "__version__"]

if TYPE_CHECKING:
    from polyrhythm.learn.worker import Worker


def __getattr__(name: str) -> Any:
    """`Worker` needs torch, which takes seconds to import: only when it is asked for."""
    if name == "Worker":
        from polyrhythm.learn.worker import Worker

        return Worker
    raise AttributeError(f"module 'polyrhythm' has no attribute {name!r}")

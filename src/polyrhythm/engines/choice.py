"""Chooses an engine by its name."""

from polyrhythm.engines.engine import Engine
from polyrhythm.engines.local import LocalEngine
from polyrhythm.errors import UsageError

ENGINES = ("local", "inline")


def choose_engine(name: str = "local") -> Engine:
    """`local`: every server and worker is a process of this host. `inline`: all of them run in this
    process, for debugging."""
    if name == "local":
        return LocalEngine()
    if name == "inline":
        from polyrhythm.engines.inline import InlineEngine  # imports torch, which takes seconds

        return InlineEngine()
    raise UsageError(f"there is no engine {name!r}: choose one of {', '.join(ENGINES)}")

"""Chooses an engine by its name."""

from polyrhythm.engines.engine import Engine
from polyrhythm.errors import UsageError

LOCAL, INLINE = "local", "inline"
ENGINES = (LOCAL, INLINE)


def check_engine(name: str) -> None:
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}: choose one of {', '.join(ENGINES)}")


def choose_engine(name: str = LOCAL) -> Engine:
    """`local`: every server and worker is a process of this host. `inline`: all of them run in this
    process, for debugging."""
    check_engine(name)
    if name == INLINE:
        from polyrhythm.engines.inline import InlineEngine  # this imports torch: it takes seconds

        return InlineEngine()
    from polyrhythm.engines.local import LocalEngine

    return LocalEngine()

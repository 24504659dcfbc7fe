"""The entry point of the program `polyrhythm`. *It imports nothing itself*, so that Ctrl-C during the
imports of the program is noticed here."""

TYPE_CHECKING = False  # as in `typing`, which is not imported yet
if TYPE_CHECKING:
    import sys

_INTERRUPTED = 130
"""The exit status after Ctrl-C: 128 and the number of SIGINT."""


def run() -> None:
    """Run the command. Ctrl-C before the command has begun ends the process without a traceback."""
    try:
        import sys

        sys.unraisablehook = end_if_interrupted
        from polyrhythm.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


def end_if_interrupted(dropped: "sys.UnraisableHookArgs") -> None:
    """End the process if Python has dropped a KeyboardInterrupt. Python drops exceptions in
    finalizers and callbacks. Every import calls one, so without this check Ctrl-C would sometimes
    have no effect."""
    import os
    import sys

    if issubclass(dropped.exc_type, KeyboardInterrupt):
        os._exit(_INTERRUPTED)
    sys.__unraisablehook__(dropped)

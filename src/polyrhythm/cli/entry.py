"""The entry point of the program `polyrhythm`. It imports little itself, so that Ctrl-C during the
imports of the program is noticed here."""

import signal
import sys


def run() -> None:
    """Run the command. Ctrl-C before the command has begun ends the process without a traceback."""
    try:
        from polyrhythm.cli.main import run as run_command
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    run_command()

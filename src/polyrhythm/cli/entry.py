"""The entry point of the program `polyrhythm`. *It imports nothing itself*, so that Ctrl-C during the
imports of the program is noticed here."""


def run() -> None:
    """Run the command. Ctrl-C before the command has begun ends the process without a traceback."""
    try:
        from polyrhythm.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        import signal
        import sys

        sys.exit(128 + signal.SIGINT)

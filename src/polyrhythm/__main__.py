"""`python -m polyrhythm` is the command `polyrhythm`."""

from polyrhythm.cli.main import run

run()

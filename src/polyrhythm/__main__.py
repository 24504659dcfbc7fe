"""`python -m polyrhythm` is the command `polyrhythm`."""

from polyrhythm.cli.entry import run

run()

"""What every benchmark says: on which machine, how far it is, and its numbers at the end."""

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

from polyrhythm.io.cores import usable_cores

_STOLEN = 7
"""Which of a core's times the host gave to other machines (proc_stat(5))."""


def _core_times(stat: Path = Path("/proc/stat")) -> tuple[int, int]:
    """(what was stolen, all) since the machine began; zeros where nobody says so."""
    if not stat.exists():
        return 0, 0
    times = [int(part) for part in stat.read_text().splitlines()[0].split()[1:9]]
    return (times[_STOLEN], sum(times)) if len(times) > _STOLEN else (0, 0)


_BEGAN = _core_times()


def machine(*, anew: bool = True) -> str:
    """Where this was measured. Cores that others have been given meanwhile explain most surprises.
    `anew`: all of it was measured since this program began."""
    stolen, everything = (now - then for now, then in zip(_core_times(), _BEGAN, strict=True))
    here = f"{platform.machine()}, {usable_cores()} cores"
    if anew and everything:
        here += f", {stolen / everything:.0%} of their time taken by others"
    return here


def say(line: str) -> None:
    """How far it is, beside the result."""
    print(line, file=sys.stderr, flush=True)


def at_least_one(text: str) -> int:
    """For a flag that says how often."""
    if (times := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return times


def give(result: dict[str, Any], table: str, file: Path | None) -> None:
    """Print the table, and write all numbers to the file if there is one."""
    if file is not None:
        file.write_text(json.dumps(result, indent=1))
    print(table)

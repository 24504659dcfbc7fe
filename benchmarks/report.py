"""The output of every benchmark: the machine, the progress, and the numbers at the end."""

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

from polyrhythm.io.cores import usable_cores

_STOLEN = 7
"""The field of /proc/stat with the time that the host gave to other virtual machines
(proc_stat(5))."""


def _core_times(stat: Path = Path("/proc/stat")) -> tuple[int, int]:
    """(stolen time, total time) of all cores since the machine started; zeros where /proc/stat
    does not say."""
    if not stat.exists():
        return 0, 0
    times = [int(part) for part in stat.read_text().splitlines()[0].split()[1:9]]
    return (times[_STOLEN], sum(times)) if len(times) > _STOLEN else (0, 0)


_BEGAN = _core_times()


def machine(*, anew: bool = True) -> str:
    """The machine, and the share of its time that the host gave to other virtual machines, which
    explains most odd results. `anew`: all figures were measured since this program began."""
    stolen, everything = (now - then for now, then in zip(_core_times(), _BEGAN, strict=True))
    here = f"{platform.machine()}, {usable_cores()} cores"
    if anew and everything:
        here += f", {stolen / everything:.0%} of their time taken by others"
    return here


def say(line: str) -> None:
    """Report progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def at_least_one(text: str) -> int:
    """The type of a flag that is a number of repetitions."""
    if (times := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return times


def give(result: dict[str, Any], table: str, file: Path | None) -> None:
    """Print the table, and write all numbers to `file` as JSON if it is given."""
    if file is not None:
        file.write_text(json.dumps(result, indent=1))
    print(table)

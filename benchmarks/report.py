"""The output that all benchmarks share: a description of the host, the progress, and the
results."""

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

from polyrhythm.io.limits import usable_cores

_STOLEN = 7
"""The field of /proc/stat with the stolen time: time in which this virtual machine was ready to
run, but the host ran other virtual machines (proc_stat(5))."""


def _core_times(stat: Path = Path("/proc/stat")) -> tuple[int, int]:
    """The stolen time and the total time of all cores since the machine started. Both are zero if
    /proc/stat does not have them."""
    if not stat.exists():
        return 0, 0
    times = [int(part) for part in stat.read_text().splitlines()[0].split()[1:9]]
    return (times[_STOLEN], sum(times)) if len(times) > _STOLEN else (0, 0)


_BEGAN = _core_times()


def machine(*, anew: bool = True) -> str:
    """A description of this machine, with its share of stolen time, which explains most odd
    results. `anew`: all figures were measured since this program began, so the share applies to
    them."""
    stolen, everything = (now - then for now, then in zip(_core_times(), _BEGAN, strict=True))
    here = f"{platform.machine()}, {usable_cores()} cores"
    if anew and everything:
        here += f", {stolen / everything:.0%} of their time taken by others"
    return here


def say(line: str) -> None:
    """Report progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def at_least_one(text: str) -> int:
    """Parse the value of a flag that is a number of repetitions."""
    if (times := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return times


def give(result: dict[str, Any], table: str, file: Path | None) -> None:
    """Print the table. If `file` is given, write all results to it as JSON."""
    if file is not None:
        file.write_text(json.dumps(result, indent=1))
    print(table)

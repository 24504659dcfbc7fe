"""What every benchmark says: on which machine, how far it is, and its numbers at the end."""

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores"


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

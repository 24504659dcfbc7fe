"""Measures how long a command takes to print its first line, and to begin training.

    python -m benchmarks.starting [--repeat 5] [--workers 3] [--servers 2]

All times begin just before the command is executed. `first_line_s`: until `polyrhythm train` prints
its first line, which says what it does. `worker_first_line_s`: the same for `polyrhythm worker`, with
an address at which no job listens. `first_step_s`: until every worker has made its first step. The
figures are medians of `--repeat` jobs. One job that is not counted runs before them, so that the files
of Python and torch are in memory.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLI = Path(sys.executable).with_name("polyrhythm")
JOB = Path(__file__).with_name("first_step.py")
DEADLINE_S = 120.0
_NO_JOB = "127.0.0.1:9"


def first_line_s(command: list[str], folder: Path) -> tuple[float, str]:
    """Run a command to its end. Returns the seconds until its first line on stderr, and the line."""
    began = time.monotonic()
    secret = {"POLYRHYTHM_SECRET": "0" * 64}
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **secret},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        took_s = time.monotonic() - began
        process.stderr.read()
        process.wait(DEADLINE_S)
    return took_s, line.strip()


def start(folder: Path, workers: int, servers: int) -> dict[str, float]:
    """Run one small job, and one worker without a job."""
    times = Path(tempfile.mkdtemp(dir=folder))
    flags = ["--workers", str(workers), "--servers", str(servers), "--rounds", "3"]
    command = [str(CLI), "train", str(JOB), *flags, "--set", f"times={times}"]
    began = time.monotonic()
    line_s, line = first_line_s(command, folder)
    if "importing torch" not in line:
        sys.exit(f"the first line does not say what the command does: {line}")
    steps = [float(file.read_text()) for file in times.iterdir()]
    if len(steps) != workers:
        sys.exit(f"{len(steps)} of {workers} workers made a step")
    worker_s, _ = first_line_s([str(CLI), "worker", str(JOB), "--connect", _NO_JOB], folder)
    return {
        "first_line_s": line_s,
        "worker_first_line_s": worker_s,
        "first_step_s": max(steps) - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--servers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start(folder, args.workers, args.servers)
        found = [start(folder, args.workers, args.servers) for _ in range(args.repeat)]
    medians = {key: round(statistics.median(each[key] for each in found), 3) for key in found[0]}
    print(json.dumps({"workers": args.workers, "servers": args.servers, **medians}))


if __name__ == "__main__":
    main()

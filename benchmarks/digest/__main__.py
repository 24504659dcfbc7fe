"""Measures what the default digest costs over TCP: rounds per second with xxh3 and without a
digest.

    python -m benchmarks.digest [--repeat 5] [--sizes 102MB,4MB,0.1MB] [--servers 1,4] [--json out.json]

Both are measured one after the other, `--repeat` times. The order alternates, so that a disturbance
of the host affects both. The table shows the medians and their ratio, beside the ratio that is
required on a host with this number of cores.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from polyrhythm.cli.bench import pushed_nbytes
from polyrhythm.io.limits import usable_cores

WORKERS = 4
TIMEOUT_S = 240
DIGESTS = ("none", "xxh3")
ASKED_FOR = ("102MB", "4MB")
"""The sizes for which a ratio is required."""
ASKED_OF_MANY_CORES, ASKED_OF_TWO = 0.85, 0.80
FEW_CORES = 2


def rounds_of(nbytes: int) -> tuple[int, int]:
    """The numbers of rounds and of warm-up rounds for a few seconds of measuring."""
    rounds = max(20, min(2000, int(3e9 / nbytes)))
    return rounds, max(3, rounds // 10)


def rate_of(digest: str, nbytes: int, servers: int) -> float:
    """The rounds per second of one run."""
    rounds, warmup = rounds_of(nbytes)
    program = str(Path(sys.executable).parent / "polyrhythm")
    command = [program, "bench", "exchange", "--size", f"{nbytes}B", "--link", "tcp", "--no-bare"]
    command += ["--workers", str(WORKERS), "--servers", str(servers), "--digest", digest]
    command += ["--rounds", str(rounds), "--warmup", str(warmup), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=readme.ROOT
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["rounds_per_s"])


def compare(nbytes: int, servers: int, repeat: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {digest: [] for digest in DIGESTS}
    for repetition in range(repeat):
        for digest in DIGESTS if repetition % 2 == 0 else reversed(DIGESTS):
            rates[digest].append(rate_of(digest, nbytes, servers))
    return rates


def asked_for(size: str, cores: int) -> float | None:
    """The least required ratio of the speed with xxh3 to the speed without a digest. None: no ratio
    is required."""
    if size not in ASKED_FOR:
        return None
    return ASKED_OF_TWO if cores <= FEW_CORES else ASKED_OF_MANY_CORES


def measure(sizes: list[str], servers: list[int], repeat: int) -> dict[str, Any]:
    cells = []
    for size in sizes:
        for count in servers:
            rates = compare(pushed_nbytes(size), count, repeat)
            medians = {digest: round(statistics.median(r), 2) for digest, r in rates.items()}
            cell = {
                "size": size,
                "servers": count,
                "rounds_per_s": rates,
                "medians": medians,
                "ratio": round(medians["xxh3"] / medians["none"], 3),
                "asked_for": asked_for(size, usable_cores()),
            }
            cells.append(cell)
            report.say(f"{size}, {count} server(s): {medians}, ratio {cell['ratio']}")
    return {
        "machine": report.machine(),
        "workers": WORKERS,
        "repeat": repeat,
        "cells": cells,
    }


def table(result: dict[str, Any]) -> str:
    rows = [
        f"Rounds per second over TCP, {result['workers']} workers, medians of {result['repeat']}"
        f" ({result['machine']}):",
        "",
        "| size | servers | none | xxh3 | xxh3 / none | required |",
        "|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        least = "" if cell["asked_for"] is None else f"{cell['asked_for']:.2f}"
        medians = cell["medians"]
        rows.append(
            f"| {cell['size']} | {cell['servers']} | {medians['none']:,.1f} |"
            f" {medians['xxh3']:,.1f} | {cell['ratio']:.2f} | {least} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=report.at_least_one, default=5)
    parser.add_argument("--sizes", default="102MB,4MB,0.1MB")
    parser.add_argument("--servers", default="1,4")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    servers = [int(count) for count in args.servers.split(",")]
    result = measure(args.sizes.split(","), servers, args.repeat)
    report.give(result, table(result), args.json)


if __name__ == "__main__":
    main()

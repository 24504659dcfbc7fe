"""Compares the rounds per second of polyrhythm, a Ray parameter server, gloo and bare loops.

    python -m benchmarks.exchange [--repeat 5] [--sizes 102MB,4MB,0.1MB] [--json out.json] [--readme]

All systems are started, warmed up and measured one after the other. This is repeated `--repeat`
times, so that a disturbance of the host affects all of them. Medians are reported: a table of the
systems, and a table that compares polyrhythm with bare loops, the limit of this machine. `--readme`
writes the first table to README.md and the second to benchmarks/exchange/README.md, between their
markers. This needs the extra `bench` (Ray).
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from polyrhythm.cli.bench import pushed_nbytes

HERE = Path(__file__).parent
WORKERS = 4
TIMEOUT_S = 240
OURS: dict[str, list[str]] = {
    "local": ["--link", "local"],
    "in place": ["--link", "local", "--in-place"],
    "tcp": ["--link", "tcp", "--digest", "none"],
    "tcp xxh3": ["--link", "tcp", "--digest", "xxh3"],
}
PEERS: dict[str, list[str]] = {
    "ray documented": ["ray_peer.py", "--documented"],
    "ray": ["ray_peer.py"],
    "gloo": ["gloo_peer.py"],
}
SYSTEMS = {
    "local": "**polyrhythm, local links**",
    "in place": "**polyrhythm, local links, `--in-place`**",
    "tcp": "**polyrhythm, TCP, digest none**",
    "tcp xxh3": "**polyrhythm, TCP, digest xxh3**",
    "ray documented": "Ray, parameter server of its documentation",
    "ray": "Ray, the same, tuned",
    "gloo": "torch gloo, all-reduce",
}
LIMITS = {
    "bare local": ("local", "shared memory, copied in and out"),
    "bare in place": ("in place", "shared memory, nothing copied"),
    "bare tcp": ("tcp", "TCP, digest none"),
}
"""Each bare loop, the system of ours that it limits, and its label."""
LIMITS_DOCUMENT = HERE / "README.md"


def _rounds(nbytes: int) -> tuple[int, int]:
    """How many rounds are measured, and how many warm-up rounds precede them. The faster systems
    need a second or two for all of these rounds."""
    rounds = max(20, min(1500, int(1.6e9 / nbytes)))
    return rounds, max(3, rounds // 10)


def _call(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=readme.ROOT
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _ours(name: str, nbytes: int, rates: dict[str, list[float]]) -> None:
    rounds, warmup = _rounds(nbytes)
    program = str(Path(sys.executable).parent / "polyrhythm")
    command = [program, "bench", "exchange", "--size", f"{nbytes}B", "--workers", str(WORKERS)]
    command += ["--rounds", str(rounds), "--warmup", str(warmup), "--json", *OURS[name]]
    result = _call(command)
    rates.setdefault(name, []).append(result["rounds_per_s"])
    rates.setdefault(f"bare {name}", []).append(result["limit_rounds_per_s"])


def _peer(name: str, nbytes: int, rates: dict[str, list[float]]) -> None:
    rounds, warmup = _rounds(nbytes)
    rounds = min(rounds, 300)
    program, *flags = PEERS[name]
    command = [sys.executable, str(HERE / program), *flags, "--nbytes", str(nbytes)]
    command += ["--workers", str(WORKERS), "--rounds", str(rounds), "--warmup", str(warmup)]
    rates.setdefault(name, []).extend(_call(command)["rounds_per_s"])


def measure(sizes: list[str], repeat: int, say: Callable[[str], None]) -> dict[str, Any]:
    results: dict[str, dict[str, list[float]]] = {size: {} for size in sizes}
    for size in sizes:
        for repetition in range(repeat):
            for name in OURS:
                _ours(name, pushed_nbytes(size), results[size])
            for peer in PEERS:
                _peer(peer, pushed_nbytes(size), results[size])
            latest = {name: round(rates[-1], 1) for name, rates in results[size].items()}
            say(f"{size} {repetition + 1}/{repeat}: {latest}")
    return {
        "machine": report.machine(),
        "workers": WORKERS,
        "repeat": repeat,
        "rounds_per_s": results,
        "medians": {
            size: {name: round(statistics.median(r), 2) for name, r in rates.items()}
            for size, rates in results.items()
        },
    }


def table(result: dict[str, Any]) -> str:
    """How many rounds of exchange a second are possible, with each system."""
    medians = result["medians"]
    sizes = list(medians)
    rows = [
        f"Rounds per second, 1 server, {result['workers']} workers, medians of {result['repeat']}"
        f" ({result['machine']}):",
        "",
        "| size of the model | " + " | ".join(sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for name, label in SYSTEMS.items():
        cells = [f"{medians[size][name]:,.1f}" for size in sizes]
        rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def limits_table(result: dict[str, Any]) -> str:
    """How near our systems are to the limit of the machine."""
    medians = result["medians"]
    sizes = list(medians)
    rows = [
        f"Rounds per second of a bare loop, and the share that polyrhythm reaches; 1 server,"
        f" {result['workers']} workers, medians of {result['repeat']} ({result['machine']}):",
        "",
        "| size of the model | " + " | ".join(sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for bare, (ours, label) in LIMITS.items():
        cells = [
            f"{medians[size][bare]:,.1f} ({medians[size][ours] / medians[size][bare]:.0%})"
            for size in sizes
        ]
        rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sizes", default="102MB,4MB,0.1MB")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    result = measure(args.sizes.split(","), args.repeat, report.say)
    report.give(result, f"{table(result)}\n\n{limits_table(result)}", args.json)
    if args.readme:
        readme.write("exchange", table(result))
        readme.write("limits", limits_table(result), LIMITS_DOCUMENT)


if __name__ == "__main__":
    main()

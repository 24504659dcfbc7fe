"""Compares the rounds per second of polyrhythm, a Ray parameter server, gloo and bare loops.

    python -m benchmarks.exchange [--repeat 5] [--sizes 102MB,4MB,0.1MB] [--json out.json] [--readme]

All systems are started, warmed up and measured one after the other. This is repeated `--repeat`
times, so that a disturbance of the host affects all of them. The medians and their ratios are
reported. `--readme` writes the table between the markers in README.md. This needs the extra `bench`
(Ray).
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
FLOOR_SIZES = ("102MB", "4MB", "0.1MB")
FLOORS: list[tuple[str, str, str, tuple[float, float, float]]] = [
    ("local, copying, against Ray as documented", "local", "ray documented", (2.0, 5.0, 12.0)),
    ("local, copying, against Ray tuned", "local", "ray", (2.0, 5.0, 12.0)),
    (
        "local, `--in-place`, against Ray as documented",
        "in place",
        "ray documented",
        (3.0, 8.0, 15.0),
    ),
    ("local, `--in-place`, against Ray tuned", "in place", "ray", (3.0, 8.0, 15.0)),
    ("TCP, digest none, against its bare loop", "tcp", "bare tcp", (0.75, 0.75, 0.40)),
    ("TCP, digest none, against gloo", "tcp", "gloo", (0.75, 0.85, 1.00)),
]


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
    medians = result["medians"]
    sizes = list(medians)
    rows = [
        f"Rounds per second, 1 server, {result['workers']} workers, medians of {result['repeat']}"
        f" ({result['machine']}); every worker pushes and pulls the whole model each round:",
        "",
        "| | " + " | ".join(sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    labels = {
        "local": "**polyrhythm, local links**",
        "in place": "**polyrhythm, local links, `--in-place`**",
        "tcp": "**polyrhythm, TCP, digest none**",
        "tcp xxh3": "**polyrhythm, TCP, digest xxh3**",
        "ray documented": "Ray, actor parameter server as documented",
        "ray": "the same, tuned (sums in the cache, store touched beforehand)",
        "gloo": "torch gloo all-reduce (moves fewer bytes)",
        "bare local": "*bare loop, shared memory, copied in and out*",
        "bare in place": "*bare loop, shared memory, nothing copied*",
        "bare tcp": "*bare loop, TCP*",
    }
    for name, label in labels.items():
        cells = [f"{medians[size][name]:,.1f}" for size in sizes]
        rows.append(f"| {label} | " + " | ".join(cells) + " |")
    rows += ["", "| ratio | " + " | ".join(sizes) + " |", "|---|" + "---|" * len(sizes)]
    for label, ours, other, floors in FLOORS:
        cells = []
        floor_at = dict(zip(FLOOR_SIZES, floors, strict=True))
        for size in sizes:
            ratio = medians[size][ours] / medians[size][other]
            floor = f" (floor {floor_at[size]:g})" if size in floor_at else ""
            cells.append(f"{ratio:.2f}{floor}")
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
    report.give(result, table(result), args.json)
    if args.readme:
        readme.write("exchange", table(result))


if __name__ == "__main__":
    main()

"""Compares quantised pushes (`--push int8`) with exact ones: the accuracy and the bytes of a job, and
the time of a round over a slow link.

    python -m benchmarks.push_bytes [--job fashion-mnist-lenet] [--workers 2] [--epochs N] [--seeds 3]
                                    [--rates 100mbit,1gbit] [--rounds 10] [--only accuracy|speed]
                                    [--json FILE] [--check]

Exact and quantised runs alternate, with the same seeds. All links are TCP. For the time of a round,
one worker exchanges a model of 25 MB with one server in a network namespace whose link has a limited
rate; this needs root. With `--check`, the exit status is 1 if the mean accuracy is more than 0.5
percentage points below that of exact pushes, if the pushes have more than 0.27 of the bytes, or if a
round over a slow link takes more than 0.8 of the time.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.commands import Runner, execute, train, train_seeded
from benchmarks.quality.__main__ import find_data
from benchmarks.shaping import shaped_link
from polyrhythm.core.placement.slices import Slice
from polyrhythm.tensors.quantised import Quantiser, read_quantised

PUSHES = ("exact", "int8")
MARGIN = 0.005
MOST_BYTES = 0.27
MOST_TIME = 0.8
LARGE = Path(__file__).parent / "large.py"
_LIMIT_S = 3600.0
_SLICE = 512 * 1024
"""The length of a slice of 2 MiB."""

Results = dict[str, list[dict[str, Any]]]


def run(
    job: str, workers: int, push: str, epochs: int | None, seed: int, runner: Runner = execute
) -> dict[str, Any]:
    """Train a job. Returns its accuracy and the number of bytes that its workers have pushed."""
    flags = ("--link", "tcp", "--push", push)
    limits: dict[str, Any] = {"timeout_s": _LIMIT_S, "runner": runner}
    told = train_seeded(job, workers, *flags, epochs=epochs, seed=seed, **limits)
    wanted = ("accuracy", "points", "contributions", "bytes_pushed", "bytes_pulled")
    return {name: told[name] for name in wanted}


@contextmanager
def shaped(rate: str) -> Iterator[Runner]:
    """A function that runs commands in a network namespace whose loopback link has this rate."""
    with shaped_link(rate) as prefix:
        yield lambda command, timeout_s: execute([*prefix, *command], timeout_s)


def round_s(push: str, rounds: int, runner: Runner) -> float:
    """The median of the seconds of a round in which one worker exchanges a model of 25 MB with one
    server."""
    told = train(
        *(str(LARGE), "--workers", "1", "--servers", "1", "--link", "tcp", "--push", push),
        *("--rounds", str(rounds), "--timer", "off", "--threads", "1"),
        timeout_s=_LIMIT_S,
        runner=runner,
    )
    if told.get("failed"):
        raise SystemExit(f"{LARGE.name} failed: {told['failed']}")
    return float(told["metrics"]["round_s"])


def quantising_s(repetitions: int = 20) -> tuple[float, float]:
    """The processor time that one thread needs to quantise 25 MB, and to read the quantised numbers."""
    torch.set_num_threads(1)
    slices = [Slice(number, 0, 0, 0, _SLICE, ((0, _SLICE),)) for number in range(12)]
    numbers = [torch.randn(_SLICE) for _ in slices]
    payloads = [torch.zeros(_SLICE // 256 * 4 + _SLICE, dtype=torch.uint8) for _ in slices]
    quantiser, times = Quantiser(keeps_residuals=True), []
    for _ in range(repetitions):
        began_s = time.thread_time()
        for slice_, number, payload in zip(slices, numbers, payloads, strict=True):
            quantiser.quantise(slice_, number, payload)
        read_s = time.thread_time()
        for slice_, payload in zip(slices, payloads, strict=True):
            read_quantised(slice_, memoryview(payload.numpy()), torch.float32)
        times.append((read_s - began_s, time.thread_time() - read_s))
    first, second = zip(*times, strict=True)
    return statistics.median(first), statistics.median(second)


def mean(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.mean(float(each[name]) for each in runs)


def share(results: Results) -> float:
    """The bytes of a quantised contribution, divided by the bytes of an exact contribution."""
    each = [mean(results[p], "bytes_pushed") / mean(results[p], "contributions") for p in PUSHES]
    return each[1] / each[0]


def table(results: Results, speed: dict[str, dict[str, float]]) -> str:
    lines: list[str] = []
    if results:
        lines += ["| push | accuracy | per seed | MB pushed | share |", "|---|---|---|---|---|"]
        for push, runs in results.items():
            seeds = ", ".join(f"{each['accuracy']:.2%}" for each in runs)
            part = 1.0 if push == PUSHES[0] else share(results)
            pushed = mean(runs, "bytes_pushed") / 1e6
            lines.append(
                f"| {push} | {mean(runs, 'accuracy'):.2%} | {seeds} | {pushed:.1f} | {part:.4f} |"
            )
    if speed:
        lines += [
            *([""] if lines else []),
            "| link | exact | int8 | faster by |",
            "|---|---|---|---|",
        ]
        for rate, times in speed.items():
            exact, int8 = (times[push] for push in PUSHES)
            lines.append(f"| {rate} | {exact:.3f} s | {int8:.3f} s | {exact / int8:.2f} |")
    return "\n".join(lines)


def failings(results: Results, speed: dict[str, dict[str, float]]) -> list[str]:
    """Lines about the targets that quantised pushes miss."""
    found = []
    if results:
        exact, int8 = (results[push] for push in PUSHES)
        if mean(int8, "points") != mean(exact, "points"):
            found.append("the rows have different numbers of training points")
        if mean(int8, "accuracy") < mean(exact, "accuracy") - MARGIN:
            found.append(f"the accuracy is more than {MARGIN:.1%} below that of exact pushes")
        if share(results) > MOST_BYTES:
            found.append(f"pushes have {share(results):.4f} of the bytes, more than {MOST_BYTES}")
    for rate, times in speed.items():
        exact, int8 = (times[push] for push in PUSHES)
        if int8 > MOST_TIME * exact:
            found.append(f"at {rate} a round takes {int8 / exact:.2f} of the time, not {MOST_TIME}")
    return found


def measure_accuracy(told: argparse.Namespace) -> Results:
    results: Results = {}
    for seed in range(told.seeds):
        for push in PUSHES:
            done = run(told.job, told.workers, push, told.epochs, seed)
            report.say(f"{push}, seed {seed}: {done}")
            results.setdefault(push, []).append(done)
    return results


def measure_speed(rates: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """The median time of a round over three runs, by rate and push."""
    speed: dict[str, dict[str, float]] = {}
    for rate in rates:
        times: dict[str, list[float]] = {push: [] for push in PUSHES}
        with shaped(rate) as runner:
            for _ in range(3):
                for push in PUSHES:
                    times[push].append(round_s(push, rounds, runner))
                    report.say(f"{rate}, {push}: {times[push][-1]:.3f} s per round")
        speed[rate] = {push: statistics.median(found) for push, found in times.items()}
    return speed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="fashion-mnist-lenet")
    parser.add_argument("--workers", type=report.at_least_one, default=2)
    parser.add_argument("--epochs", type=report.at_least_one, default=None)
    parser.add_argument("--seeds", type=report.at_least_one, default=3)
    parser.add_argument("--rates", default="100mbit,1gbit")
    parser.add_argument("--rounds", type=report.at_least_one, default=10)
    parser.add_argument("--only", choices=("accuracy", "speed"), default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--check", action="store_true")
    told = parser.parse_args()
    results: Results = {}
    speed: dict[str, dict[str, float]] = {}
    result: dict[str, Any] = {"job": told.job}
    if told.only != "speed":
        if not find_data([told.job]):
            return 1
        results = measure_accuracy(told)
    if told.only != "accuracy":
        result["quantising_s"], result["reading_s"] = quantising_s()
        report.say(
            f"quantising 25 MB takes {1e3 * result['quantising_s']:.1f} ms of processor time, and"
            f" reading them {1e3 * result['reading_s']:.1f} ms"
        )
        speed = measure_speed(told.rates.split(","), told.rounds)
    found = failings(results, speed)
    for line in found:
        report.say(f"with --push int8 {line}")
    result |= {"machine": report.machine(), "results": results, "speed": speed, "failings": found}
    report.give(result, table(results, speed), told.json)
    return 1 if told.check and found else 0


if __name__ == "__main__":
    sys.exit(main())

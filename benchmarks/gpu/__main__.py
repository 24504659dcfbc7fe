"""Measures how fast a GPU worker exchanges its parameters with a server in host memory.

    python -m benchmarks.gpu [--size 102MB] [--workers 1 4] [--device cuda:0] [--rounds 60]
                             [--repeats 3] [--json FILE] [--check]

First the copies of an attached model are compared with plain copies from and to pinned memory. Then
jobs with one server, whose workers all use the one device, are compared with the same jobs whose
models are in host memory. The jobs run in turn, and the table shows medians. With `--check`, the
exit status is 1 if copies reach less than 0.80 of the pinned bandwidth, or if an exchange takes more
than 1.25 times as long as that from host memory.
"""

import argparse
import statistics
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.gpu.copies import measure
from polyrhythm.api.hosts import ProcessOptions, child_requests
from polyrhythm.cli.bench import final_reports, pushed_nbytes
from polyrhythm.engines.choice import choose_engine
from polyrhythm.engines.engine import EngineWatch
from polyrhythm.observe.journal import read_journal
from polyrhythm.wire.messages import JobSpec

LEAST_BANDWIDTH = 0.80
MOST_TIME = 1.25
JOB = Path(__file__).with_name("exchange_job.py")
_WARMUP = 10
_COPIES = 30


def exchange(device: str, nbytes: int, workers: int, rounds: int) -> float:
    """The median time of a round in milliseconds."""
    options = {
        "nbytes": str(nbytes),
        "warmup": str(_WARMUP),
        "device": device,
        "workers": str(workers),
    }
    spec = JobSpec(
        job=uuid.uuid4().hex,
        name=str(JOB),
        workers=workers,
        rounds=_WARMUP + rounds,
        updater="addition",
        options=options,
        heartbeat_s=5.0,
    )
    with tempfile.TemporaryDirectory(prefix="polyrhythm-bench-") as folder:
        requests = child_requests(spec, Path(folder), ProcessOptions(link="local"))
        run = choose_engine().run(requests, EngineWatch(say=report.say))
        lines = list(read_journal(Path(folder) / "journal.jsonl"))
    if run.failed is not None or run.worker_failures:
        raise SystemExit(run.failed or "; ".join(run.worker_failures.values()))
    reports = final_reports(lines, workers)
    return statistics.median(float(each["round_ms"]) for each in reports)


def compare(device: str, nbytes: int, workers: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Run the job from the device and from host memory in turn."""
    times: dict[str, list[float]] = {device: [], "host": []}
    for _ in range(repeats):
        for where, found in times.items():
            there = "cpu" if where == "host" else where
            found.append(exchange(there, nbytes, workers, rounds))
            report.say(f"{workers} workers, {where}: {found[-1]:.2f} ms per round")
    there, here = (statistics.median(found) for found in times.values())
    return {"workers": workers, "device_ms": there, "host_ms": here, "ratio": there / here}


def table(copies: dict[str, float], jobs: list[dict[str, Any]], nbytes: int) -> str:
    lines = [
        f"| copies of {nbytes / 1e6:.0f} MB | pinned memory | attached model | share |",
        "|---|---|---|---|",
        _row("device to host", copies["down"], copies["push"]),
        _row("host to device", copies["up"], copies["pull"]),
        "",
        "| whole exchange | from the device | from host memory | ratio |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {job['workers']} worker(s) | {job['device_ms']:.1f} ms | {job['host_ms']:.1f} ms |"
        f" {job['ratio']:.2f} |"
        for job in jobs
    ]
    return "\n".join([*lines, "", report.machine()])


def _row(what: str, plain: float, ours: float) -> str:
    return f"| {what} | {plain:.1f} GB/s | {ours:.1f} GB/s | {ours / plain:.2f} |"


def faults(copies: dict[str, float], jobs: list[dict[str, Any]]) -> list[str]:
    """The targets that were missed."""
    found = [
        f"{ours} reaches {copies[ours] / copies[plain]:.2f} of the pinned bandwidth"
        for ours, plain in (("push", "down"), ("pull", "up"))
        if copies[ours] < LEAST_BANDWIDTH * copies[plain]
    ]
    return found + [
        f"the exchange of {job['workers']} worker(s) takes {job['ratio']:.2f} times as long"
        for job in jobs
        if job["ratio"] > MOST_TIME
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--size", default="102MB")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=report.at_least_one, default=60)
    parser.add_argument("--repeats", type=report.at_least_one, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(arguments)
    nbytes = pushed_nbytes(args.size)
    jobs = [
        compare(args.device, nbytes, workers, args.rounds, args.repeats) for workers in args.workers
    ]
    # measure copies last, because no process may be forked after CUDA has started
    copies = measure(args.device, nbytes, _COPIES)
    found = faults(copies, jobs)
    result = {"nbytes": nbytes, "copies_gb_per_s": copies, "exchanges": jobs, "missed": found}
    report.give(result, table(copies, jobs, nbytes), args.json)
    for fault in found:
        report.say(fault)
    if args.check and found:
        sys.exit(1)


if __name__ == "__main__":
    main()

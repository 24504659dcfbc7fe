"""Measures how slow, dead, silent and joining workers delay the other workers.

    python -m benchmarks.membership [--repeat 3] [--seconds 10] [--servers 1] [--shares]

A job has four workers with steps of 10 ms, and one of them is four times slower. The contributions
per second of all workers are shown as a share of the highest possible number: 325 under asp, and
100 under ssp:8 and bsp, where the slow worker limits all others. Contributions are counted from the
journal after a warm-up, because the first steps of a process take longer. `--shares` measures only
these shares.

The cost of a death is the longest pause between two steps of any other worker after the death. It
includes the 10 ms of a step. The killed worker is started again. All figures are medians of
`--repeat` runs.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polyrhythm.learn.data.catalogue import known
from polyrhythm.learn.data.places import find, places

CLI = Path(sys.executable).with_name("polyrhythm")
STEPS = Path(__file__).with_name("steps.py")
REACHABLE = {"asp": 325.0, "ssp:8": 100.0, "bsp": 100.0}
STAGE = ("--workers", "4", "--threads", "1", "--min-step", "10ms", "--timer", "off")
WARM_UP_S = 3.0
_LEAST_LINES = 3
"""A measurement lasts for at least this many journal lines after the warm-up. The journal gets
about one line per second."""
SETTLED = 300
"""How many steps every worker makes before the signal. By then the lead has measured the intervals
between heartbeats."""
RECOVERED = 50
"""How many steps every other worker makes after the signal."""
DEADLINE_S = 120.0


def contributions_per_s(job: str, sync: str, servers: int, seconds: float) -> float:
    flags = ("--sync", sync, "--slow", "3=4x", "--max-seconds", str(WARM_UP_S + seconds))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [CLI, "train", job, *STAGE, "--servers", str(servers), *flags, "--name", "run"],
            cwd=folder,
            capture_output=True,
            timeout=seconds + DEADLINE_S,
            check=True,
        )
        lines = (Path(folder) / "runs" / "run" / "journal.jsonl").read_text().splitlines()
    return settled_rate([line for line in map(json.loads, lines) if line["what"] == "rounds"])


def settled_rate(lines: Sequence[dict[str, Any]]) -> float:
    """The contributions per second after the warm-up. Each `rounds` line has the number of
    contributions since the line before it."""
    settled = [n for n, line in enumerate(lines) if line["at_s"] >= lines[0]["at_s"] + WARM_UP_S]
    if len(settled) < _LEAST_LINES:
        raise SystemExit("the run was over before its steps had settled: give more --seconds")
    first = settled[0]
    counted = sum(line["contributions"] for line in lines[first + 1 :])
    return float(counted / (lines[-1]["at_s"] - lines[first]["at_s"]))


class Workers:
    """The workers of a running job. Their steps and process ids are read from files that they
    write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps_of(self, name: str) -> list[int]:
        path = self.folder / f"{name}.steps"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [int(line) for line in lines]

    def await_steps(self, names: Sequence[str], count: int) -> None:
        self.until(lambda: all(len(self.steps_of(name)) >= count for name in names))

    def until(self, done: Callable[[], Any]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not done():
            if time.monotonic() > until_s:
                raise TimeoutError(f"the job did not get that far within {DEADLINE_S:.0f} s")
            time.sleep(0.01)

    def hit(self, name: str, number: signal.Signals) -> int:
        """Send a signal to a worker, and return the time of the signal."""
        pid = int((self.folder / f"{name}.pid").read_text())
        now_ns = time.monotonic_ns()
        os.kill(pid, number)
        return now_ns

    def longest_pause_s(self, names: Sequence[str], since_ns: int) -> float:
        """The longest time between two steps of any of these workers, from `since_ns` on."""
        pauses = []
        for name in names:
            before = [ns for ns in self.steps_of(name) if ns <= since_ns][-1:]
            after = [ns for ns in self.steps_of(name) if ns > since_ns]
            times = before + after
            pauses += [b - a for a, b in itertools.pairwise(times)]
        return max(pauses) / 1e9

    def address(self) -> str:
        lines = (self.folder / "runs" / "run" / "journal.jsonl").read_text().splitlines()
        listening = next(line for line in map(json.loads, lines) if line["what"] == "listening")
        return f"{listening['host']}:{listening['port']}"


@contextlib.contextmanager
def running(sync: str) -> Iterator[Workers]:
    """Run a job until its workers have made their first steps."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--sync", sync, "--max-seconds", "600", "--name", "run", "--quiet")
        process = subprocess.Popen(
            [CLI, "train", STEPS, *STAGE, "--servers", "1", *flags],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            workers = Workers(Path(folder))
            workers.await_steps([f"worker-{n}" for n in range(4)], SETTLED)
            yield workers
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def cost_of(number: signal.Signals, sync: str) -> float:
    """The longest pause in seconds of the other workers after one worker gets this signal."""
    others = ["worker-0", "worker-2", "worker-3"]
    with running(sync) as workers:
        hit_ns = workers.hit("worker-1", number)

        def settled() -> bool:
            done = [[ns for ns in workers.steps_of(name) if ns > hit_ns] for name in others]
            return all(len(steps) >= RECOVERED for steps in done)

        workers.until(settled)
        return workers.longest_pause_s(others, hit_ns)


def seconds_to_join(sync: str) -> float:
    with running(sync) as workers:
        began_ns = time.monotonic_ns()
        guest = subprocess.Popen(
            [CLI, "worker", "--connect", workers.address(), "--name", "guest"],
            cwd=workers.folder,
            stderr=subprocess.DEVNULL,
        )
        try:
            workers.await_steps(["guest"], 1)
            return (workers.steps_of("guest")[0] - began_ns) / 1e9
        finally:
            guest.kill()
            guest.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each throughput run")
    parser.add_argument("--servers", type=int, default=1, help="for each throughput run")
    parser.add_argument("--shares", action="store_true", help="measure throughput only")
    parser.add_argument("--json", type=Path, help="write all numbers here too")
    args = parser.parse_args()
    job = "mnist-lr" if find(known("mnist"), places(None, os.environ)) is not None else "digits"
    shares: dict[str, Callable[[], float]] = {
        f"{sync}: share of {reachable:.0f} contributions/s": (
            lambda sync=sync, reachable=reachable: (
                contributions_per_s(job, sync, args.servers, args.seconds) / reachable
            )
        )
        for sync, reachable in REACHABLE.items()
    }
    costs: dict[str, Callable[[], float]] = {
        **{
            f"{sync}: {what}, pause of the others in s": (
                lambda number=number, sync=sync: cost_of(number, sync)
            )
            for what, number in (("kill -9", signal.SIGKILL), ("SIGSTOP", signal.SIGSTOP))
            for sync in REACHABLE
        },
        "asp: command to first contribution of a joiner in s": lambda: seconds_to_join("asp"),
    }
    measures = shares if args.shares else shares | costs
    found: dict[str, list[float]] = {what: [] for what in measures}
    for _ in range(args.repeat):
        for what, measure in measures.items():
            found[what].append(measure())
    print(f"{'':54} {'median':>8} {'least':>8} {'most':>8}   ({job}, {args.repeat} times)")
    for what, values in found.items():
        numbers = (statistics.median(values), min(values), max(values))
        print(f"{what:54} " + " ".join(f"{number:8.3f}" for number in numbers))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

"""Measures what replicas cost, and how long a lost server delays the workers.

    python -m benchmarks.failover [--repeat 10] [--only kill|stop|rounds] [--json out.json]

There are two measurements, and each is reported as a median.

Delay: a job has four workers with steps of 10 ms, three servers, and one replica of every slice.
One server is killed or stopped. Each worker then has one step that takes longest. The delay is the
time from the signal until the last worker has ended its longest step.

Cost: the rounds per second of `bench exchange` at 102 MB with two servers. The result is the speed
with one replica divided by the speed without replicas. The two speeds are measured alternately.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CLI = Path(sys.executable).with_name("polyrhythm")
STEPS = Path(__file__).parents[1] / "membership" / "steps.py"
WORKERS = [f"worker-{number}" for number in range(4)]
SETTLED = 300
"""How many steps every worker makes before the signal. By then the lead has measured the intervals
between heartbeats."""
RECOVERED = 50
DEADLINE_S = 120.0
TCP_LISTENS = "0A"


def until(done: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + DEADLINE_S
    while not (found := done()):
        if time.monotonic() > until_s:
            raise TimeoutError(f"the job did not get that far within {DEADLINE_S:.0f} s")
        time.sleep(0.01)
    return found


def steps_of(folder: Path, name: str) -> list[int]:
    path = folder / f"{name}.steps"
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


@contextlib.contextmanager
def running(sync: str, link: str) -> Iterator[tuple[Path, list[int]]]:
    """Run a job until its workers have made their first steps. Yields its folder and the process
    ids of its servers; the first is the lead's server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ["--workers", "4", "--servers", "3", "--replicas", "1", "--min-step", "10ms"]
        flags += ["--sync", sync, "--link", link, "--timer", "off", "--max-seconds", "600"]
        process = subprocess.Popen(
            [CLI, "train", STEPS, *flags, "--name", "run", "--quiet"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: all(len(steps_of(folder, name)) >= SETTLED for name in WORKERS))
            yield folder, _listening(_descendants(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def seconds_of_delay(number: signal.Signals, sync: str, link: str) -> float:
    """Each worker has one step that took longest after the signal. Return the seconds from the
    signal until the last of these steps has ended."""
    with running(sync, link) as (folder, servers):
        hit_ns = time.monotonic_ns()
        os.kill(servers[1], number)

        def after(name: str) -> list[int]:
            return [ns for ns in steps_of(folder, name) if ns > hit_ns]

        until(lambda: all(len(after(name)) >= RECOVERED for name in WORKERS))
        ends = []
        for name in WORKERS:
            pauses = itertools.pairwise([hit_ns, *after(name)])
            ends.append(max(pauses, key=lambda pause: pause[1] - pause[0])[1])
        return (max(ends) - hit_ns) / 1e9


def _descendants(pid: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *_descendants(int(child))]
    return found


def _listening(pids: list[int]) -> list[int]:
    """The processes that listen on a port, in the order in which they were started. These are the
    servers."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{fields[9]}]" for fields in lines if fields[3] == TCP_LISTENS}
    return [
        pid
        for pid in pids
        if inodes & {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    ]


def rounds_per_s(link: str, replicas: int) -> float:
    flags = ["--servers", "2", "--replicas", str(replicas), "--link", link, "--no-bare", "--json"]
    done = subprocess.run(
        [CLI, "bench", "exchange", *flags], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)["rounds_per_s"])


def share_of_rounds(link: str) -> float:
    without = rounds_per_s(link, 0)
    return rounds_per_s(link, 1) / without


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--only", choices=("kill", "stop", "rounds"))
    parser.add_argument("--json", type=Path, help="write all numbers here too")
    args = parser.parse_args()
    measures: dict[str, dict[str, Callable[[], float]]] = {
        what: {
            f"{said} of a server, {sync}: seconds of delay": (
                lambda number=number, sync=sync: seconds_of_delay(number, sync, "auto")
            )
            for sync in ("bsp", "asp")
        }
        for what, said, number in (
            ("kill", "kill -9", signal.SIGKILL),
            ("stop", "SIGSTOP", signal.SIGSTOP),
        )
    }
    measures["rounds"] = {
        f"rounds with one copy / none, {link}": (lambda link=link: share_of_rounds(link))
        for link in ("local", "tcp")
    }
    chosen = {
        name: measure
        for what, some in measures.items()
        if args.only in (None, what)
        for name, measure in some.items()
    }
    found: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(args.repeat):
        for name, measure in chosen.items():
            found[name].append(measure())
            print(f"{name}: {found[name][-1]:.3f}", file=sys.stderr, flush=True)
    print(f"{'':58} {'median':>8} {'least':>8} {'most':>8}   ({args.repeat} times)")
    for name, values in found.items():
        numbers = (statistics.median(values), min(values), max(values))
        print(f"{name:58} " + " ".join(f"{number:8.3f}" for number in numbers))
        print(f"  all: {' '.join(f'{value:.3f}' for value in values)}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

"""Replaces all servers but the lead's, one after the other, while jobs train; draws the objectives.

    python -m tools.replaced docs/pictures/replaced.svg [--servers 4]

There are no replicas. A new server joins, and then an old one is drained: it moves its slices to the
others and leaves. The jobs train under bsp, asp and fsp, and with kind statistics under fsp.
"""

import argparse
import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from polyrhythm.observe.journal import read_journal
from tools.rolling import CLI, GONE, OBJECTIVE, TEXT, Line, until

JOBS = {
    "bsp": ("digits", "--sync", "bsp"),
    "asp": ("digits", "--sync", "asp"),
    "fsp": ("digits", "--sync", "fsp", "--timer", "0.2s"),
    "kind statistics, fsp": (
        "kmeans",
        "--sync",
        "fsp",
        "--timer",
        "0.2s",
        "--set",
        "data=points.npy",
        "--set",
        "k=200",
        "--set",
        "tol=0",
    ),
}
CALM_ROUNDS = 25
"""How many rounds to wait before the first server joins, and after each one that left."""
WIDTH, HEIGHT, LEFT, TOP, BETWEEN = 380, 190, 60, 40, 24


class Job:
    """A running job whose servers come and go."""

    def __init__(self, folder: Path, servers: int, flags: tuple[str, ...]) -> None:
        self._folder = folder
        words = ["--servers", str(servers), "--workers", "3", "--min-step", "100ms", "--quiet"]
        words += ["--epochs", "100000", "--max-seconds", "1800"]
        words += ["--slice-size", "4KiB"]  # so that some servers hold several slices
        self.processes = [self._start("train", *flags, *words, "--name", "replaced")]

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        return subprocess.Popen([str(CLI), *words], cwd=self._folder, stdout=null, stderr=null)

    def lines(self, *what: str) -> list[Line]:
        journal = self._folder / "runs" / "replaced" / "journal.jsonl"
        lines = list(read_journal(journal)) if journal.exists() else []
        return [line for line in lines if not what or line["what"] in what]

    def _until(self, done: Callable[[], bool], what: str) -> None:
        def runs() -> bool:
            if self.processes[0].poll() is not None:
                raise RuntimeError(f"the job has ended, and was to go on until {what}")
            return done()

        until(runs, what)

    def train(self, rounds: int) -> None:
        def done() -> int:
            return max((line["round"] for line in self.lines("rounds")), default=0)

        wanted = done() + rounds
        self._until(lambda: done() >= wanted, f"round {wanted}")

    def join(self) -> None:
        """Let a server join."""
        known = len(self.lines("server-joined"))
        (listens,) = self.lines("listening")
        self.processes.append(
            self._start("server", "--connect", f"{listens['host']}:{listens['port']}")
        )
        self._until(lambda: len(self.lines("server-joined")) > known, "a server joins")

    def drain(self, server: int) -> None:
        done = self._start("drain", "replaced", f"s{server}").wait(120)
        if done:
            raise RuntimeError(f"s{server} cannot be drained")

    def end(self) -> None:
        self.processes[0].send_signal(signal.SIGTERM)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def replace(servers: int, flags: tuple[str, ...]) -> list[Line]:
    """Run a job, replace its servers in turn, and return the lines of its journal."""
    with tempfile.TemporaryDirectory() as folder:
        points = np.random.default_rng(0).random((200_000, 16), dtype=np.float32)
        np.save(Path(folder) / "points.npy", points)
        job = Job(Path(folder), servers, flags)
        try:
            job.train(CALM_ROUNDS)
            for server in range(1, servers):
                job.join()
                job.drain(server)
                job.train(CALM_ROUNDS)
        finally:
            job.end()
        lines = job.lines()
    lost = [f"s{line['server']} was lost" for line in lines if line["what"] == "server-lost"]
    ended = [line for line in lines if line["what"] == "ended"]
    if lost or not ended or ended[0]["failed"]:
        raise RuntimeError(f"the job failed: {lost} {lines[-1]}")
    return lines


def draw(runs: dict[str, list[Line]]) -> str:
    wide, high = 2 * (WIDTH + BETWEEN), (len(runs) + 1) // 2 * (HEIGHT + BETWEEN) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}">'
    ]
    for number, (name, lines) in enumerate(runs.items()):
        left = number % 2 * (WIDTH + BETWEEN)
        top = number // 2 * (HEIGHT + BETWEEN)
        parts += [f'<g transform="translate({left},{top})">', *_panel(name, lines), "</g>"]
    text = "objective; lines: a server that was there from the beginning has left"
    parts.append(f'<text x="{LEFT}" y="{high - 8}">{text}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, lines: list[Line]) -> Iterator[str]:
    seen = [
        (float(line["at_s"]), float(line["objective"]))
        for line in lines
        if line["what"] == "rounds" and line["objective"] is not None
    ]
    first_s, last_s = seen[0][0], seen[-1][0]
    most = max(value for _, value in seen)
    bottom = HEIGHT - BETWEEN

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT) * (at_s - first_s) / (last_s - first_s)

    def y(value: float) -> float:
        return TOP + (bottom - TOP) * (1 - value / most)

    yield f'<text x="{LEFT}" y="22" font-weight="600">{escape(name)}</text>'
    for line in lines:
        if line["what"] == "drained":
            at = x(line["at_s"])
            yield f'<path d="M{at:.1f},{TOP} V{bottom}" stroke="{GONE}" opacity="0.6"/>'
            yield f'<text x="{at:.1f}" y="{TOP - 4}" text-anchor="middle">s{line["server"]}</text>'
    points = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in seen)
    yield f'<polyline points="{points}" fill="none" stroke="{OBJECTIVE}" stroke-width="1.5"/>'
    yield f'<path d="M{LEFT},{TOP} V{bottom} H{WIDTH}" fill="none" stroke="{TEXT}"/>'
    yield f'<text x="{LEFT - 8}" y="{TOP + 5}" text-anchor="end">{most:.3g}</text>'
    yield f'<text x="{LEFT - 8}" y="{bottom}" text-anchor="end">0</text>'
    yield f'<text x="{WIDTH}" y="{bottom + 16}" text-anchor="end">{last_s - first_s:.0f} s</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--servers", type=int, default=4)
    args = parser.parse_args()
    with ThreadPoolExecutor(len(JOBS)) as pool:
        run = partial(replace, args.servers)
        runs = dict(zip(JOBS, pool.map(run, JOBS.values()), strict=True))
    args.picture.write_text(draw(runs))


if __name__ == "__main__":
    main()

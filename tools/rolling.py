"""Restarts all servers but the lead's in turn while a job trains, and draws the objective.

    python -m tools.rolling docs/pictures/rolling.svg [--job digits] [--sync bsp] [--servers 4]

A server is killed, the engine starts it again, and it fetches its slices. The next server is killed
when every slice has all its replicas again.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

CLI = Path(sys.executable).with_name("polyrhythm")
DEADLINE_S = 300.0
CALM_ROUNDS = 100
"""How many rounds to wait before the first kill, between two kills, and after the last one."""
TCP_LISTENS = "0A"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 300, 70, 34, 20, 46
OBJECTIVE, GONE, TEXT = "#4269d0", "#ff725c", "#6e7781"
Line = dict[str, Any]


def until(done: Callable[[], Any], what: str) -> Any:
    until_s = time.monotonic() + DEADLINE_S
    while not (found := done()):
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {DEADLINE_S:.0f} s: {what}")
        time.sleep(0.02)
    return found


class Job:
    """A running job whose servers can be killed by their numbers."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self._journal = folder / "runs" / "rolling" / "journal.jsonl"
        flags = [
            "--servers",
            str(args.servers),
            "--replicas",
            "1",
            "--respawn",
            "--sync",
            args.sync,
        ]
        flags += ["--workers", "3", "--min-step", "10ms", "--max-seconds", "600", "--quiet"]
        self.process = subprocess.Popen(
            [CLI, "train", args.job, *flags, "--name", "rolling"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def lines(self) -> list[Line]:
        """The complete lines of the journal."""
        text = self._journal.read_text() if self._journal.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def servers(self) -> list[int]:
        """The process ids of the servers, oldest first. The servers are the processes that listen
        on a port."""
        table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = {f"socket:[{fields[9]}]" for fields in table if fields[3] == TCP_LISTENS}
        return [
            pid
            for pid in _descendants(self.process.pid)
            if inodes & {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        ]

    def rounds(self) -> int:
        return max((line["round"] for line in self.lines() if line["what"] == "rounds"), default=0)

    def train(self, rounds: int) -> None:
        wanted = self.rounds() + rounds
        until(lambda: self.rounds() >= wanted, f"round {wanted}")

    def restart(self, server: int, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

        def restored() -> bool:
            lines = self.lines()
            back = [
                at
                for at, line in enumerate(lines)
                if line["what"] == "server-joined" and line["server"] == server
            ]
            whole = (
                line["what"] == "copied" and not line["learning"] for line in lines[back[-1] :]
            )
            return len(back) > 1 and any(whole)

        until(restored, f"s{server} is back with all of its slices")


def _descendants(pid: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *_descendants(int(child))]
    return found


def roll(args: argparse.Namespace) -> list[Line]:
    """Run a job, restart its servers in turn, and return the lines of its journal."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), args)
        try:
            job.train(CALM_ROUNDS)
            for server, pid in list(enumerate(job.servers()))[1:]:
                job.restart(server, pid)
                job.train(CALM_ROUNDS)
            return job.lines()
        finally:
            job.process.send_signal(signal.SIGTERM)
            job.process.wait(30)


def draw(lines: list[Line], title: str) -> str:
    seen = [
        (line["at_s"], line["objective"])
        for line in lines
        if line["what"] == "rounds" and line["objective"] is not None
    ]
    absences = list(_absences(lines))
    first_s, last_s = seen[0][0], seen[-1][0]
    most = max(value for _, value in seen)

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at_s - first_s) / (last_s - first_s)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most)

    bottom = HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}">',
        f'<text x="{LEFT}" y="20" font-weight="600">{escape(title)}</text>',
    ]
    for name, gone_s, back_s in absences:
        left, right = x(gone_s), x(back_s)
        parts.append(
            f'<rect x="{left:.1f}" y="{TOP}" width="{max(2.0, right - left):.1f}"'
            f' height="{bottom - TOP}" fill="{GONE}" opacity="0.2"/>'
            f'<text x="{(left + right) / 2:.1f}" y="{TOP + 14}" text-anchor="middle">{name}</text>'
        )
    points = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in seen)
    parts.append(
        f'<polyline points="{points}" fill="none" stroke="{OBJECTIVE}" stroke-width="1.5"/>'
        f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="{TEXT}"/>'
        f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{bottom}" stroke="{TEXT}"/>'
    )
    for share in (0.0, 0.5, 1.0):
        at_s = first_s + share * (last_s - first_s)
        parts.append(
            f'<text x="{LEFT - 8}" y="{y(share * most) + 4:.1f}" text-anchor="end">'
            f"{share * most:.2f}</text>"
            f'<text x="{x(at_s):.1f}" y="{bottom + 18}" text-anchor="middle">{at_s:.0f} s</text>'
        )
    legend = "objective; shaded: from the death of a server until its slices have all copies again"
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}">{legend}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _absences(lines: Iterable[Line]) -> Iterable[tuple[str, float, float]]:
    """For each lost server: its name, when it was lost, and when every slice had all its replicas
    again."""
    gone: tuple[int, float] | None = None
    back = False
    for line in lines:
        if line["what"] == "server-lost":
            gone, back = (line["server"], line["at_s"]), False
        elif line["what"] == "server-joined" and gone is not None:
            back = True
        elif line["what"] == "copied" and not line["learning"] and gone is not None and back:
            yield f"s{gone[0]}", gone[1], line["at_s"]
            gone = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--job", default="digits")
    parser.add_argument("--sync", default="bsp")
    parser.add_argument("--servers", type=int, default=4)
    args = parser.parse_args()
    lines = roll(args)
    title = (
        f"{args.job} under {args.sync}: all servers but the lead's killed and started again in turn"
    )
    args.picture.write_text(draw(lines, title))


if __name__ == "__main__":
    main()

"""Runs the commands of README.md and docs/guide.md as a new user would.

    python -m tools.newcomer            # as `make newcomer`: in a fresh clone, from `make run` on
    python -m tools.newcomer --here     # with the installed polyrhythm, without make and pip

Every fenced block of `sh` is run as printed, by bash, in the order of the page. The first command
that fails ends the program. A fenced block of `python` that begins with the name of a file, such as
`# mine.py`, is saved under that name before the commands run. The README's commands run in a clone of
the last commit, and the guide's commands in an empty folder. A block below the line `<!-- newcomer:
not run, BECAUSE -->` is skipped. Each block runs in a new shell, and sees only the files that earlier
blocks have left.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/guide.md")
TIMEOUT_S = 900.0
_BLOCK = re.compile(
    r"^(?P<skip><!-- newcomer: not run, (?P<why>.*?) -->\n+)?```sh\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


_FILE = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    text: str
    not_run: str | None
    """The reason for skipping this block; None if the block is run."""

    @property
    def lines(self) -> list[str]:
        """The commands of the block. Continued lines are joined, and comments are removed."""
        whole = self.text.replace("\\\n", " ")
        stripped = (re.sub(r"(^|\s)#.*", "", line).strip() for line in whole.splitlines())
        return [line for line in stripped if line]


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        yield Block(page, line, match["text"], match["why"])


def save_files(page: str, folder: Path) -> list[str]:
    """Save the files that the page shows. Returns their names."""
    found = list(_FILE.finditer((ROOT / page).read_text(encoding="utf-8")))
    for match in found:
        (folder / match["name"]).write_text(match["text"], encoding="utf-8")
    return [match["name"] for match in found]


def run(block: Block, folder: Path, path: str) -> int:
    """Run the block in `folder`, then end every process that it has started. Returns the exit
    status."""
    process = subprocess.Popen(
        ["bash", "-e", "-o", "pipefail", "-c", block.text],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"{block.page}:{block.line}: not ended after {TIMEOUT_S:.0f} s", file=sys.stderr)
        return 124
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all processes of the group have ended
        process.wait()


def follow(page: str, folder: Path, path: str, *, here: bool) -> None:
    save_files(page, folder)
    for block in blocks(page):
        where = f"{page}:{block.line}"
        installs = any(line.startswith(("make ", "pip ")) for line in block.lines)
        why = block.not_run or ("--here" if here and installs else None)
        if why is not None:
            print(f"== {where}: not run ({why})", flush=True)
            continue
        print(f"== {where}\n{block.text.rstrip()}", flush=True)
        began_s = time.monotonic()
        code = run(block, folder, path)
        if code:
            sys.exit(f"{where} failed with status {code}:\n{block.text}")
        print(f"== {where}: passed after {time.monotonic() - began_s:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="use the polyrhythm installed here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as scratch:
        clone, empty = Path(scratch) / "polyrhythm", Path(scratch) / "empty"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        empty.mkdir()
        programs = Path(sys.executable).parent if args.here else clone / ".venv" / "bin"
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        for page, folder in zip(PAGES, (clone, empty), strict=True):
            follow(page, folder, path, here=args.here)


if __name__ == "__main__":
    main()

"""Measures how much longer it takes to save the trained model than to write its bytes.

    python -m benchmarks.saving [--repeat 5] [--mb 102] [--servers 2] [--link auto]

A job of two workers ends after three rounds. The time of saving is the time from the journal's line
`saving` to the line `saved`. It is compared with the time in which this process writes as many
bytes to a file in the same folder and calls fsync. This writing is measured before and after each
job. The figures are medians of `--repeat` jobs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLI = Path(sys.executable).with_name("polyrhythm")
JOB = Path(__file__).with_name("large.py")
DEADLINE_S = 300.0
_PIECE_NBYTES = 2 * 1024 * 1024


def bare_s(folder: Path, nbytes: int) -> float:
    """The seconds to write a file of this size, in pieces as large as a slice, with fsync at the
    end."""
    piece = os.urandom(_PIECE_NBYTES)
    began = time.perf_counter()
    with (folder / "bare").open("wb", buffering=0) as file:
        for _ in range(nbytes // _PIECE_NBYTES):
            file.write(piece)
        file.write(piece[: nbytes % _PIECE_NBYTES])
        os.fsync(file.fileno())
    took_s = time.perf_counter() - began
    (folder / "bare").unlink()
    return took_s


def saving_s(folder: Path, mb: float, servers: int, link: str, name: str) -> tuple[float, int]:
    """Run a job. Returns the seconds in which it saved its model, and the size of the file in
    bytes."""
    flags = ("--workers", "2", "--servers", str(servers), "--link", link, "--rounds", "3")
    subprocess.run(
        [CLI, "train", JOB, *flags, "--set", f"mb={mb}", "--name", name, "--quiet"],
        cwd=folder,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    text = (folder / "runs" / name / "journal.jsonl").read_text()
    lines = {line["what"]: line for line in map(json.loads, text.splitlines())}
    return lines["saved"]["at_s"] - lines["saving"]["at_s"], lines["saved"]["nbytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--mb", type=float, default=102.0)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--link", default="auto")
    args = parser.parse_args()
    saving, bare, nbytes = [], [], 0
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        for number in range(args.repeat):
            before_s = bare_s(folder, round(args.mb * 1e6))
            took_s, nbytes = saving_s(folder, args.mb, args.servers, args.link, f"run-{number}")
            bare.append(statistics.mean((before_s, bare_s(folder, round(args.mb * 1e6)))))
            saving.append(took_s)
            (folder / "runs" / f"run-{number}" / "model.safetensors").unlink()
    more = [job_s - bare_s_ for job_s, bare_s_ in zip(saving, bare, strict=True)]
    result = {
        "nbytes": nbytes,
        "servers": args.servers,
        "link": args.link,
        "saving_s": round(statistics.median(saving), 3),
        "bare_s": round(statistics.median(bare), 3),
        "more_s": round(statistics.median(more), 3),
        "most_more_s": round(max(more), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

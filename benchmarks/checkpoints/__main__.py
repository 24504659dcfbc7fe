"""Measures how much checkpoints slow training down, and how soon a resumed job trains.

    python -m benchmarks.checkpoints [--pairs 10] [--mb 102] [--passes 12] [--every 10s] [--resumes 3]

A pair is one job without checkpoints and one with them; both make the same number of passes, and
their order alternates. The time of a job is the time from its first round to its last fold. The
cost is the median over the pairs of the ratio of the two times.

Each resume starts from the last checkpoint of a finished job and makes one more pass. The time of a
resume is the time from the journal's first line, when the lead listens, to the first fold. So it
includes joining, reading the checkpoint, and the first round.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import at_least_one, machine, say

CLI = Path(sys.executable).with_name("polyrhythm")
JOB = Path(__file__).with_name("adam.py")
DEADLINE_S = 600.0


def run(folder: Path, name: str, *words: str) -> list[dict[str, Any]]:
    """Run a command of polyrhythm that trains. Returns the lines of the run's journal."""
    subprocess.run(
        [CLI, *words, "--name", name, "--quiet"],
        cwd=folder,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    text = (folder / "runs" / name / "journal.jsonl").read_text()
    (folder / "runs" / name / "model.safetensors").unlink()
    return [json.loads(line) for line in text.splitlines()]


def training_s(journal: list[dict[str, Any]]) -> float:
    times = [line["at_s"] for line in journal if line["what"] == "rounds"]
    return float(times[-1] - times[0])


def resuming_s(journal: list[dict[str, Any]]) -> float:
    """The seconds until the first fold after the resume. The first line `rounds` is the fold that
    the checkpoint contains."""
    folds = [line["at_s"] for line in journal if line["what"] == "rounds" and line["rounds"]]
    return float(folds[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=at_least_one, default=10)
    parser.add_argument("--mb", type=float, default=102.0)
    parser.add_argument("--passes", type=at_least_one, default=12)
    parser.add_argument("--every", default="10s")
    parser.add_argument("--resumes", type=at_least_one, default=3)
    args = parser.parse_args()
    flags = ("--workers", "2", "--servers", "2", "--set", f"mb={args.mb}")
    plain = ("train", str(JOB), *flags, "--epochs", str(args.passes))
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        ratios: list[float] = []
        counts: list[int] = []
        times: list[float] = []
        for pair in range(args.pairs):
            took_s = {}
            store = folder / f"store-{pair}"
            kept_in = ("--checkpoint-every", args.every, "--store", str(store), "--keep", "1")
            for kept in (False, True) if pair % 2 else (True, False):
                words = (*plain, *kept_in) if kept else plain
                journal = run(folder, f"pair-{pair}-{'with' if kept else 'without'}", *words)
                took_s[kept] = training_s(journal)
                if kept:
                    made = [line for line in journal if line["what"] == "checkpoint"]
                    if not made:
                        raise SystemExit("no checkpoint was made: use more --passes")
                    counts.append(len(made))
                    times.extend(line["seconds"] for line in made)
            ratios.append(took_s[True] / took_s[False])
            say(
                f"pair {pair}: {took_s[False]:.1f} s, with {counts[-1]} checkpoints {took_s[True]:.1f} s"
            )
        resumes = []
        for number in range(args.resumes):
            passes = str(args.passes + 1 + number)
            journal = run(folder, f"resume-{number}", "resume", str(store), "--epochs", passes)
            resumes.append(resuming_s(journal))
            say(f"resume {number}: first fold after {resumes[-1]:.1f} s")
    result = {
        "machine": machine(),
        "pairs": args.pairs,
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "checkpoints_per_job": statistics.median(counts),
        "checkpoint_s": round(statistics.median(times), 2),
        "resume_s": round(statistics.median(resumes), 2),
        "longest_resume_s": round(max(resumes), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

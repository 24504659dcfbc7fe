"""Compares the time to 92% accuracy when one of four workers is four times slower.

    python -m benchmarks.stragglers [--reps 5] [--rate 2e-3 --batch 512] [--json out.json] [--readme]
    python -m benchmarks.stragglers --rates [--reps 3] [--docs]

The systems are polyrhythm with each policy, Ray's synchronous and asynchronous parameter server,
and DDP. They train `mnist-lr` under the same conditions (`task.py`). If MNIST is not found in
$POLYRHYTHM_DATA or ../shared/data, they train `digits`. All systems run one after the other,
`--reps` times, so that a disturbance of the host affects all of them. Medians are reported. The
time is from the first step to the evaluation that reached the target. Contributions and batches per
second are means over that time. They differ, because a contribution of `psp` or `fsp` has several
batches or a part of one.

`--readme` writes the table between the markers in README.md and draws docs/pictures/stragglers.svg.
`--rates` runs the systems at several learning rates and batch sizes, because systems that average
gradients allow a higher rate than systems that apply them one by one. `--docs` writes the table of
`--rates` to benchmarks/stragglers/README.md. This needs the extra `bench` (Ray).
"""

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.commands import call, train
from benchmarks.stragglers.picture import draw
from benchmarks.stragglers.task import MIN_STEP, MOST_PER_S, SLOW, WORKERS, Numbers

POLICIES = ("bsp", "ssp:8", "ssp-restart:8", "asp", "psp", "fsp", "fsp --kind gradient")
"""Values of `--sync`. A value may be followed by a space and further flags."""
PEERS = {
    "Ray, synchronous": ["ray_peer", "sync"],
    "Ray, asynchronous": ["ray_peer", "async"],
    "torch DDP (gloo)": ["ddp_peer"],
}
RATES = ((2e-3, 512), (5e-3, 512), (1e-2, 512), (5e-3, 64))
"""Pairs of learning rate and batch size. The last pair is the job's default."""
TARGET = 0.92
LIMIT_S = 90.0
"""The time limit for training in seconds. A run that takes longer has not reached the target."""
START_S = 60.0
"""How many seconds a run may take for starting and ending, in addition to training."""
_SHOWN = "The same as bars: seconds to the target, and batches computed per second"
_RATES = ("contributions_per_s", "batches_per_s")
PICTURE = readme.ROOT / "docs" / "pictures" / "stragglers.svg"


def find_data() -> str:
    """The job to train: `mnist-lr` if MNIST is found, else `digits`. Sets $POLYRHYTHM_DATA to the
    folder with MNIST."""
    for place in (os.environ.get("POLYRHYTHM_DATA"), str(readme.ROOT.parent / "shared" / "data")):
        if place and (Path(place) / "mnist").is_dir():
            os.environ["POLYRHYTHM_DATA"] = place
            return "mnist-lr"
    return "digits"


def ours(policy: str, job: str, seed: int, numbers: Numbers) -> dict[str, Any]:
    run = train(
        *(job, *numbers.flags, "--workers", str(WORKERS), "--servers", "1"),
        *("--sync", *policy.split(), "--min-step", MIN_STEP, "--slow", SLOW, "--seed", str(seed)),
        *("--target-accuracy", str(TARGET), "--max-seconds", str(LIMIT_S)),
        timeout_s=LIMIT_S + START_S,
    )
    if not run.get("failed"):
        run["batches_per_s"] = run["points_per_s"] / numbers.batch_size
    return run


def peer(words: list[str], job: str, seed: int, numbers: Numbers) -> dict[str, Any]:
    module, *mode = words
    return call(
        [
            *(sys.executable, "-m", f"benchmarks.stragglers.{module}", *mode),
            *("--job", job, "--seed", str(seed), *numbers.words),
            *("--target", str(TARGET), "--max-seconds", str(LIMIT_S)),
        ],
        LIMIT_S + START_S,
    )


def measure(
    job: str,
    reps: int,
    say: Callable[[str], None],
    numbers: Numbers,
    policies: Sequence[str] = POLICIES,
    peers: Sequence[str] = tuple(PEERS),
) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for rep in range(reps):
        for policy in policies:
            name = f"polyrhythm, {called(policy)}"
            runs.setdefault(name, []).append(ours(policy, job, rep, numbers))
            _tell(say, rep, reps, runs)
        for name in peers:
            runs.setdefault(name, []).append(peer(PEERS[name], job, rep, numbers))
            _tell(say, rep, reps, runs)
    return {
        "machine": report.machine(),
        "job": job,
        "rate": numbers.rate,
        "batch": numbers.batch_size,
        "target": TARGET,
        "reps": reps,
        "runs": {name: [_kept(run) for run in all_] for name, all_ in runs.items()},
        "medians": {name: _medians(all_) for name, all_ in runs.items()},
    }


def called(policy: str) -> str:
    """The name of a policy in the table, with its kind if that is not the default."""
    sync, *flags = policy.split()
    return f"{sync}, {flags[-1]}" if flags else sync


def _tell(say: Callable[[str], None], rep: int, reps: int, runs: dict[str, Any]) -> None:
    name = max(runs, key=lambda name: (len(runs[name]), list(runs).index(name)))
    say(f"{rep + 1}/{reps} {name}: {_kept(runs[name][-1])}")


def _kept(run: dict[str, Any]) -> dict[str, Any]:
    if run.get("failed"):
        return {"failed": run["failed"]}
    return {name: run[name] for name in ("seconds_to_target", *_RATES)}


def _medians(runs: list[dict[str, Any]]) -> dict[str, float | None]:
    """The medians of several runs. A run that failed or did not reach the target counts as
    infinitely long."""
    seconds = statistics.median(
        math.inf
        if run.get("failed") or run["seconds_to_target"] is None
        else run["seconds_to_target"]
        for run in runs
    )
    well = [run for run in runs if not run.get("failed")]
    return {
        "seconds_to_target": seconds if math.isfinite(seconds) else None,
        **{name: statistics.median(run[name] for run in well) if well else None for name in _RATES},
    }


def table(result: dict[str, Any]) -> str:
    rows = [
        f"`{result['job']}` with batches of {result['batch']}, {WORKERS} workers, one of them 4x slower,"
        f" steps of 10 ms, medians of {result['reps']} ({result['machine']}). Without any waiting,"
        f" these workers would compute {MOST_PER_S} batches a second:",
        "",
        f"| | seconds to {result['target']:.0%} | batches a second | of what is possible |",
        "|---|---|---|---|",
    ]
    for name, median in result["medians"].items():
        seconds, rate = median["seconds_to_target"], median["batches_per_s"]
        cells = [
            f"**{name}**" if name.startswith("polyrhythm") else name,
            f"over {LIMIT_S:.0f}" if seconds is None else f"{seconds:.1f}",
            "-" if rate is None else f"{rate:.0f}",
            "-" if rate is None else f"{rate / MOST_PER_S:.0%}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def rates_table(results: list[dict[str, Any]]) -> str:
    """The table of seconds to the target, by learning rate and batch size. Each cell compares a
    system with the first system."""
    first, last = results[0], results[-1]  # the last result contains the stolen time of all runs
    names = list(first["medians"])
    rows = [
        f"`{first['job']}`, {WORKERS} workers, one of them 4x slower, steps of 10 ms, medians of"
        f" {first['reps']} ({last['machine']}); seconds to {first['target']:.0%}, and how many times"
        f" sooner {names[0]} is:",
        "",
        f"| rate | batch | {' | '.join(names)} |",
        f"|---|---|{'---|' * len(names)}",
    ]
    for result in results:
        seconds = [result["medians"][name]["seconds_to_target"] for name in names]
        cells = [
            f"over {LIMIT_S:.0f}" if took is None else _compared(took, seconds[0])
            for took in seconds
        ]
        rows.append(f"| {result['rate']} | {result['batch']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _compared(seconds: float, ours_: float | None) -> str:
    if ours_ is None or seconds == ours_:
        return f"{seconds:.1f}"
    return f"{seconds:.1f} ({seconds / ours_:.1f}x)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=report.at_least_one, default=5)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch", type=report.at_least_one)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    job = find_data()
    if args.rates:
        compare_rates(job, args)
        return
    result = measure(job, args.reps, report.say, Numbers.of(job, args.rate, args.batch))
    report.give(result, table(result), args.json)
    if args.readme:
        shown = f"![{_SHOWN}]({PICTURE.relative_to(readme.ROOT)})"
        readme.write("stragglers", f"{table(result)}\n\n{shown}")
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(draw(result, LIMIT_S, MOST_PER_S))


def compare_rates(job: str, args: argparse.Namespace) -> None:
    results = [
        measure(
            job,
            args.reps,
            report.say,
            Numbers.of(job, rate, batch),
            ("asp", "ssp:1000", "bsp"),
            ("Ray, asynchronous", "torch DDP (gloo)"),
        )
        for rate, batch in RATES
    ]
    report.give({"rates": results}, rates_table(results), args.json)
    if args.docs:
        readme.write(
            "rates", rates_table(results), readme.ROOT / "benchmarks" / "stragglers" / "README.md"
        )


if __name__ == "__main__":
    main()

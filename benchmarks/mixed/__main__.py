"""Compares FSP with BSP in a job with one GPU worker and four CPU workers.

    python -m benchmarks.mixed --out results [--reps 3] [--minutes 8] [--check]

The model is VGG-11, the data set CIFAR-10. BSP trains for `--seconds`. The lowest objective that it
reaches is the target, and FSP trains until it reaches the same objective. The objective is the loss on
a fixed sample of the training images, which the GPU worker evaluates now and then under either policy.
Each repetition has a seed of its own, and medians are reported. With `--check` the exit status is 1
unless FSP reaches the target at least 1.4 times as fast as BSP.

A trial on a machine without a GPU: `--devices cpu --model small --images 600 --seconds 6 --workers 2
--flags "--min-step 4ms --slow 1=50x"`.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cifar import runs
from benchmarks.cifar.runs import Case, Run

SOONER = 1.4
METRIC = "train_loss"


def cases(args: argparse.Namespace) -> tuple[Case, Case]:
    """The job under BSP and under FSP."""
    common = ("--workers", str(args.workers), "--servers", "1", "--devices", args.devices)
    common += tuple(args.flags.split())
    fsp = (*args.fsp.split(), "--probe-points", str(args.probe_points))
    return Case("bsp", (*common, "--sync", "bsp")), Case("fsp", (*common, "--sync", *fsp))


def lowest(curve: list[tuple[float, float]]) -> tuple[float, float] | None:
    """The time and the value of the lowest objective; None if no objective was evaluated."""
    return min(curve, key=lambda point: point[1], default=None)


def compared(pairs: list[dict[str, Any]]) -> dict[str, float | None]:
    """The medians over all repetitions, and the ratio of BSP's time to FSP's."""
    slow = runs.middle([pair["bsp_s"] for pair in pairs])
    fast = runs.middle([pair["fsp_s"] for pair in pairs])
    return {
        "bsp_s": slow,
        "fsp_s": fast,
        "target": runs.middle([pair["target"] for pair in pairs]),
        "sooner": None if slow is None or fast is None else slow / fast,
    }


def repetition(bsp: Run, fsp: Run | None) -> dict[str, Any]:
    """The lowest objective that BSP reached, and how many seconds each of the two runs needed to reach
    it."""
    found = lowest(bsp.get("curve", []))
    at_s, target = found if found is not None else (None, None)
    took_s = None if fsp is None else fsp.get("seconds_to_target")
    return {"target": target, "bsp_s": at_s, "fsp_s": took_s, "bsp": bsp, "fsp": fsp}


def table(pairs: list[dict[str, Any]], result: dict[str, Any]) -> str:
    seconds = result["seconds"]
    rows = [
        f"{result['model']}, {result['data']}; {result['devices']} ({result['gpu']};"
        f" {result['machine']}), batches of {result['batch']}; seconds until the"
        f" objective that bsp reaches within {seconds:.0f} s:",
        "",
        "| seed | objective | bsp | fsp | fsp is sooner by | points/s, bsp | points/s, fsp |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed, pair in enumerate(pairs):
        bsp_s, fsp_s, fsp = pair["bsp_s"], pair["fsp_s"], pair["fsp"] or {}
        ratio = "-" if not bsp_s or not fsp_s else f"{bsp_s / fsp_s:.2f}x"
        cells = [
            *(str(seed), "-" if pair["target"] is None else f"{pair['target']:.3f}"),
            *(runs.as_seconds(bsp_s, seconds), runs.as_seconds(fsp_s, seconds), ratio),
            *(f"{each.get('points_per_s', 0.0):.0f}" for each in (pair["bsp"], fsp)),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    medians = compared(pairs)
    if medians["sooner"] is not None:
        rows += [
            "",
            f"Medians: bsp {medians['bsp_s']:.1f} s, fsp {medians['fsp_s']:.1f} s: fsp is"
            f" {medians['sooner']:.2f} times sooner.",
        ]
    return "\n".join(rows)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    budget = runs.Budget(args.minutes)
    data = runs.data_of(args, folder)
    how = {"data": data, "measure": METRIC, "options": runs.options_of(args)}
    bsp, fsp = cases(args)
    pairs: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "model": args.model,
        "data": data.name,
        "devices": args.devices,
        "gpu": runs.devices(),
        "batch": args.batch,
        "rate": args.rate,
        "seconds": args.seconds,
        "pairs": pairs,
    }
    for seed in range(args.reps):
        # a repetition is useful only if there is time for both runs
        seconds = budget.seconds(2 * args.seconds + runs.START_S)
        if seconds is None or seconds < 2 * args.seconds + runs.START_S:
            report.say(f"no time is left for repetition {seed + 1}")
            break
        slow = runs.run(bsp, seed=seed, seconds=args.seconds, **how)
        report.say(f"seed {seed}, bsp: {runs.told(slow)}")
        pair = repetition(slow, None)
        if pair["target"] is not None:
            goal = Case(fsp.name, (*fsp.flags, "--target", f"{METRIC}={pair['target']}"))
            fast = runs.run(goal, seed=seed, seconds=args.seconds, **how)
            report.say(f"seed {seed}, fsp: {runs.told(fast)}")
            pair = repetition(slow, fast)
        pairs.append(pair)
        result |= {"machine": report.machine(), "medians": compared(pairs)}
        runs.write(args.out, "mixed", result, table(pairs, result))
        report.say(f"seed {seed}: bsp {pair['bsp_s']} s, fsp {pair['fsp_s']} s to {pair['target']}")
    return result


def failing(result: dict[str, Any]) -> str | None:
    """Why the target is missed; None if it is reached."""
    sooner = result.get("medians", {}).get("sooner")
    if sooner is None:
        return "fsp did not reach the objective of bsp"
    return None if sooner >= SOONER else f"fsp is {sooner:.2f} times sooner, not {SOONER}"


def main() -> int:
    parser = runs.parser_of(__doc__, minutes=8.0)
    parser.add_argument("--devices", default="cuda:0,cpu,cpu,cpu,cpu")
    parser.add_argument("--workers", type=report.at_least_one, default=5)
    parser.add_argument("--seconds", type=float, default=45.0, help="How long BSP trains.")
    parser.add_argument("--batch", type=report.at_least_one, default=64)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--fsp", default="fsp --min-batch 8", help="FSP and its flags.")
    parser.add_argument("--flags", default="", help="More flags for both, such as --slow 1=9x.")
    parser.add_argument("--probe-points", type=report.at_least_one, default=256)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, Path(folder))
    if not result["pairs"]:
        report.say("no repetition was measured: give more --minutes")
        return 1
    print(table(result["pairs"], result))
    found = failing(result)
    if found is not None:
        report.say(found)
    return 1 if args.check and found is not None else 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares the seconds to an accuracy of 75% under BSP, ASP, SSP and PSP, as in PSP's Table 1: VGG-11 on
CIFAR-10, with 3 and 6 workers whose steps take times in the ratio 1:2:3.

    python -m benchmarks.psp_table --out results [--clients 3,6] [--reps 1] [--minutes 8.5] [--check]

All workers share one GPU. Staging makes a step of the fastest workers take `--min-step`, and the steps
of the others two and three times as long. The learning rate and the batch size are the same for all
policies. Medians are reported. With `--check` the exit status is 1 unless PSP is the fastest
policy, and reaches the target in at most 80% of BSP's time.

`--devices cpu --model small --images 600 --target 0.15 --limit 10` is a trial without a GPU.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cifar import runs
from benchmarks.cifar.runs import Case, Run

POLICIES = ("psp", "bsp", "asp", "ssp:8")
"""The policies in the order of their runs. The most important ones come first, because a time limit
may end the program."""
SHARE = 0.8
"""The share of BSP's time within which PSP must reach the target."""
METRIC = "accuracy"
_FACTORS = (1, 2, 3)
_MIN_STEP_MS = {3: 20.0, 6: 30.0}
"""The duration of a step of the fastest workers, by the number of workers. Six workers share the
GPU, so their steps take longer."""

Runs = dict[str, dict[str, list[Run]]]


def factors_of(clients: int) -> list[int]:
    """For each worker, the duration of its steps as a multiple of that of the fastest worker."""
    each = clients // len(_FACTORS)
    return [factor for factor in _FACTORS for _ in range(each)]


def case_of(policy: str, clients: int, args: argparse.Namespace) -> Case:
    slow = [
        f"{worker}={factor}x" for worker, factor in enumerate(factors_of(clients)) if factor > 1
    ]
    step_ms = args.min_step or _MIN_STEP_MS.get(clients, 30.0)
    return Case(
        policy,
        (
            *("--workers", str(clients), "--servers", str(args.servers), "--sync", *policy.split()),
            *("--devices", args.devices, "--threads", "1", "--min-step", f"{step_ms:g}ms"),
            *(word for item in slow for word in ("--slow", item)),
            *("--target", f"{METRIC}={args.target}"),
        ),
    )


def seconds_of(found: list[Run]) -> float | None:
    return runs.middle([run.get("seconds_to_target") for run in found])


def table(result: dict[str, Any]) -> str:
    target, limit_s = result["target"], result["limit"]
    rows = [
        f"{result['model']}, {result['data']}, {result['gpu']} shared by all workers"
        f" ({result['machine']}), batches of {result['batch']}, rate {result['rate']}, steps in"
        f" the ratio 1:2:3, medians of {result['reps']}; seconds to {target:.0%}:",
        "",
        f"| workers | policy | seconds to {target:.0%} | of bsp's time | points/s | time computing |",
        "|---|---|---|---|---|---|",
    ]
    for clients, policies in result["runs"].items():
        bsp = seconds_of(policies.get("bsp", []))
        for policy, found in sorted(policies.items(), key=lambda each: seconds_of(each[1]) or 1e9):
            took = seconds_of(found)
            well = [run for run in found if "failed" not in run]
            speed = runs.middle([run["points_per_s"] for run in well])
            usage = runs.middle([run["usage"] for run in well])
            cells = [
                *(clients, policy, runs.as_seconds(took, limit_s)),
                "-" if took is None or bsp is None else f"{took / bsp:.0%}",
                "-" if speed is None else f"{speed:.0f}",
                "-" if usage is None else f"{usage:.0%}",
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def failings(result: dict[str, Any], clients: list[int]) -> list[str]:
    """Lines about the targets that PSP misses."""
    found = []
    for number in clients:
        policies = result["runs"].get(str(number), {})
        seconds = {policy: seconds_of(each) for policy, each in policies.items()}
        psp, bsp = seconds.get("psp"), seconds.get("bsp")
        if missing := [policy for policy in result["policies"] if policy not in seconds]:
            found.append(f"{number} workers: no run of {', '.join(missing)}")
        if psp is None:
            found.append(f"{number} workers: psp did not reach the target")
            continue
        if bsp is not None and psp > SHARE * bsp:
            found.append(f"{number} workers: psp takes {psp / bsp:.0%} of bsp's time")
        sooner = [policy for policy, took in seconds.items() if took is not None and took < psp]
        if sooner:
            found.append(f"{number} workers: {', '.join(sooner)} is sooner than psp")
    return found


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    budget = runs.Budget(args.minutes)
    data = runs.data_of(args, folder)
    how = {"data": data, "measure": METRIC, "options": runs.options_of(args)}
    found: Runs = {}
    result: dict[str, Any] = {
        "model": args.model,
        "data": data.name,
        "gpu": runs.devices(),
        "machine": report.machine(),
        "batch": args.batch,
        "rate": args.rate,
        "target": args.target,
        "limit": args.limit,
        "reps": args.reps,
        "policies": args.policies,
        "runs": found,
    }
    wanted = [
        (seed, clients, policy)
        for seed in range(args.reps)
        for clients in args.clients
        for policy in args.policies
    ]
    for seed, clients, policy in wanted:
        seconds = budget.seconds(args.limit)
        if seconds is None:
            report.say(f"no time is left for {policy} with {clients} workers, seed {seed}")
            break
        run = runs.run(case_of(policy, clients, args), seed=seed, seconds=seconds, **how)
        report.say(f"{clients} workers, {policy}, seed {seed}: {runs.told(run)}")
        found.setdefault(str(clients), {}).setdefault(policy, []).append(run)
        result["machine"] = report.machine()
        runs.write(args.out, "psp_table", result, table(result))
    return result


def clients_of(text: str) -> list[int]:
    """Numbers of workers such as 3,6. The three speeds need a multiple of three."""
    numbers = [int(each) for each in text.split(",")]
    if any(number < 3 or number % len(_FACTORS) for number in numbers):
        raise argparse.ArgumentTypeError("give multiples of 3, such as 3,6")
    return numbers


def main() -> int:
    parser = runs.parser_of(__doc__, minutes=8.5)
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--clients", type=clients_of, default=[3, 6])
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--servers", type=report.at_least_one, default=2)
    parser.add_argument("--target", type=float, default=0.75)
    parser.add_argument("--limit", type=float, default=80.0, help="Seconds of training of a run.")
    parser.add_argument("--min-step", type=float, help="Milliseconds of the fastest worker's step.")
    parser.add_argument("--batch", type=report.at_least_one, default=128)
    parser.add_argument("--rate", type=float, default=0.05)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, Path(folder))
    print(table(result))
    found = failings(result, args.clients)
    for line in found:
        report.say(line)
    return 1 if args.check and found else 0


if __name__ == "__main__":
    sys.exit(main())

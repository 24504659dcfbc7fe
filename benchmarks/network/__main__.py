"""Measures jobs in a laboratory of network namespaces whose links have given rates.

    python -m benchmarks.network [SCENARIO ...] [--all] [--json out.json] [--readme]

Scenarios: equal (gloo, polyrhythm, polyrhythm with bf16), unhurt (placements on equal links),
colocated and dedicated (rates drawn at random, and redrawn), moving (a server joins and leaves),
granularity (sizes of slices), overhead (probes and requests). `--all` runs what the table of
README.md needs, in at most 15 minutes on a quiet machine. A window of rounds is marked where it was
not bound by links: less than 30% of the processors' time was idle.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.network import scenarios
from benchmarks.network.hosts import why_not
from benchmarks.network.runs import RunFailed
from benchmarks.network.scenarios import Plan

HERE = Path(__file__).parent
LARGE = {"resnet50": 5, "alexnet": 3}
"""How many rounds are measured with the larger models."""
OVERHEAD: dict[str, tuple[str, ...]] = {
    "average": ("--placement", "average"),
    "aware": ("--placement", "aware"),
}


def _scenarios(plan: Plan) -> dict[str, Callable[[], Any]]:
    few = replace(plan, nodes=min(plan.nodes, 4))
    larger = {
        f"equal {model}": partial(scenarios.equal, replace(plan, model=model, rounds=rounds))
        for model, rounds in LARGE.items()
    }
    return {
        "equal": partial(scenarios.equal, plan),
        "unhurt": partial(scenarios.unhurt, plan),
        "colocated": partial(scenarios.colocated, plan),
        "dedicated": partial(scenarios.dedicated, plan),
        "moving": partial(scenarios.moving, plan),
        **larger,
        "granularity": partial(scenarios.granularity, few),
        "overhead": partial(scenarios.overhead, few, OVERHEAD),
    }


def table(results: dict[str, Any]) -> str:
    """A row for each figure: what, the figure, what it should be, and the least idle time."""
    rows = ["| | measured | wanted | idle |", "|---|---|---|---|"]
    for name, result in results.items():
        if isinstance(result, dict) and "failed" not in result:
            rows += [f"| {name}: {row} |" for row in _rows(name.split()[0], result)]
        elif isinstance(result, dict):
            rows.append(f"| {name}: failed: {result['failed'].splitlines()[0][:160]} | | | |")
    return "\n".join(rows)


def _rows(name: str, result: dict[str, Any]) -> list[str]:
    idle = min((window["idle"] for window in scenarios.windows(result)), default=None)
    seen = "" if idle is None else f"{idle:.0%}"
    found: list[tuple[str, str, str]] = []
    if name == "equal":
        of_bound = result["gloo"]["rounds_per_s"] / result["bound_rounds_per_s"]
        found.append(("gloo, of the bound of both", f"{of_bound:.2f}", ""))
        found.append(("of gloo", f"{result['same']['ratio_to_gloo']:.2f}", "0.95"))
        found.append(("bf16, of gloo in float32", f"{result['bf16']['ratio_to_gloo']:.2f}", "1.8"))
    elif name == "unhurt":
        for placement, told in result.items():
            found.append((f"{placement}, of average", f"{told['ratio']:.3f}", "0.98"))
    elif name in ("colocated", "dedicated"):
        for placement, told in result["medians"].items():
            best = f"{told['of_best']:.2f} ({told['of_best_apart']:.2f})"
            found.append((f"{placement}, of the best (pushes and pulls apart)", best, "0.9"))
            found.append((f"{placement}, of average", f"{told['speedup']:.2f}", ""))
            found.append((f"{placement}, rounds to 90%", f"{told['rounds_to_90']:.0f}", "3 or 10"))
    elif name == "moving":
        for what, told in result.items():
            found.append((f"{what}, seconds", f"{told['took_s']:.1f}", "10"))
            found.append((f"{what}, p95 of rounds, of that before", f"{told['share']:.2f}", "1.5"))
    elif name == "granularity":
        for size, states in result["sizes"].items():
            times = ", ".join(f"{1 / told['rounds_per_s']:.2f}" for told in states.values())
            found.append((f"slices of {size}, seconds a round", times, ""))
    elif name == "overhead":
        for what, told in result.items():
            found.append((f"{what}, seconds a round", f"{1 / told['rounds_per_s']:.3f}", ""))
    return [f"{what} | {figure} | {wanted} | {seen}" for what, figure, wanted in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument(
        "--model", default="mobilenet", help="mobilenet, resnet50, alexnet or BYTES"
    )
    parser.add_argument("--rounds", type=report.at_least_one, default=12)
    parser.add_argument("--draws", type=report.at_least_one, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--placements", default="average,aware", help="the first is the baseline")
    parser.add_argument("--flags", default="", help="flags of every job, such as '--replicas 1'")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    if args.nodes < 2:
        parser.error("--nodes must be at least 2")
    if (reason := why_not()) is not None:
        sys.exit(reason)
    plan = Plan(
        nodes=args.nodes,
        model=args.model,
        rounds=args.rounds,
        draws=args.draws,
        seed=args.seed,
        placements=tuple(args.placements.split(",")),
        flags=tuple(args.flags.split()),
    )
    known = _scenarios(plan)
    chosen = list(known) if args.all else args.scenarios or ["equal"]
    if unknown := set(chosen) - set(known):
        parser.error(f"no scenario is called {min(unknown)!r}: give some of {', '.join(known)}")
    results: dict[str, Any] = {}
    notes: dict[str, Any] = {}
    for name in chosen:
        began_s = time.monotonic()
        load = os.getloadavg()[0]
        try:
            results[name] = known[name]()
        except RunFailed as error:
            results[name] = {"failed": str(error)}
        took_s = time.monotonic() - began_s
        report.say(f"{name} took {took_s:.0f} s; the load before was {load:.1f}")
        notes[name] = {"took_s": round(took_s), "load_before": load}
    shown = table(results)
    everything = {"machine": report.machine(), "notes": notes, "results": results}
    report.give(everything, shown, args.json)
    if args.readme:
        readme.write("network", f"{report.machine()}\n\n{shown}", HERE / "README.md")


if __name__ == "__main__":
    main()

"""Measures jobs in a laboratory of network namespaces whose links have given rates.

    python -m benchmarks.network [--only SCENARIO,...] [--all] [--figures] [--json out.json] [--readme]
    python -m benchmarks.network --from out.json --readme

`--all` measures the scenarios of the table in README.md, in at most 15 minutes on a quiet machine.
`--figures` also measures what the paper's Figs. 4, 6 and 7 show, which takes about an hour more. A
window of rounds counts only if it was bound by links: at least 30% of the processors' time was idle.
`--readme` writes the table, and draws the pictures, of all scenarios that were measured. `--from` takes
the results of an earlier run, and measures only what `--only` names.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.network import pictures, scenarios
from benchmarks.network.hosts import why_not
from benchmarks.network.runs import BOUND_BY_LINKS, RunFailed
from benchmarks.network.scenarios import Plan

HERE = Path(__file__).parent
ALL = ("equal", "unhurt", "colocated", "dedicated", "redraw", "moves")
FIGURES = ("granularity", "overhead", "speed mobilenet", "speed resnet50", "speed alexnet")
LARGE = {"resnet50": 5, "alexnet": 2}
"""How many rounds are measured with the larger models."""


def _scenarios(plan: Plan) -> dict[str, Callable[[], Any]]:
    few = replace(plan, nodes=min(plan.nodes, 4))
    models = {"mobilenet": plan} | {
        model: replace(plan, model=model, rounds=rounds) for model, rounds in LARGE.items()
    }
    return {
        "equal": partial(scenarios.equal, plan),
        "unhurt": partial(scenarios.unhurt, plan),
        "colocated": partial(scenarios.colocated, replace(plan, draws=min(plan.draws, 3))),
        "dedicated": partial(scenarios.dedicated, plan),
        "redraw": partial(scenarios.redraw, plan),
        "moves": partial(scenarios.moving, plan),
        "granularity": partial(scenarios.granularity, few),
        "overhead": partial(scenarios.overhead, few),
        **{f"equal {model}": partial(scenarios.equal, models[model]) for model in LARGE},
        "speed mobilenet": partial(scenarios.speed, plan),
        **{
            f"speed {model}": partial(scenarios.speed, models[model], ("average", "aware"))
            for model in LARGE
        },
        **{
            f"elastic {model}": partial(
                scenarios.speed, replace(models[model], rounds=2), ("elastic",)
            )
            for model in LARGE
        },
    }


def table(results: dict[str, Any]) -> str:
    """A row for each figure: what, the figure, what it should be, and the least idle time."""
    rows = ["| | measured | wanted | idle |", "|---|---|---|---|"]
    speeds = scenarios.speeds(results)
    for name, result in results.items():
        if isinstance(result, dict) and "failed" not in result:
            rows += [f"| {name}: {row} |" for row in _rows(name.split()[0], result, speeds)]
        elif isinstance(result, dict):
            rows.append(f"| {name}: failed: {result['failed'].splitlines()[0][:160]} | | | |")
    return "\n".join(rows)


def _rows(name: str, result: dict[str, Any], speeds: dict[str, dict[str, float]]) -> list[str]:
    idle = min((window["idle"] for window in scenarios.windows(result)), default=None)
    seen = "" if idle is None else f"{idle:.0%}"
    if idle is not None and idle < BOUND_BY_LINKS:
        seen += ": does not count"
    found: list[tuple[str, str, str]] = []
    if name == "equal":
        of_bound = result["gloo"]["rounds_per_s"] / result["bound_rounds_per_s"]
        found.append(("gloo, of the bound of both", f"{of_bound:.2f}", ""))
        found.append(("of gloo", f"{result['same']['ratio_to_gloo']:.2f}", "0.95"))
        if "added" in result:
            added = result["added"]["ratio_to_gloo"]
            found.append(("of gloo, optimizer on workers", f"{added:.2f}", ""))
        found.append(("bf16, of gloo in float32", f"{result['bf16']['ratio_to_gloo']:.2f}", "1.8"))
    elif name == "unhurt":
        for placement, told in result.items():
            found.append((f"{placement}, of average", f"{told['ratio']:.3f}", "0.98"))
    elif name in ("colocated", "dedicated", "redraw"):
        within = {"redraw": "3", "dedicated": "10"}.get(name, "")
        for placement, told in result["medians"].items():
            aware = placement == "aware"
            best = f"{told['of_best']:.2f} ({told['of_best_apart']:.2f})"
            wanted = "0.9" if aware else ""
            found.append((f"{placement}, of the best (pushes and pulls apart)", best, wanted))
            if len(result["medians"]) > 1 and aware:
                least = "2" if name == "dedicated" else ""
                found.append((f"{placement}, of average", f"{told['speedup']:.2f}", least))
                if name == "dedicated":
                    found.append(
                        ("the same, of what is possible", _share_of_possible(result), "0.9")
                    )
            if aware:
                found.append(("rounds until 90%", f"{told['rounds_to_90']:.0f}", within))
    elif name == "moves":
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
    elif name in ("speed", "elastic"):
        of_model = speeds[result["model"]]
        for what in ("elastic", "aware"):
            if what in result and "average" in of_model:
                gain = of_model[what] / of_model["average"]
                paper = PAPER[result["model"]][what]
                found.append((f"{what}, of average", f"{gain:.2f}", f"paper: {paper}"))
    return [f"{what} | {figure} | {wanted} | {seen}" for what, figure, wanted in found]


def _share_of_possible(result: dict[str, Any]) -> str:
    """How fast `aware` is relative to `average`, as a share of the mean of the rates divided by the
    smallest one: the median of the draws."""
    pairs = zip(result["draws"], result["placements"]["aware"], strict=True)
    shares = [window["speedup"] / draw["mean_over_min"] for draw, window in pairs]
    return f"{statistics.median(shares):.2f}"


PAPER: dict[str, dict[str, float]] = {
    "mobilenet": {"elastic": 1.14, "aware": 2.68},
    "resnet50": {"elastic": 1.56, "aware": 1.76},
    "alexnet": {"elastic": 1.23, "aware": 1.32},
}
"""The speed relative to `average` in the paper's Fig. 4."""


def _measure(
    known: dict[str, Callable[[], Any]], chosen: list[str], everything: dict[str, Any]
) -> None:
    """Measure the scenarios, and put their results beside those that are there."""
    for name in chosen:
        began_s = time.monotonic()
        load = os.getloadavg()[0]
        try:
            result = known[name]()
        except RunFailed as error:
            result = {"failed": str(error)}
        took_s = time.monotonic() - began_s
        report.say(f"{name} took {took_s:.0f} s; the load before was {load:.1f}")
        everything["results"][name] = result
        everything["notes"][name] = {"took_s": round(took_s), "load_before": load}
    if chosen:
        everything["machine"] = report.machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="SCENARIO,...")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--from", dest="before", type=Path, help="the results of an earlier run")
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
    chosen = [name for name in args.only.split(",") if name]
    chosen += [*(ALL if args.all else ()), *(FIGURES if args.figures else ())]
    if not chosen and args.before is None:
        chosen = ["equal"]
    if unknown := set(chosen) - set(known):
        parser.error(f"no scenario is called {min(unknown)!r}: give some of {', '.join(known)}")
    if chosen and (reason := why_not()) is not None:
        sys.exit(reason)
    everything: dict[str, Any] = {"machine": "", "notes": {}, "results": {}}
    if args.before is not None:
        everything = json.loads(args.before.read_text())
    _measure(known, list(dict.fromkeys(chosen)), everything)
    shown = table(everything["results"])
    report.give(everything, shown, args.json)
    if args.readme:
        drawn = pictures.draw(everything["results"], pictures.FOLDER)
        text = "\n\n".join((everything["machine"], shown, *drawn))
        readme.write("network", text, HERE / "README.md")


if __name__ == "__main__":
    main()

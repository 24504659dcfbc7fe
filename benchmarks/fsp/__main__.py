"""Measures FSP as its paper does: six algorithms under BSPB, BSPV, FSPB and FSPV, with and without slow
workers (Figs. 7, 8, 9, 14, 15), and the balance of passes (Figs. 10 to 13, Table 2).

    python -m benchmarks.fsp prepare FOLDER [--from ../shared/data]
    python -m benchmarks.fsp run STUDY... --data FOLDER --out FILE.jsonl [--parallel 8] [--starts 4]
    python -m benchmarks.fsp draw FILE.jsonl...

`prepare` makes a small data folder. `run` makes the runs of some studies, or of all but `bandwidth`,
which needs root (`ip` and `tc`). Every run is made once from each of `--starts` starts. A start
consists of the first parameters, an order of the points, and the target that belongs to these two.
Each result is one line of JSON. Several runs go on side by side: a worker computes for a few
percent of its time, because its steps are padded (`--min-step`). `--minutes` limits the whole
command. A run that FILE has already is not made again. `draw` makes the pictures, and writes the
tables to benchmarks/fsp/README.md.
"""

import argparse
import math
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.fsp.data import open_folder, prepare
from benchmarks.fsp.pool import Pool, read_results
from benchmarks.fsp.problems import PROBLEMS, Evaluate, evaluation_of
from benchmarks.fsp.runs import run
from benchmarks.fsp.specs import Spec
from benchmarks.fsp.studies import STUDIES, runs_of
from benchmarks.shaping import shaped_link

_SOURCE = readme.ROOT.parent / "shared" / "data"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare", help="make the data folder")
    making.add_argument("folder", type=Path)
    making.add_argument("--from", dest="source", type=Path, help="the folder of data sets")
    running = commands.add_parser("run", help="make runs")
    running.add_argument("studies", nargs="*", choices=[[], *STUDIES], metavar="STUDY")
    running.add_argument("--data", type=Path, required=True)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--parallel", type=report.at_least_one, default=2)
    running.add_argument("--starts", type=report.at_least_one, default=4)
    running.add_argument("--first-start", type=int, default=0, help="the number of the first one")
    running.add_argument("--minutes", type=float, default=1e6)
    running.add_argument("--limit", type=float, default=400.0, help="seconds of training of a run")
    running.add_argument("--problems", help="only these, such as kmeans,lr")
    running.add_argument("--policies", help="only these, separated by semicolons")
    running.add_argument("--quick", action="store_true", help="few, short runs: does it work?")
    drawing = commands.add_parser("draw", help="make pictures and tables")
    drawing.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    if args.command == "prepare":
        source = args.source or Path(os.environ.get("POLYRHYTHM_DATA", _SOURCE))
        prepare(source, args.folder)
    elif args.command == "run":
        measure(args)
    else:
        from benchmarks.fsp.page import write

        write(read_results(args.files))


def measure(args: argparse.Namespace) -> None:
    names = args.studies or [name for name in STUDIES if name != "bandwidth"]
    count = 1 if args.quick else args.starts
    specs = runs_of(names, range(args.first_start, args.first_start + count))
    if args.problems:
        specs = [spec for spec in specs if spec.problem in args.problems.split(",")]
    if args.policies:
        wanted = [policy.strip() for policy in args.policies.split(";")]
        specs = [spec for spec in specs if spec.policy in wanted]
    limit_s = min(args.limit, 10.0) if args.quick else args.limit
    wanted = {(spec.problem, spec.rep) for spec in specs if not spec.hold_s}
    targets = open_folder(args.data, sorted(wanted), args.parallel)
    evaluations: dict[str, Evaluate] = {}
    lock = threading.Lock()

    def evaluation(name: str) -> Evaluate:
        with lock:
            if name not in evaluations:
                evaluations[name] = evaluation_of(PROBLEMS[name], args.data)
            return evaluations[name]

    def make(spec: Spec, max_s: float) -> dict[str, Any]:
        found = evaluation(spec.problem)

        def evaluate(parameter: Any) -> float:
            with lock:  # all threads evaluate with one torch model
                return found(parameter)

        target = -math.inf if spec.hold_s else targets[spec.problem][str(spec.rep)]["target"]
        with shaped_link(spec.link) if spec.link else nullcontext(()) as prefix:
            seconds = min(max_s, spec.hold_s or max_s)
            result = run(spec, args.data, target, evaluate, seconds, prefix)
        return {**result, "machine": report.machine(), "parallel": args.parallel}

    report.say(f"{len(specs)} runs, {args.parallel} at a time")
    skipped = Pool(make, args.out, report.say, limit_s).work(specs, args.parallel, args.minutes)
    if skipped:
        report.say(f"{len(skipped)} runs were not made for lack of time, such as {skipped[0].name}")


if __name__ == "__main__":
    main()

"""Makes the pictures and tables of benchmarks/fsp/README.md from the results of runs."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import readme
from benchmarks.fsp.costs import cost_lines
from benchmarks.fsp.pictures import Axes, Points, draw
from benchmarks.fsp.problems import PROBLEMS
from benchmarks.fsp.results import Ratio, Result, Results, Slow, on_machine
from benchmarks.fsp.specs import Spec
from benchmarks.fsp.studies import (
    ALL,
    EQUAL,
    FOUR,
    LINKS,
    MIGRATED,
    PASSED,
    SLOW_4X,
    SLOW_8X,
    STUDIES,
    SWEEP,
    WAYS,
    convergence,
)
from benchmarks.stragglers.curves import draw_bars

DOCS = readme.ROOT / "benchmarks" / "fsp" / "README.md"
_NAMES = {"bspb": "BSPB", "bspv": "BSPV", "fspb": "FSPB", "fspv": "FSPV"}


def part_of(study: str) -> Callable[[Spec], bool]:
    specs = set(STUDIES[study]())
    return lambda spec: spec in specs


def moves(spec: Spec) -> bool:
    """Whether this is a run to the target with migration."""
    return spec.policy in WAYS[1:] and not spec.hold_s


def write(results: list[Result], document: Path = DOCS) -> None:
    pictures = document.parent / "pictures"
    pictures.mkdir(exist_ok=True)
    sections: dict[str, tuple[Callable[[Results, Path], str], Callable[[Spec], bool]]] = {
        "stalled": (stalled, part_of("runtime")),
        "equal": (equal, part_of("runtime")),
        "stragglers": (stragglers, part_of("stragglers")),
        "waits": (waits, part_of("runtime")),
        "migration": (migration, moves),
        "passes": (passes, part_of("passes")),
        "cost": (cost, part_of("cost")),
        "bandwidth": (bandwidth, part_of("bandwidth")),
        "coordination": (coordination, lambda spec: spec.policy == "fspv, central"),
        "convergence": (curves, part_of("convergence")),
        "interval": (interval, part_of("interval")),
    }
    for name, (section, counted) in sections.items():
        machine, found = on_machine(results, counted)
        told = "Not measured yet."
        if machine:
            starts = found.starts(counted)
            told = f"Measured on one machine ({machine}), {starts}.\n\n{section(found, pictures)}"
        readme.write(name, told, document)


def rows(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    told = [f"| {' | '.join(cells)} |" for cells in (head, *lines)]
    return "\n".join([told[0], f"|{'---|' * len(head)}", *told[1:]])


def shown(path: Path, text: str) -> str:
    return f"![{text}](pictures/{path.name})"


# -- Figs. 7, 8, 9 -----------------------------------------------------------------------------


def stalled(found: Results, pictures: Path) -> str:
    return runtime(found, SLOW_4X, pictures / "fsp-stalled.svg")


def equal(found: Results, pictures: Path) -> str:
    return runtime(found, EQUAL, pictures / "fsp-equal.svg")


def runtime(found: Results, slow: Slow, picture: Path) -> str:
    lines = [
        [
            problem,
            *(found.cell(problem, policy, slow) for policy in FOUR),
            *(_times(found.ratio(problem, policy, "fspv", slow)) for policy in FOUR[:3]),
        ]
        for problem in ALL
    ]
    bars = {
        problem: {_NAMES[policy]: found.seconds(problem, policy, slow) for policy in FOUR}
        for problem in ALL
        if any(found.of(problem, policy, slow) for policy in FOUR)
    }
    cells = [(problem, policy, slow) for problem in ALL for policy in FOUR]
    picture.write_text(draw_bars(bars, found.limit_s(cells)))
    head = ["seconds to the target", *_NAMES.values(), *(f"{_NAMES[p]} / FSPV" for p in FOUR[:3])]
    return f"{rows(head, lines)}\n\n{shown(picture, 'seconds to the target')}"


def _times(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.mean:.1f}x"


def stragglers(found: Results, pictures: Path) -> str:
    skew: list[tuple[str, Slow]] = [("equal", EQUAL)]
    skew += [(f"one worker {x:g}x", ((3, x),)) for x in (2.0, 4.0, 8.6)]
    several = [
        (f"{count} of 4 workers 4x", tuple((worker, 4.0) for worker in range(4 - count, 4)))
        for count in (1, 2, 3)
    ]
    parts = []
    for name, settings in (("skew", skew), ("several", several)):
        lines = [
            [setting, *(found.cell("kmeans", policy, slow) for policy in FOUR)]
            for setting, slow in settings
        ]
        bars = {
            setting: {_NAMES[policy]: found.seconds("kmeans", policy, slow) for policy in FOUR}
            for setting, slow in settings
        }
        picture = pictures / f"fsp-{name}.svg"
        cells = [("kmeans", policy, slow) for _, slow in settings for policy in FOUR]
        picture.write_text(draw_bars(bars, found.limit_s(cells)))
        parts += [rows(["kmeans", *_NAMES.values()], lines), shown(picture, name)]
    return "\n\n".join(parts)


# -- Figs. 10 and 13 ---------------------------------------------------------------------------


def wait_ms(worker: int) -> Callable[[Result], float]:
    """The time that a worker spent at a barrier, as a mean over the rounds."""
    return lambda run: 1e3 * float(run["workers"][worker]["wait_s"]) / max(1, run["rounds"])


def waits(found: Results, pictures: Path) -> str:
    lines = []
    for policy in FOUR:
        cells = [found.median("kmeans", policy, SLOW_4X, wait_ms(worker)) for worker in range(4)]
        rounds = found.median("kmeans", policy, SLOW_4X, lambda run: float(run["rounds"]))
        usage = found.median("kmeans", policy, SLOW_4X, computing)
        lines.append(
            [
                _NAMES[policy],
                *(_number(cell) for cell in cells),
                _number(rounds, 0),
                _percent(usage),
            ]
        )
    head = ["kmeans, worker 3 4x slower", *(f"worker {n}" for n in range(4)), "rounds", "computing"]
    return rows(head, lines)


def computing(run: Result) -> float:
    """The share of the time of all workers that they did not spend at barriers."""
    busy = sum(worker["compute_s"] for worker in run["workers"])
    waited = sum(worker["wait_s"] for worker in run["workers"])
    return float(busy / ((busy + waited) or 1.0))


def coordination(found: Results, pictures: Path) -> str:
    lines = []
    for problem in PASSED:
        for policy, name in (("fspv, central", "central"), ("fspv", "semi")):
            values = [
                found.median(problem, policy, SLOW_4X, value)
                for value in (
                    lambda run: statistics.fmean(wait_ms(n)(run) for n in range(4)),
                    lambda run: float(run["spread_ms"] or 0.0),
                    lambda run: float(run["rounds"]),
                    lambda run: statistics.fmean(w["wait_s"] for w in run["workers"]),
                )
            ]
            cells = [
                _number(value, digits) for value, digits in zip(values, (1, 1, 0, 2), strict=True)
            ]
            lines.append([problem, name, *cells, found.cell(problem, policy, SLOW_4X)])
    head = ["", "coordination", "barrier, ms", "spread of arrivals, ms", "rounds"]
    return rows([*head, "all barriers, s", "seconds to the target"], lines)


# -- Figs. 11 and 12, Table 2 ------------------------------------------------------------------


def migration(found: Results, pictures: Path) -> str:
    picture = pictures / "fsp-migration.svg"
    lines, bars = [], {}
    for slow in (SLOW_4X, SLOW_8X):
        for problem in MIGRATED:
            policies = ("bspb", "bspv", *WAYS)
            seconds = {policy: found.seconds(problem, policy, slow) for policy in policies}
            name = f"{problem}, one of 4 workers {slow[0][1]:g}x"
            lines.append([name, *(_compared(found, problem, p, slow) for p in policies)])
            bars[name] = {_called(p): seconds[p] for p in policies if found.of(problem, p, slow)}
    cells = [
        (problem, way, slow) for problem in MIGRATED for way in WAYS for slow in (SLOW_4X, SLOW_8X)
    ]
    picture.write_text(draw_bars(bars, found.limit_s(cells)))
    head = ["seconds (times `lease`)", "BSPB", "BSPV", *(_called(way) for way in WAYS)]
    return f"{rows(head, lines)}\n\n{shown(picture, 'seconds with and without migration')}"


def _called(policy: str) -> str:
    if policy == "fspv":
        return "FSPV, off"
    first, _, rest = policy.partition(", ")
    return f"{_NAMES[first]}, {rest}" if rest else _NAMES[first]


def _compared(found: Results, problem: str, policy: str, slow: Slow) -> str:
    cell = found.cell(problem, policy, slow)
    ratio = found.ratio(problem, policy, "fspv, lease", slow)
    return cell if ratio is None else f"{cell} ({ratio.mean:.2f}x)"


def passes(found: Results, pictures: Path) -> str:
    lines = []
    for slow in (EQUAL, SLOW_4X, SLOW_8X):
        for problem in PASSED:
            for policy in WAYS:
                if not found.of(problem, policy, slow, held=True):
                    continue
                values = [
                    found.median(problem, policy, slow, value, held=True)
                    for value in (
                        *(_visits(name) for name in ("least", "most", "late_least", "late_most")),
                        lambda run: float(run["moved_points"]),
                    )
                ]
                setting = f"{slow[0][1]:g}x" if slow else "equal"
                lines.append([problem, setting, _called(policy), *(_number(v, 0) for v in values)])
    head = ["", "slow", "", "least visits", "most", "least, second half", "most, second half"]
    return rows([*head, "points moved"], lines)


def cost(found: Results, pictures: Path) -> str:
    return rows(["", "slow", "", "fast workers", "slow worker"], cost_lines(found))


def bandwidth(found: Results, pictures: Path) -> str:
    lines = []
    for link in LINKS:
        for problem in PASSED:
            for policy in ("fspv", "fspv, full"):
                values = [
                    found.median(problem, policy, SLOW_4X, value, held=True, link=link)
                    for value in (
                        lambda run: float(run["moved_points"]),
                        lambda run: float(sum(w.get("points", 0) for w in run["workers"])),
                        cpu_us(0),
                        cpu_us(3),
                    )
                ]
                if values[0] is not None:
                    cells = [_number(value, 0) for value in values]
                    lines.append([problem, link, _called(policy), *cells])
    head = ["", "link", "", "points moved", "points visited", "us per point, worker 0", "worker 3"]
    return rows(head, lines)


def _visits(name: str) -> Callable[[Result], float]:
    return lambda run: float(run["visits"].get(name, 0))


def cpu_us(worker: int) -> Callable[[Result], float]:
    """The processor time of a worker per point that it visits, in microseconds."""

    def value(run: Result) -> float:
        told = run["workers"][worker]
        return 1e6 * float(told.get("cpu_s", 0.0)) / max(1, told.get("points", 0))

    return value


# -- Figs. 14 and 15 ---------------------------------------------------------------------------


def curves(found: Results, pictures: Path) -> str:
    parts = []
    for problem in dict.fromkeys(spec.problem for spec in convergence()):
        policies = [spec.policy for spec in convergence() if spec.problem == problem]
        every: dict[str, Points] = {
            _NAMES.get(policy, policy.upper()): [(x, y) for x, y in runs[0].get("curve", [])]
            for policy in policies
            if (runs := found.of(problem, policy))
        }
        if not every:
            continue
        highest = max((curve[0][1] for curve in every.values() if curve), default=1.0)
        longest = 2.0 * max(
            (c[-1][0] for n, c in every.items() if c and not n.startswith("ASP")), default=1.0
        )
        cut = {name: [p for p in curve if p[0] <= longest] for name, curve in every.items()}
        around = Axes.around(list(cut.values()))
        axes = Axes(0.0, around.right, around.low, max(highest, around.low))
        picture = pictures / f"fsp-convergence-{problem}.svg"
        picture.write_text(draw(problem, cut, axes, ("seconds", "objective over time")))
        parts.append(shown(picture, f"{problem}: the objective over time"))
    return "\n\n".join(parts)


def interval(found: Results, pictures: Path) -> str:
    lines, every, marks = [], {}, {}
    for problem in ALL:
        swept = {
            part: seconds
            for part in SWEEP
            if (seconds := found.seconds(problem, f"interval {part:g}", SLOW_4X)) is not None
        }
        if not swept:
            continue
        best_part = min(swept, key=lambda part: swept[part])
        best, longest = f"interval {best_part:g}", max(swept.values())
        every[problem] = [(part, seconds / longest) for part, seconds in swept.items()]
        cells = [problem, f"{best_part:g}", found.cell(problem, best, SLOW_4X)]
        marks[problem] = {}
        for policy, letter in (("fspb", "B"), ("fspv", "V")):
            seconds = found.seconds(problem, policy, SLOW_4X)
            part = found.median(problem, policy, SLOW_4X, _found_interval)
            cells += [_number(part, 3), found.cell(problem, policy, SLOW_4X)]
            cells.append(_apart(found.ratio(problem, policy, best, SLOW_4X)))
            if seconds is not None and part:
                marks[problem][letter] = (part, seconds / longest)
        lines.append(cells)
    head = ["", "best fixed interval", "seconds", "FSPB's interval", "seconds", "to the best"]
    text = rows([*head, "FSPV's interval", "seconds", "to the best"], lines)
    if every:
        picture = pictures / "fsp-interval.svg"
        axes = Axes(min(SWEEP), max(SWEEP), 0.0, 1.0, log=True)
        units = (
            "interval, in passes of a worker that is not slow",
            "vertical: seconds to the target, relative to the longest of the algorithm",
        )
        picture.write_text(draw("", every, axes, units, marks))
        text += f"\n\n{shown(picture, 'seconds to the target for fixed intervals')}"
    return text


def _apart(ratio: Ratio | None) -> str:
    """How much longer a policy takes, with the standard error."""
    if ratio is None:
        return "-"
    return f"{ratio.mean - 1:+.0%} (± {ratio.mean * ratio.error:.0%})"


def _found_interval(run: Result) -> float:
    """The last interval of a run, in passes."""
    intervals = run.get("intervals") or [[0.0, 0.0]]
    return float(intervals[-1][1]) / 1e3 / PROBLEMS[run["spec"]["problem"]].pass_s


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"

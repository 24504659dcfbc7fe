"""What is measured in the laboratory. Each function returns a dictionary for the JSON of the
results."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.network import best
from benchmarks.network.hosts import Host, hosts
from benchmarks.network.runs import Run, Setting, gloo, polyrhythm
from benchmarks.network.shapes import nbytes_of
from benchmarks.report import say
from polyrhythm.core.placement.division import best_nbytes, fit_alpha
from polyrhythm.core.values import parse_size

FASTEST = 220.0
"""The paper's typical rate of a wide area network, in Mbit/s."""
SLOWEST = 20.0
NO_LIMIT = 10_000.0
LIMIT_S = 400.0
"""How long a window of rounds may take."""
REACHED = 0.9
Result = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The sizes of all scenarios."""

    nodes: int = 6
    model: str = "mobilenet"
    rounds: int = 12
    draws: int = 5
    seed: int = 0
    adapt: int = 4
    """How many rounds after a redraw do not count in the speed of a placement."""
    per_draw: int = 3
    placements: tuple[str, ...] = ("average", "aware")
    flags: tuple[str, ...] = ()
    """Flags of every job of polyrhythm."""

    def everywhere(self, *flags: str, model: str | None = None) -> Setting:
        """A server and a worker on each host."""
        each = range(self.nodes)
        return Setting(model or self.model, each, each, (*self.flags, *flags))


def _draws(plan: Plan, count: int, *, fixed: Sequence[float] = ()) -> list[list[float]]:
    """The rates of `count` hosts in each draw; the hosts after them always have the rates
    `fixed`."""
    rng = random.Random(plan.seed)
    return [
        [*(round(rng.uniform(SLOWEST, FASTEST), 1) for _ in range(count)), *fixed]
        for _ in range(plan.draws)
    ]


def _shape(found: Sequence[Host], rates: Sequence[float]) -> None:
    for host, rate in zip(found, rates, strict=True):
        host.shape(rate, rate)


ADD = ("--optimizer-on", "workers")
"""The paper's setting: servers only add, so that a slice is sent back as soon as all have pushed it,
and moving it costs nothing."""


def equal(plan: Plan) -> Result:
    """gloo, polyrhythm, and polyrhythm with bf16 on equal links, with a server on each host."""
    nbytes = nbytes_of(plan.model)
    told: Result = {"model": plan.model, "rate": FASTEST, "nodes": plan.nodes}
    told["bound_rounds_per_s"] = 1 / best.colocated_average_s(nbytes, [FASTEST] * plan.nodes)
    with hosts(plan.nodes) as found:
        _shape(found, [FASTEST] * plan.nodes)
        with gloo(found, plan.model) as run:
            peer = run.measure(plan.rounds, LIMIT_S)
        told["gloo"] = peer.told()
        variants = {"same": (), "added": ADD, "bf16": ("--wire-dtype", "bf16")}
        for name, flags in variants.items():
            with polyrhythm(found, plan.everywhere(*flags)) as run:
                ours = run.measure(plan.rounds, LIMIT_S, skip=2)
            told[name] = ours.told() | {"ratio_to_gloo": ours.rounds_per_s / peer.rounds_per_s}
            say(f"equal {plan.model} {name}: {told[name]['ratio_to_gloo']:.2f} of gloo")
    return told


def unhurt(plan: Plan) -> Result:
    """What measuring and assigning cost on equal links, where they gain nothing."""
    told: Result = {}
    with hosts(plan.nodes) as found:
        _shape(found, [FASTEST] * plan.nodes)
        for placement in plan.placements:
            with polyrhythm(found, plan.everywhere("--placement", placement)) as run:
                told[placement] = run.measure(plan.rounds, LIMIT_S, skip=6).told()
    first = told[plan.placements[0]]["rounds_per_s"]
    for placement in plan.placements:
        told[placement]["ratio"] = told[placement]["rounds_per_s"] / first
    return told


def colocated(plan: Plan) -> Result:
    """A server and a worker on each host, at rates that are drawn again and again."""
    draws = _draws(plan, plan.nodes)
    nbytes = nbytes_of(plan.model)
    bounds = [
        {
            "rates": rates,
            "best_s": best.colocated_s(nbytes, rates),
            "best_apart_s": best.colocated_apart_s(nbytes, rates),
            "average_s": best.colocated_average_s(nbytes, rates),
        }
        for rates in draws
    ]
    return _redrawn(plan, plan.everywhere(*ADD), draws, bounds)


def redraw(plan: Plan) -> Result:
    """How soon `aware` follows new rates of dedicated servers that only add."""
    return dedicated(replace(plan, placements=("aware",), flags=(*plan.flags, *ADD)))


def dedicated(plan: Plan, workers: int = 2) -> Result:
    """Servers on hosts of their own, at drawn rates. The workers' links are never the limit."""
    draws = _draws(plan, plan.nodes, fixed=[NO_LIMIT] * workers)
    nbytes = nbytes_of(plan.model)
    bounds = []
    for rates in draws:
        servers = rates[: plan.nodes]
        best_s = best.dedicated_s(nbytes, servers, workers)
        bounds.append(
            {
                "rates": servers,
                "best_s": best_s,
                "best_apart_s": 2 * best_s,
                "average_s": 2 * best.dedicated_average_s(nbytes, servers, workers),
                "mean_over_min": statistics.mean(servers) / min(servers),
            }
        )
    behind = range(plan.nodes, plan.nodes + workers)
    setting = Setting(plan.model, range(plan.nodes), behind, plan.flags)
    return _redrawn(plan, setting, draws, bounds)


def _redrawn(
    plan: Plan, setting: Setting, draws: list[list[float]], bounds: list[dict[str, Any]]
) -> Result:
    """One job with each placement, whose hosts get the rates of one draw after the other."""
    told: Result = {"model": setting.model, "draws": bounds, "placements": {}}
    for placement in plan.placements:
        flags = (*setting.flags, "--placement", placement)
        windows = []
        with hosts(len(draws[0])) as found:
            _shape(found, draws[0])
            with polyrhythm(found, replace(setting, flags=flags)) as run:
                for number, rates in enumerate(draws):
                    _shape(found, rates)
                    windows.append(_after_redraw(plan, run))
                    say(f"{placement}, draw {number}: {windows[-1]['median_s']:.2f} s a round")
        told["placements"][placement] = windows
    for bound, *windows in zip(bounds, *told["placements"].values(), strict=True):
        for window in windows:
            window["of_best"] = bound["best_s"] / window["median_s"]
            window["of_best_apart"] = bound["best_apart_s"] / window["median_s"]
            window["speedup"] = windows[0]["median_s"] / window["median_s"]
    told["medians"] = {
        placement: {
            name: statistics.median(window[name] for window in windows)
            for name in ("speedup", "of_best", "of_best_apart", "rounds_to_90")
        }
        for placement, windows in told["placements"].items()
    }
    return told


def _after_redraw(plan: Plan, run: Run) -> dict[str, Any]:
    """The rounds after the rates have changed. The speed of the placement is that of the last
    rounds. `rounds_to_90`: after how many rounds the speed has 90% of it for the first time and
    keeps it in the median of the rounds that follow."""
    window = run.measure(plan.adapt + plan.per_draw, LIMIT_S, skip=0)
    settled = statistics.median(window.rounds_s[plan.adapt :])
    reached = next(
        at
        for at in range(len(window.rounds_s))
        if window.rounds_s[at] <= settled / REACHED
        and statistics.median(window.rounds_s[at:]) <= settled / REACHED
    )
    return window.told() | {"median_s": settled, "rounds_to_90": reached}


def granularity(plan: Plan, sizes: Sequence[str] = ()) -> Result:
    """Fig. 6: the time of a round with slices of several sizes, in several states of the network.
    The sizes are in bytes; the paper's figure counts parameters."""
    sizes = sizes or ("32kB", "128kB", "400kB", "1.2MB", "4MB", "12MB")
    states = {"equal": [FASTEST] * plan.nodes}
    for number, rates in enumerate(_draws(replace(plan, draws=2), plan.nodes)):
        states[f"drawn {number + 1}"] = rates
    told: Result = {"model": plan.model, "states": states, "sizes": {}}
    for size in sizes:
        with hosts(plan.nodes) as found:
            _shape(found, [FASTEST] * plan.nodes)
            with polyrhythm(found, plan.everywhere("--slice-size", size)) as run:
                told["sizes"][size] = {}
                for name, rates in states.items():
                    _shape(found, rates)
                    window = run.measure(plan.per_draw, LIMIT_S, skip=2)
                    told["sizes"][size][name] = window.told()
        say(f"slices of {size}: {_medians(told['sizes'][size])}")
    speeds = {size: told["sizes"][size]["equal"]["rounds_per_s"] for size in sizes}
    times = [(parse_size(size), 1 / speed) for size, speed in speeds.items()]
    told["alpha"] = fit_alpha(times, plan.nodes)
    told["best_nbytes"] = best_nbytes(nbytes_of(plan.model), plan.nodes, told["alpha"])
    return told


def _medians(windows: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {name: round(1 / window["rounds_per_s"], 2) for name, window in windows.items()}


CONDITIONS: dict[str, tuple[str, ...]] = {
    "neither": ("probes", "requests"),
    "probes": ("requests",),
    "requests": ("probes",),
    "both": (),
}


def overhead(plan: Plan) -> Result:
    """Fig. 7: rounds on equal links with probes and requests for an assignment, with one of them, and
    with neither."""
    told: Result = {}
    with hosts(plan.nodes) as found:
        _shape(found, [FASTEST] * plan.nodes)
        for name, without in CONDITIONS.items():
            setting = replace(plan.everywhere("--placement", "aware", *ADD), without=without)
            with polyrhythm(found, setting) as run:
                told[name] = run.measure(plan.rounds, LIMIT_S, skip=3).told()
            say(f"{name}: {1 / told[name]['rounds_per_s']:.3f} s a round")
    return told


SKIPPED = {"average": 1, "elastic": 22, "aware": 4}
"""How many rounds are not counted: `elastic` decides after 20 rounds for the first time."""


def speed(plan: Plan, placements: Sequence[str] = ("average", "elastic", "aware")) -> Result:
    """Fig. 4: the speed of placements at drawn rates, a server and a worker on each host."""
    told: Result = {"model": plan.model, "rates": _draws(plan, plan.nodes)[0]}
    with hosts(plan.nodes) as found:
        _shape(found, told["rates"])
        for placement in placements:
            with polyrhythm(found, plan.everywhere("--placement", placement, *ADD)) as run:
                skip = SKIPPED[placement]
                told[placement] = run.measure(plan.rounds, 20 * LIMIT_S, skip=skip).told()
            say(f"{plan.model} {placement}: {1 / told[placement]['rounds_per_s']:.2f} s a round")
    return told


def speeds(results: Result) -> dict[str, dict[str, float]]:
    """Per model, the rounds per second with each placement, from all results of `speed`."""
    found: dict[str, dict[str, float]] = {}
    for result in results.values():
        if "failed" in result or "rates" not in result or "model" not in result:
            continue
        of_model = found.setdefault(result["model"], {})
        of_model |= {name: result[name]["rounds_per_s"] for name in SKIPPED if name in result}
    return found


def moving(plan: Plan, model: str = "102000000") -> Result:
    """A server joins, and is drained again, on one machine without limits: how long it takes, and how
    long rounds take meanwhile."""
    with (
        hosts(1) as (host,),
        polyrhythm((host,), Setting(model, (0, 0), (0, 0), plan.flags)) as run,
    ):
        run.measure(30, LIMIT_S)
        run.serve(host, host)
        told = {"join": _while_moving(run, "server-joined", _has_slices)}
        run.measure(30, LIMIT_S)
        run.start(host, "drain", "drain", "run", "s2")
        told["drain"] = _while_moving(run, "draining", _has_left)
    return told


def _has_slices(run: Run) -> bool:
    """Whether s2 has joined, and has all slices that it should have."""
    lines = run.noted("server-joined", "copied", "rerouting")
    joined = max(at for at, line in enumerate(lines) if line.get("server") == 2)
    copied = [at for at in range(joined, len(lines)) if lines[at].get("learning") == 0]
    return bool(copied) and lines[-1]["what"] == "rerouting"


def _has_left(run: Run) -> bool:
    return bool(run.noted("drained"))


def _while_moving(run: Run, begins: str, done: Callable[[Run], bool]) -> Result:
    """`share`: the 95th percentile of the rounds during the move, relative to that of as many rounds
    (at least 20) directly before it."""
    run.until(lambda: any(line.get("server") == 2 for line in run.noted(begins)), begins)
    began_s = time.monotonic()
    run.until(lambda: done(run), "the move has ended", LIMIT_S)
    ended_s = time.monotonic()
    run.measure(3, LIMIT_S)
    during = run.rounds_between(began_s, ended_s)
    before = run.rounds_between(0.0, began_s)[-max(20, len(during)) :]
    return {
        "took_s": ended_s - began_s,
        "rounds": len(during),
        "p95_s": _p95(during),
        "p95_before_s": _p95(before),
        "share": _p95(during) / _p95(before),
    }


def _p95(rounds_s: Sequence[float]) -> float:
    ordered = sorted(rounds_s)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else float("nan")


def windows(result: Any) -> list[dict[str, Any]]:
    """All windows of a result, to see whether they were bound by links."""
    if isinstance(result, dict):
        inner = [window for value in result.values() for window in windows(value)]
        return [result, *inner] if "bound_by_links" in result else inner
    if isinstance(result, list):
        return [window for value in result for window in windows(value)]
    return []

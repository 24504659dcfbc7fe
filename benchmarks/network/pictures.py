"""Draws the paper's figures (Aware, Figs. 4 to 7) from what was measured here."""

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.network import scenarios
from benchmarks.readme import ROOT
from benchmarks.stragglers.curves import draw_bars, draw_curves

FOLDER = ROOT / "docs" / "pictures"
Results = dict[str, Any]


def draw(results: Results, folder: Path) -> list[str]:
    """Write the pictures for which there are results. Returns a paragraph for each."""
    told = []
    for name, (figure, caption) in _FIGURES.items():
        picture = figure({key: result for key, result in results.items() if "failed" not in result})
        if picture is not None:
            (folder / f"network-{name}.svg").write_text(picture)
            told.append(f"![{caption}](../../docs/pictures/network-{name}.svg)\n\n{caption}.")
    return told


def speeds(results: Results) -> str | None:
    """Fig. 4: points per minute, as in Eq. 16 with batches of 32."""
    hosts = {each["model"]: len(each["rates"]) for each in results.values() if "rates" in each}
    groups = {
        model: {placement: 60 * 32 * hosts[model] * speed for placement, speed in measured.items()}
        for model, measured in scenarios.speeds(results).items()
    }
    return draw_bars(groups, 0.0, "points per minute") if groups else None


def rounds(results: Results) -> str | None:
    """Fig. 5: the time of each round while rates are drawn again and again."""
    if "colocated" not in results:
        return None
    curves = {
        placement: [
            (float(number), seconds)
            for number, seconds in enumerate(
                seconds for window in windows for seconds in window["rounds_s"]
            )
        ]
        for placement, windows in results["colocated"]["placements"].items()
    }
    first = next(iter(results["colocated"]["placements"].values()))
    redrawn = [*accumulate(window["rounds"] for window in first)][:-1]
    title = f"seconds of each round; new rates after rounds {', '.join(map(str, redrawn))}"
    return draw_curves(curves, "rounds", title)


def sizes(results: Results) -> str | None:
    """Fig. 6: the time of a round by the size of slices, in several states of the network."""
    if "granularity" not in results:
        return None
    measured = results["granularity"]["sizes"]
    states = next(iter(measured.values()))
    groups = {
        state: {size: 1 / windows[state]["rounds_per_s"] for size, windows in measured.items()}
        for state in states
    }
    return draw_bars(groups, 0.0, "s a round")


def costs(results: Results) -> str | None:
    """Fig. 7: the time of a round with probes, with requests, with both and with neither."""
    if "overhead" not in results:
        return None
    bars = {name: 1 / told["rounds_per_s"] for name, told in results["overhead"].items()}
    return draw_bars({"equal links": bars}, 0.0, "s a round")


_FIGURES: dict[str, tuple[Callable[[Results], str | None], str]] = {
    "speeds": (speeds, "The paper's Fig. 4: speed of three placements on three models"),
    "rounds": (rounds, "Fig. 5: rounds while the rates of links change"),
    "sizes": (sizes, "Fig. 6: rounds with slices of several sizes"),
    "costs": (costs, "Fig. 7: what measuring and assigning cost on equal links"),
}

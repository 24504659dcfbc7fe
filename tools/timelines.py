"""Draws pictures of the sync policies: `python -m tools.timelines` writes docs/pictures/sync-*.svg.

Each picture shows a simulated run of three workers whose steps take 100, 200 and 300 ms. The
simulation runs the same machines as a real job.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.scenario import parse_scenario
from polyrhythm.sim.simulation import Simulation

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
POLICIES = {"bsp": "bsp", "ssp": "ssp:2", "ssp-restart": "ssp-restart:3", "asp": "asp"}
"""Per picture, the value of `--sync`."""
STEPS_MS = (100, 200, 300)
SHOWN_S = 2.4
_SCENARIO = """
[job]
sync = "{sync}"
points = 100_000
batch = 10
model = "4kB"
rounds = 40

[link]
delay = "1ms"
"""
_WORKER = """
[[workers]]
step = "{step}ms"
"""
_SCALE, _ROW, _BAR, _LEFT, _TOP = 260.0, 34, 22, 150, 44
_COMPUTING, _WAITING, _TEXT = "#4269d0", "#e5484d", "#6e7781"


class Watched(Clock):
    """A clock that records the activity of each worker after every event."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation: Simulation | None = None
        self.spans: dict[str, list[tuple[Phase, int]]] = {}
        """Per worker, its activities and when each began. Two steps in a row are two activities."""
        self._steps: dict[str, int] = {}

    def at(self, when_ns: int, do: Callable[[Any], None], what: Any = None) -> None:
        def do_and_look(what: Any) -> None:
            do(what)
            self._look()

        super().at(when_ns, do_and_look, what)

    def _look(self) -> None:
        assert self.simulation is not None
        for name, worker in self.simulation.workers.items():
            spans = self.spans.setdefault(name, [])
            machine = worker.machine
            state, step = machine.state, machine.acknowledged + machine.unacknowledged
            if not spans or spans[-1][0] is not state or self._steps[name] != step:
                spans.append((state, self.now_ns))
            self._steps[name] = step


def watch(sync: str) -> dict[str, list[tuple[Phase, float, float]]]:
    """Simulate a job. Returns the activities of each worker with their beginning and end, in
    seconds since the first step began."""
    workers = "".join(_WORKER.format(step=step) for step in STEPS_MS)
    scenario = parse_scenario(_SCENARIO.format(sync=sync) + workers, "timeline")
    clock = Watched()
    job = scenario.job_spec("timeline")
    clock.simulation = Simulation(scenario, job, clock, MemoryJournal(clock.read))
    clock.simulation.run()
    opened_ns = min(at for spans in clock.spans.values() for s, at in spans if s is Phase.COMPUTING)
    found = {}
    for name, spans in clock.spans.items():
        ends = [at for _, at in spans[1:]] + [clock.now_ns]
        found[name] = [
            (state, (at - opened_ns) / 1e9, (end - opened_ns) / 1e9)
            for (state, at), end in zip(spans, ends, strict=True)
            if at >= opened_ns
        ]
    return found


def draw(sync: str) -> str:
    runs = watch(sync)
    width, height = _LEFT + SHOWN_S * _SCALE + 20, _TOP + _ROW * len(runs) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT}">',
        f'<text x="{_LEFT}" y="20" font-weight="600">--sync {escape(sync)}</text>',
    ]
    for row, (step, spans) in enumerate(zip(STEPS_MS, runs.values(), strict=True)):
        y = _TOP + _ROW * row
        parts.append(f'<text x="8" y="{y + 16}">steps of {step} ms</text>')
        for state, begin_s, end_s in spans:
            if begin_s < SHOWN_S:
                parts.append(_span(state, y, begin_s, min(end_s, SHOWN_S)))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _span(state: Phase, y: float, begin_s: float, end_s: float) -> str:
    x, wide = _LEFT + begin_s * _SCALE, (end_s - begin_s) * _SCALE
    if state is Phase.COMPUTING:
        place = f'x="{x + 0.5:.1f}" y="{y}" width="{max(0.5, wide - 1):.1f}" height="{_BAR}"'
        return f'<rect {place} rx="2" fill="{_COMPUTING}"/>'
    place = f'x="{x:.1f}" y="{y + _BAR / 2 - 2}" width="{wide:.1f}" height="4"'
    return f'<rect {place} fill="{_WAITING}" opacity="0.45"/>'


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, sync in POLICIES.items():
        (FOLDER / f"sync-{name}.svg").write_text(draw(sync))


if __name__ == "__main__":
    main()

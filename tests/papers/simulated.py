"""Runs a scenario in virtual time, with the machines that also run real jobs."""

from typing import Any

from polyrhythm.core.effects import End
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.observe.summary import summarise
from polyrhythm.sim.clock import BEGINNING_NS, Clock
from polyrhythm.sim.scenario import parse_scenario
from polyrhythm.sim.simulation import Simulation


class Simulated:
    def __init__(self, text: str) -> None:
        scenario = parse_scenario(text, "paper.toml")
        self._clock = Clock()
        journal = MemoryJournal(self._clock.read)
        job = scenario.job_spec("paper")
        self.simulation = Simulation(scenario, job, self._clock, journal, seed=0, check=True)
        self.end: End = self.simulation.run()
        self.lines: list[dict[str, Any]] = journal.lines
        self.result = summarise(journal.lines)

    @property
    def took_ms(self) -> float:
        return (self._clock.now_ns - BEGINNING_NS) / 1e6

    def noted(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["what"] == what]

    def contents(self) -> list[set[tuple[int, int, int]]]:
        """The contributions in each slice of each server that is alive."""
        return [
            set(contents)
            for server in self.simulation.servers
            if server.memory is not None and server.alive
            for contents in server.memory.contents.values()
        ]

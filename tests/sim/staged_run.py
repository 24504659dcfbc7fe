"""Runs of scenarios in virtual time, without files, checked after every event."""

from typing import Any

import msgspec

from polyrhythm.core.effects import End
from polyrhythm.core.record import Record
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.observe.summary import summarise
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.scenario import parse_scenario
from polyrhythm.sim.simulation import Simulation


class Run:
    """Runs a scenario to its end. `resumed`: the record of the checkpoint from which the job
    resumes."""

    def __init__(
        self, text: str, *, seed: int = 0, check: bool = True, resumed: Record | None = None
    ) -> None:
        self.clock = Clock()
        self.journal = MemoryJournal(self.clock.read)
        scenario = parse_scenario(text, "scenario.toml")
        job = scenario.job_spec("job")
        if resumed is not None:
            numbers = {"resume_number": resumed.number, "resume_round": resumed.round}
            job = msgspec.structs.replace(job, resume="simulated", **numbers)
        self.simulation = Simulation(
            scenario, job, self.clock, self.journal, seed=seed, check=check, resumed=resumed
        )
        self.end: End = self.simulation.run()

    @property
    def checkpoints(self) -> list[Record]:
        """The records of the checkpoints that were made."""
        checker = self.simulation._checker
        assert checker is not None
        return [record for record, _ in checker.checkpoints]

    @property
    def result(self) -> dict[str, Any]:
        return summarise(self.journal.lines)

    def lines(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.journal.lines if line["what"] == what]

    def given(self) -> set[tuple[int, int, int]]:
        """The contributions in every slice. Fails if slices differ: only a crash may cause that."""
        contents = [
            set(contents)
            for server in self.simulation.servers
            if server.memory is not None
            for contents in server.memory.contents.values()
        ]
        assert all(found == contents[0] for found in contents)
        return contents[0]

    def weight(self) -> float:
        """The points of all folded contributions. Fails if slices differ."""
        weights = {
            weight
            for server in self.simulation.servers
            if server.memory is not None
            for weight in server.memory.weights.values()
        }
        assert len(weights) == 1, weights
        return weights.pop()

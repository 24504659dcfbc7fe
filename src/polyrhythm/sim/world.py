"""The objects that all processes of one simulation share."""

import msgspec

from polyrhythm.sim.checker import Checker
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.model.objective import Objective
from polyrhythm.sim.scenario import JobTable
from polyrhythm.wire import messages as m


class World(msgspec.Struct, frozen=True):
    """`table`: the scenario's settings of the job. `objective`: the simulated objective, which falls
    with the weight that is folded into the first slice; None if there is none. `checker`: if given,
    every event is checked."""

    job: m.JobSpec
    table: JobTable
    clock: Clock
    objective: Objective | None
    checker: Checker | None

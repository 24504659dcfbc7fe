"""Both sets of nodes perform every effect, by methods of the same names."""

from operator import attrgetter

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Effect
from polyrhythm.core.performers import SERVER_EFFECTS, WORKER_EFFECTS
from polyrhythm.engines.inline import Hub
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire import messages as m
from tests.sim.staged_run import Run

JOB = """
[job]
sync = "bsp"
rounds = 1
servers = 1
model = "1kB"
[[workers]]
count = 1
step = "1ms"
"""


def test_every_effect_is_performed_by_servers_or_by_workers() -> None:
    effects = {
        each
        for each in vars(fx).values()
        if isinstance(each, type) and issubclass(each, Effect) and each is not Effect
    }
    assert effects == SERVER_EFFECTS.keys() | WORKER_EFFECTS.keys()


def test_nodes_and_simulated_processes_have_the_methods_of_the_table() -> None:
    run, hub = Run(JOB), Hub()
    server = ServerNode(
        0, m.JobSpec(job="j"), hub.address(0), lead=False, options=NodeOptions(), shared=False
    )
    worker = WorkerNode("anna", "j", hub, NodeOptions())
    try:
        for names, processes in (
            (SERVER_EFFECTS, (server, run.simulation.servers[0])),
            (WORKER_EFFECTS, (worker, run.simulation.workers["worker-0"])),
        ):
            for name in names.values():
                assert all(callable(attrgetter(name)(process)) for process in processes), name
    finally:
        worker.close()
        server.close()

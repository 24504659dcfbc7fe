"""PSP: a barrier at a predicted time, which nobody waits at.

*Folds when every member has contributed its predicted number of steps; a worker never stops: it
trains on and rebases when the new parameters come.* The barrier itself is BSP's, timer and all; what
differs is when each worker contributes (PSP §3.2, with the design's floor rule in place of the least
common multiple).
"""

from polyrhythm.core.machine import Waiting
from polyrhythm.core.sync.bsp import Bsp
from polyrhythm.core.sync.policy import Arrived, Decision, Joined, Left, PolicyEvent, Terms
from polyrhythm.core.sync.prediction import Prediction
from polyrhythm.core.sync.timer import Timer


class Psp:
    kinds = frozenset({"local"})
    rounds = True

    def __init__(self, timer: Timer, cap: int) -> None:
        self._barrier = Bsp(timer)
        self._prediction = Prediction(cap)
        self._steps: dict[int, int] = {}

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        match event:
            case Joined(worker):
                self._prediction.expect(worker)
            case Arrived(worker, _, trailer) if trailer is not None and trailer.steps:
                self._prediction.measured(worker, trailer.compute_ns // trailer.steps)
            case Left(worker):
                self._prediction.forget(worker)
        decision = self._barrier.on(event, now_ns)
        if decision.fold:
            self._steps = self._prediction.steps()
        return decision

    def terms(self, worker: int) -> Terms:
        return Terms(steps=self._steps.get(worker, 1))

    def why(self) -> Waiting:
        return self._barrier.why()

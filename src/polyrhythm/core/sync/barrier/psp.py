"""PSP: a barrier at a predicted time. No worker stops computing for it.

The lead folds when every member has contributed after its predicted number of steps. Meanwhile,
workers continue to train. When the new parameters arrive, a worker adds the steps that it has made
since its contribution. The barrier is that of BSP, with its timer. Only the time at which each
worker contributes is different (PSP §3.2; the rule is in `prediction`).
"""

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.barrier.bsp import Bsp
from polyrhythm.core.sync.barrier.prediction import Prediction, StepPlan
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.core.sync.policy import (
    Decision,
    Joined,
    Left,
    MemberContributed,
    PolicyEntry,
    PolicyEvent,
    RoundTerms,
    Traits,
)
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Field


class Psp(msgspec.Struct):
    traits: ClassVar[Traits] = Traits(
        rounds=True,
        kinds=frozenset({"local"}),
        preferred_kind="local",
        plans_steps=True,
        trains_through=True,
    )

    _barrier: Bsp
    _cap: int
    _prediction: Prediction
    _steps: dict[int, int] = {}

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        if isinstance(event, MemberContributed):
            report = event.report
            if report is not None and report.steps:
                self._prediction.on_measured(event.worker, report.compute_ns // report.steps)
        elif isinstance(event, Joined):
            self._prediction.expect(event.worker)
        elif isinstance(event, Left):
            self._prediction.forget(event.worker)
        decision = self._barrier.on(event, now_ns)
        if not decision.fold:
            return decision
        before, self._steps = self._steps, self._prediction.steps()
        plan = self._prediction.plan
        if plan is None or self._steps == before:
            return decision
        return replace(decision, change=_plan_reason(plan, self._cap))

    def terms(self, worker: int) -> RoundTerms:
        return RoundTerms(steps=self._steps.get(worker, 1))

    def why(self) -> Waiting:
        return self._barrier.why()


def _build(job: JobSpec) -> Psp:
    if job.most_steps < 1:
        raise UsageError(f"--most-steps is {job.most_steps}: it must be at least 1")
    return Psp(Bsp(Timer.parse(job.timer)), job.most_steps, Prediction(job.most_steps))


PSP = PolicyEntry(
    "psp",
    "barriers at predicted times; workers train on meanwhile; kind local",
    Psp.traits,
    _build,
)


def _plan_reason(plan: StepPlan, cap: int) -> Reason:
    fields: dict[str, Field] = {
        "workers": sorted(plan.steps),
        "steps": [plan.steps[worker] for worker in sorted(plan.steps)],
        "horizon_ms": plan.horizon / 1e6,
        "usage": plan.utilisation,
    }
    # `cap` steps of the fastest worker take less time than one step of the slowest
    if plan.cap > cap:
        return Reason("plan-over-cap", {**fields, "cap": cap, "raised": plan.cap})
    return Reason("plan", fields)

"""The interface of every machine: it takes an event and the time, and returns effects.

The runtime and the simulator run the same machines. A machine therefore never reads a clock, and
the same events at the same times give the same effects.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class Reason(msgspec.Struct, frozen=True, array_like=True):
    """Why a machine decided something: a code and its fields, made into words when it is shown."""

    code: str
    fields: dict[str, Any] = {}

    def __str__(self) -> str:
        words = WORDS.get(self.code)
        if words is None:  # a policy of a user's own may have codes without a sentence here
            fields = ", ".join(f"{name} {value}" for name, value in self.fields.items())
            return f"{self.code}: {fields}" if fields else self.code
        return words.format_map(self.fields)


WORDS = {
    "none": "nothing is being waited for",
    "joining": "waiting for the lead to admit this worker",
    "placing": "waiting for the servers to make room for the model",
    "seeding": "waiting for {worker} to send the initial parameters",
    "gathering": "waiting for {missing} more worker(s) before round 1 opens",
    "opened": "round {round} is open for {members} member(s)",
    "waiting": "the round waits for others",
    "round": "round {round} waits for {missing}",
    "all-arrived": "every member has contributed to round {round} or abstained",
    "timer": "the timer fired {after_s:.1f} s after round {round} opened; not waited for: {missing}",
    "abandoned": "round {round} closes {after_s:.3f} s after its interval; not waited for: {missing}",
    "timer-empty": "the timer fired, but nobody has contributed to round {round} yet",
    "points-visited": "{resting} of {members} workers have visited all of their points: the steps of "
    "the others are scaled by {share:.2f}",
    "already-in": "its contribution was in time for round {round}",
    "first-members": "no member is left in round {round}: it closes for those who came",
    "going": "nobody is held back",
    "turn": "the view changes: {members} member(s) from now on",
    "stale": "{held} are more than {bound} step(s) ahead of {missing} (clock {clock})",
    "restarting": "{held} stopped {bound} step(s) ahead; clocks restart when {missing} arrive",
    "restart": "all {members} member(s) have stopped: clocks restart",
    "plan": "steps until all meet again, every {horizon_ms:.0f} ms: {steps} ({usage:.0%} of the time"
    " computing)",
    "plan-over-cap": "steps until all meet again, every {horizon_ms:.0f} ms: {steps} ({usage:.0%} of the"
    " time computing); --most-steps {cap} is raised to {raised}, what the fastest makes in one step of"
    " the slowest",
    "interval-over": "the interval is over: all contribute what they have",
    "on-arrival": "contributions are folded as they come",
    "waits": "waiting for the fold of round {round}",
    "gate": "waiting for the slowest to catch up",
    "reading": "waiting for the servers' answer",
    "resting": "it has visited all of its points and waits for others",
    "rejoining": "it joins again: {detail}",
    "parted": "it has lost its link to {server}, and waits for the lead to say where its slices are",
    "window": "{held} waits: {servers} has not acknowledged its last two contributions",
    "parting": "it was told to leave, and ends its work",
    "settling": "it leaves when {unacknowledged} contribution(s) are acknowledged",
    "computing": "the worker is computing on version {round}",
    "folding": "the servers fold round {round}",
    "rerouting": "the slices have other primaries now; {servers} must follow",
    "copying": "waiting for {servers} to copy what was folded",
    "failover": "s{lost} is gone; waiting for {servers} to follow the new routes",
    "resending": "waiting for {workers} to send again to {servers} what was lost with a server",
    "slices-lost": "server s{server} died ({detail}), and with it all copies of {slices} slice(s), "
    "{mb:.1f} MB: the job cannot go on",
    "server-silent": "s{server} has been silent for {silent_s:.2f} s; suspect after {derivation}",
    "unreported": "{servers} has not reported what {held} contributed",
    "goal": "the job reached its goal: {goal}",
    "goal-not-finite": "the job reached its goal ({goal}), but the objective is not finite: lower the "
    "rate, or clip the gradients",
    "ending": "the goal is reached: {workers} end their work",
    "lead-gone": "the lead is gone: {detail}",
    "lead-suspect": "the lead is silent; it is waited for until --lead-timeout",
    "lead-lost": "the lead has sent nothing for {silent_s:.1f} s (--lead-timeout {timeout_s:g})",
    "silent": "{name} has been silent for {silent_s:.2f} s; suspect after {derivation}",
    "server-died": "server s{server} died ({detail}); without replicas its slices are lost",
    "no-batches": "--epochs and --target-change count passes over worker.batches(), which no worker "
    "uses: give --rounds",
    "idle": "nobody had anything to contribute for {rounds} rounds, and the goal is not reached",
    "worker-failed": "{name} left: {detail}; --on-error end",
    "deserted": "every worker left before the goal",
    "refused": "{detail}",
    "stopped": "stopped on request",
    "respawn": "{name} failed: {detail}; it is started again in {after_s:g} s",
    "interval-started": "the interval is {interval_ms:.1f} ms now: in that time all workers together "
    "visit one batch each",
    "interval-measuring": "the interval is being measured around {interval_ms:.1f} ms",
    "interval-chosen": "the interval is {interval_ms:.1f} ms now (before: {before_ms:.1f} ms): it "
    "promises {gain:.3g} of the objective per second",
    "interval-stage-over": "the objective falls by {gain:.3g} per second, {promised:.3g} were "
    "promised: the interval is measured anew around {interval_ms:.1f} ms",
    "interval-raised": "the interval is raised to {interval_ms:.1f} ms: a barrier alone takes "
    "{phi_ms:.1f} ms",
    "interval-bounded": "the interval is raised to {interval_ms:.1f} ms: a barrier takes "
    "{phi_ms:.1f} ms, a micro-batch up to {micro_ms:.1f} ms",
    "interval-lowered": "the interval is {interval_ms:.1f} ms again: barriers and micro-batches are "
    "shorter than they were",
    "interval-restored": "the interval is {interval_ms:.1f} ms again, as asked: barriers are cheap "
    "enough",
    "interval-blind": "there is no objective to choose by: the interval is {interval_ms:.1f} ms, "
    "barriers take {phi_ms:.1f} ms",
    "batch-measuring": "batches of {points} points are tried",
    "batch-chosen": "batches have {points} points: the objective fell fastest with them, by "
    "{gain:.3g} per second",
    "batch-blind": "there is no objective to choose by: batches stay at {points} points",
    "given-up": "{name} failed: {detail}; it is not started again, because it died {deaths} times in "
    "a row within {within_s:g} s of its start",
    "no-start": "server {name} could not be started: it died {deaths} times in a row within "
    "{within_s:g} s of its start ({detail})",
}


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """What a machine waits for, since when, and until when if a timer limits the wait."""

    reason: Reason
    since_ns: int
    until_ns: int | None = None


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An input of a machine that arose in this process. Messages of peers are inputs too."""


class Effect(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An order of a machine that the runtime, or the simulator, carries out."""


class Machine(Protocol):
    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        """Change the state, and return what must be done."""

    def wake_at(self) -> int | None:
        """When the machine must be handed a Tick; None if it waits for no time."""

    def why(self) -> Waiting:
        """What the machine waits for now."""

    def check(self) -> None:
        """Raise InvariantBroken if the state contradicts itself."""

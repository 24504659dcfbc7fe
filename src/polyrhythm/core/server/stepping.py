"""Calculates the step of each fold once: the primary applies it, and its replicas apply the same
values.

Without rounds each contribution is a step of its own. With P members, P contributions count as one
round: the learning rate of each is scaled by 1/P (`--async-scale none` turns that off), and
momentum decays once per round and not once per contribution (`--async-momentum contribution` turns
that off). With an outer optimizer the rate of a step is the one in `--outer`, and not the workers'.
*The inputs of a step are read here, once per step. Otherwise the view could change while a step is
on its way to the replicas, and the primary would make a different step than they do.*
"""

from polyrhythm.core.outer import outer_rate
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire.messages import JobSpec, SliceStep


class Stepping:
    def __init__(self, job: JobSpec) -> None:
        on_arrival = not traits_of(job.sync).rounds
        self._scales = on_arrival and job.async_scale == "members"
        self._decays_per_round = on_arrival and job.async_momentum == "round"
        self._outer_rate = outer_rate(job.outer)
        self._members = 1

    def enlist(self, members: int) -> None:
        """The view has changed: scale later steps for this many members."""
        self._members = max(1, members)

    def step(self, weight: float, rate: float | None, clock: int, share: float = 1.0) -> SliceStep:
        """The step that folds an aggregate of this weight. `rate` and `clock`: those of the
        contribution with the highest clock; `rate` is None if there is no contribution. `share`:
        the fraction of a full step that the lead has ordered for the round."""
        members = self._members
        scale = 1 / members if self._scales else share
        per_round = members if self._decays_per_round else 1
        if self._outer_rate is not None:
            rate = self._outer_rate
        return SliceStep(weight, rate or 0.0, clock, scale, per_round)

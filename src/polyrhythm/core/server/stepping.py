"""Calculates the step of each fold once: the primary applies it, and its replicas apply the same
values.

Without rounds each contribution is a step of its own. With P members, P contributions count as one
round: the learning rate of each is scaled, in a way that depends on the optimizer (`async_scale.py`),
and momentum decays once per round and not once per contribution (`--async-momentum contribution`
turns that off). With an outer optimizer the learning rate of a step is the one in `--outer`, and not
that of the workers. *The inputs of a step are read here, once per step. Otherwise the view could
change while a step is on its way to the replicas, and the primary would make a different step than
they do.*
"""

from polyrhythm.core.kinds import steps_on_servers
from polyrhythm.core.outer import outer_rate
from polyrhythm.core.server.async_scale import power_for
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire.messages import JobSpec, ModelSpec, SliceStep


class Stepping:
    def __init__(self, job: JobSpec, spec: ModelSpec | None = None) -> None:
        """`spec`: the model, whose optimizers decide the scale; None if no optimizer is known."""
        on_arrival = not traits_of(job.sync).rounds
        self._power = power_for(job.async_scale, None) if on_arrival else 0.0
        self._powers: dict[int, float] = {}
        if on_arrival and spec is not None and steps_on_servers(job.kind):
            self._powers = {
                group: power_for(job.async_scale, spec.optimizers[model].name)
                for group, model in enumerate(spec.models)
            }
        self._rounds = not on_arrival
        self._decays_per_round = on_arrival and job.async_momentum == "round"
        self._outer_rate = outer_rate(job.outer)
        self._members = 1

    def enlist(self, members: int) -> None:
        """The view has changed: scale later steps for this many members."""
        self._members = max(1, members)

    def step(
        self,
        weight: float,
        rate: float | None,
        clock: int,
        share: float = 1.0,
        group: int | None = None,
    ) -> SliceStep:
        """The step that folds an aggregate of this weight. `rate` and `clock`: those of the
        contribution with the highest clock; `rate` is None if there is no contribution. `share`:
        the fraction of a full step that the lead has ordered for the round. `group`: the parameter
        group of the slice."""
        members = self._members
        scale = share
        if not self._rounds:
            power = self._power if group is None else self._powers.get(group, self._power)
            scale = members**-power
        per_round = members if self._decays_per_round else 1
        if self._outer_rate is not None:
            rate = self._outer_rate
        return SliceStep(weight, rate or 0.0, clock, scale, per_round)

"""Calculates the step of each fold once. The primary applies it, and its replicas apply the same
values.

*The inputs of a step are read here, once per step. Otherwise the view could change before the step
reaches the replicas, and the primary would make a different step than they do.*

Without rounds, each contribution is a separate step, and P contributions of P members count as one
round. So the learning rate of each step is scaled, by a factor that depends on the optimizer
(`power_for`), and momentum decays once per round instead of once per contribution
(`--async-momentum contribution` turns that off).

With rounds, a round with fewer points than a whole batch of every worker is a part of a step: the
rate is scaled and momentum decays in the same way. Otherwise the gradient of a few points would
enter the velocity like that of a whole batch, and dominate the next whole step.

With an outer optimizer, the learning rate of a step is the one in `--outer`, and the workers' rates
have no effect on it.
"""

from polyrhythm.core.kinds import outer_rate, steps_on_servers
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire.messages import JobSpec, ModelSpec, SliceStep

ASYNC_SCALES = ("auto", "members", "root", "none")
"""The values of `--async-scale`."""
_POWERS = {"members": 1.0, "root": 0.5, "none": 0.0}
_BY_OPTIMIZER = {"SGD": "members", "ASGD": "members", "Adagrad": "none", "SparseAdam": "none"}
_ADAPTIVE = "root"


def power_for(async_scale: str, optimizer: str | None) -> float:
    """How much of a full step one contribution makes without rounds: its learning rate is
    multiplied by 1/members^p, and this is p. `optimizer`: the optimizer that servers run for this
    slice; None if they add what workers send.

    In the time of one round each of P members makes its own step. *These P steps together must
    move the parameters as far as the one step of bsp would. So the share of the rate depends on the
    optimizer:*

    - SGD's step is proportional to the gradient. The P steps sum P gradients where bsp takes their mean,
      so each has 1/P of the rate.
    - Adam, RMSprop and their relatives divide the gradient by its root mean square. The gradient of one
      batch is noisier than the mean of P batches by the square root of P, so its steps are already
      smaller by that factor. Each has 1/sqrt(P) of the rate.
    - Adagrad divides by the root of the sum of all squares so far. In one round, P single gradients add
      P squared times as much to this sum as the one mean of bsp. So each of the P steps is already
      smaller by the factor P, and keeps the whole rate.

    - SparseAdam changes the rows that a contribution contains. A rare row is in the contribution of one
      member only, and its step does not depend on the divisor of its gradient. It keeps the whole rate.

    docs/decisions/029 has the derivation, benchmarks/staleness/README.md the measurements.
    """
    if async_scale == "auto":
        async_scale = "members" if optimizer is None else _BY_OPTIMIZER.get(optimizer, _ADAPTIVE)
    return _POWERS[async_scale]


class Stepping:
    def __init__(self, job: JobSpec, spec: ModelSpec | None = None) -> None:
        """`spec`: the model, whose optimizers decide the scale; None if no optimizer is known."""
        on_arrival = not traits_of(job.sync).rounds
        async_scale = job.async_scale if on_arrival else "auto"
        self._power = power_for(async_scale, None)
        self._powers: dict[int, float] = {}
        if spec is not None and steps_on_servers(job.kind):
            self._powers = {
                group: power_for(async_scale, spec.optimizers[model].name)
                for group, model in enumerate(spec.models)
            }
        self._rounds = not on_arrival
        self._decays_in_parts = (
            job.async_momentum == "round" if on_arrival else steps_on_servers(job.kind)
        )
        self._outer_rate = outer_rate(job.outer)
        self._members = 1

    def enlist(self, members: int) -> None:
        """Scale later steps for this many members: the view has changed."""
        self._members = max(1, members)

    def step(
        self,
        weight: float,
        rate: float | None,
        clock: int,
        share: float = 1.0,
        group: int | None = None,
    ) -> SliceStep:
        """Calculate the step that folds an aggregate of this weight. `rate` and `clock` belong to
        the contribution with the highest clock; `rate` is None if there is no contribution.
        `share`: the points of the round as a share of a whole batch. `group` is the parameter group
        of the slice."""
        power = self._power if group is None else self._powers.get(group, self._power)
        parts = float(self._members)
        if self._rounds:
            parts = 1 / share if share else 1.0
        per_round = parts if self._decays_in_parts else 1.0
        if self._outer_rate is not None:
            rate = self._outer_rate
        return SliceStep(weight, rate or 0.0, clock, parts**-power, per_round)

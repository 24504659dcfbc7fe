"""How much of a full step one contribution makes, without rounds.

In the time of one round each of P members makes a step of its own. *These P steps together must
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

docs/decisions/076 has the derivation, docs/staleness.md the measurements.
"""

ASYNC_SCALES = ("auto", "members", "root", "none")
"""The values of `--async-scale`."""
_POWERS = {"members": 1.0, "root": 0.5, "none": 0.0}
_BY_OPTIMIZER = {"SGD": "members", "ASGD": "members", "Adagrad": "none", "SparseAdam": "none"}
_ADAPTIVE = "root"


def power_for(async_scale: str, optimizer: str | None) -> float:
    """The power p: the learning rate of each contribution is multiplied by 1/members^p.
    `optimizer`: the optimizer that servers run for this slice; None if they add what workers
    send."""
    if async_scale == "auto":
        async_scale = "members" if optimizer is None else _BY_OPTIMIZER.get(optimizer, _ADAPTIVE)
    return _POWERS[async_scale]

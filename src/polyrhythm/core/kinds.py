"""What machines must know about the kinds of contributions:

which processes make the optimizer's steps, what a fold adds up, how much a contribution weighs,
which optimizers servers can run, and which slices are quantised. `tensors/kinds.py` defines the
content of a contribution of each kind, and how servers add and fold it.
"""

from collections.abc import Collection, Sequence
from math import inf

import msgspec

from polyrhythm.core.placement.slices import ITEM_NBYTES, Layout, Slice
from polyrhythm.core.values import plain
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec, OptimizerSpec, Option, Route


class KindTraits(msgspec.Struct, frozen=True):
    steps_on_servers: bool = False
    """Whether servers make the optimizer's steps, from gradients."""
    steps_on_workers: bool = False
    """Whether workers make the optimizer's steps, and send the change of their model."""
    keeps_rows: bool = False
    """Kind statistics: a server keeps one *row* for each worker. The row is the sum of what this
    worker's points have added to the statistics, and a version is the sum of all rows. A
    contribution says how its worker's row changes. *Servers add a contribution when a fold names
    it, and delete the rows that the fold does not name. So every server computes the same
    version.*"""


GRADIENT = KindTraits(steps_on_servers=True)
LOCAL = KindTraits(steps_on_workers=True)
STATISTICS = KindTraits(keeps_rows=True)
KINDS = {"gradient": GRADIENT, "local": LOCAL, "statistics": STATISTICS}
"""Each kind by its name in `--kind`."""
_UNKNOWN = KindTraits()


def steps_on_servers(kind: str) -> bool:
    """Whether servers make the optimizer's steps for this kind; False if the kind is not chosen
    yet."""
    return KINDS.get(kind, _UNKNOWN).steps_on_servers


def steps_on_workers(kind: str) -> bool:
    """Whether workers make the optimizer's steps for this kind; False if the kind is not chosen
    yet."""
    return KINDS.get(kind, _UNKNOWN).steps_on_workers


def keeps_rows(kind: str) -> bool:
    """Whether servers keep a sum for each worker, called its row (kind statistics)."""
    return KINDS.get(kind, _UNKNOWN).keeps_rows


ON_SERVERS, ON_WORKERS = OPTIMIZER_ON = ("servers", "workers")
"""The values of `--optimizer-on`."""


def sums_only(job: JobSpec) -> bool:
    """Whether servers only add up gradients, and every worker makes the optimizer's step with the
    sum (`--optimizer-on workers`).

    *All workers begin with the same parameters and make the same steps. So they always have the
    same parameters and optimizer state.* Servers have neither. When servers need them, a worker
    sends them: for a checkpoint, for a saved model, and for a worker that joins.
    """
    return job.optimizer_on == ON_WORKERS


BY_POINTS = "points"
BY_WORKERS = "workers"


def weight_in_round(weights: str, points: float) -> float:
    """The weight of a contribution that contains this many points. `weights`: the value of
    `--weights`.

    *By default every point counts equally, so a contribution weighs as many points as it contains.
    With `workers`, every contribution weighs the same, however many points it contains.* A worker
    that visits few points, because it is slow or has little data, then has as much influence as the
    others. The lead still counts points.
    """
    return 1.0 if weights == BY_WORKERS else points


ELEMENTWISE = (
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
)
"""Torch's optimizers that update every element of a parameter independently of the others."""
_REASONS = {
    "LBFGS": "LBFGS searches along a line with the whole gradient at once",
    "Adafactor": "Adafactor factors each matrix into rows and columns",
    "Muon": "Muon orthogonalises each matrix as a whole",
    "SparseAdam": "SparseAdam needs sparse gradients, and contributions are dense",
}
NOT_ELEMENTWISE = tuple(_REASONS)
"""Torch's other optimizers."""


def reason_against(name: str) -> str:
    """Why servers cannot run an optimizer that is not elementwise.

    A server has slices and not whole tensors, so only elementwise optimizers give correct results
    there.
    """
    return _REASONS.get(name, "its class is not one of torch's elementwise optimizers")


OFF = "off"
EXAMPLE = "nesterov:lr=0.7,momentum=0.9"
_NESTEROV = "nesterov"
_Options = dict[str, float | bool]
_NESTEROV_DEFAULTS: _Options = {"lr": 0.7, "momentum": 0.9}
_ADAM = ("beta1", "beta2", "eps", "weight_decay")
_OPTIONS = {
    "SGD": ("momentum", "weight_decay"),
    "Adam": (*_ADAM, "amsgrad"),
    "AdamW": (*_ADAM, "amsgrad"),
    "Adagrad": ("lr_decay", "eps", "initial_accumulator_value", "weight_decay"),
    "Adadelta": ("rho", "eps", "weight_decay"),
    "Adamax": _ADAM,
    "ASGD": ("lambd", "alpha", "t0", "weight_decay"),
    "NAdam": (*_ADAM, "momentum_decay"),
    "RAdam": _ADAM,
    "RMSprop": ("alpha", "eps", "momentum", "centered", "weight_decay"),
    "Rprop": (),
}
"""Per optimizer, by torch's name, the options that `--outer` accepts besides the learning rate."""
_MOST_RATE = 1e4
"""The largest learning rate that a message can contain."""
_BELOW_ONE = ("momentum", "beta1", "beta2", "rho")
_SWITCHES = {"amsgrad", "centered"}
_BETAS = {"beta1": 0.9, "beta2": 0.999}
"""The defaults of torch's `betas`, which `--outer` splits into two options."""


def parse_outer(text: str) -> OptimizerSpec | None:
    """The outer optimizer of `--outer`, with its options as one parameter group; None if the job
    has no outer optimizer.

    *Servers use the averaged change of a round as a negative gradient (torch's option `maximize`),
    and make one step of the outer optimizer with it.* The learning rate of the outer step is the
    one in `--outer`; the workers' own rates only scale their local steps. `nesterov` with its
    defaults is DiLoCo's outer optimizer.
    """
    if text.strip() == OFF:
        return None
    said, _, rest = text.strip().partition(":")
    name = _name_of(said, text)
    nesterov = said.lower() == _NESTEROV
    options: _Options = dict(_NESTEROV_DEFAULTS) if nesterov else {}
    for pair in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = pair.partition("=")
        if not equals:
            raise _refused(text, f"{pair!r} is not NAME=NUMBER")
        options[key.strip()] = _value(text, said, name, key.strip(), value.strip())
    if "lr" not in options:
        raise _refused(text, f"it needs a learning rate, such as {said.lower()}:lr=1")
    if nesterov and not options["momentum"]:
        raise _refused(text, "nesterov needs a momentum above 0; without momentum, give sgd:lr=1")
    return OptimizerSpec(name, (_as_in_torch(options, nesterov=nesterov),))


def outer_rate(text: str) -> float | None:
    """The learning rate of the outer optimizer; None if there is no outer optimizer."""
    spec = parse_outer(text)
    rate = None if spec is None else spec.groups[0]["lr"]
    return rate if isinstance(rate, float) else None


def only_scales(spec: OptimizerSpec) -> bool:
    """Whether the outer optimizer only multiplies the averaged change by its rate, and has no
    state."""
    options = spec.groups[0]
    return spec.name == "SGD" and not options.get("momentum") and not options.get("weight_decay")


def _name_of(said: str, text: str) -> str:
    if said.lower() == _NESTEROV:
        return "SGD"
    for name in ELEMENTWISE:
        if name.lower() == said.lower():
            return name
    for name in NOT_ELEMENTWISE:
        if name.lower() == said.lower():
            raise _refused(
                text,
                f"{name} cannot run on servers, which hold slices and not whole tensors:"
                f" {reason_against(name)}",
            )
    known = ", ".join((_NESTEROV, *(name.lower() for name in ELEMENTWISE)))
    raise _refused(text, f"choose one of {known}, such as {EXAMPLE}")


def _value(text: str, said: str, name: str, key: str, value: str) -> float | bool:
    known = ("lr", *_OPTIONS[name])
    if key not in known:
        raise _refused(text, f"{said.lower()} has no option {key!r}; it has {', '.join(known)}")
    if key in _SWITCHES:
        if value.lower() not in ("true", "false"):
            raise _refused(text, f"{key} must be true or false")
        return value.lower() == "true"
    try:
        number = float(value)
    except ValueError:
        raise _refused(text, f"{key} is {value!r}, which is not a number") from None
    if key == "lr" and not 0 < number <= _MOST_RATE:
        raise _refused(text, f"lr must be above 0 and at most {_MOST_RATE:g}")
    if key in _BELOW_ONE and not 0 <= number < 1:
        raise _refused(text, f"{key} must be at least 0 and less than 1")
    if not 0 <= number < inf:
        raise _refused(text, f"{key} must be a number, and at least 0")
    return number


def _as_in_torch(options: _Options, *, nesterov: bool) -> dict[str, Option]:
    found: dict[str, Option] = {key: options[key] for key in options if key not in _BETAS}
    if len(found) < len(options):
        found["betas"] = [options.get(key, beta) for key, beta in _BETAS.items()]
    if nesterov:
        found["nesterov"] = True
    return {**found, "maximize": True}


def _refused(text: str, why: str) -> UsageError:
    return UsageError(plain(f"--outer {text!r} cannot be used: {why}"))


EXACT, INT8 = "exact", "int8"
BLOCK = 256
"""How many consecutive numbers of a slice are quantised with the same scale."""
_FLOATS = ("float32", "float64", "bfloat16", "float16")


def may_be_quantised(layout: Layout, slice_: Slice) -> bool:
    """Whether this slice is quantised with `--push int8`. A slice with rows of a sparse parameter
    is not quantised: servers read from its numbers which rows were sent (`tensors/rows.py`).

    *With `int8`, a slice of parameters that is sent over TCP is quantised: it is sent as 8-bit
    integers, with one scale for each block of 256 numbers. Everything else is sent exactly: the
    model's buffers, integers, slices that consist of rows, and slices for servers that read the
    worker's memory.* The worker chooses the form of a slice when it makes the contribution. If it
    sends the slice again, the bytes are the same, even to another server or over another link.
    """
    space = layout.spaces[slice_.space]
    return not space.buffers and space.dtype in _FLOATS and not slice_.width


def scale_nbytes(dtype: str) -> int:
    """The size of a scale for numbers of this dtype. It is at least the size of a float32."""
    return max(4, ITEM_NBYTES[dtype])


def quantised_nbytes(layout: Layout, slice_: Slice) -> int:
    """The size of a quantised slice: the scales of its blocks, and a byte for each number."""
    dtype = layout.spaces[slice_.space].dtype
    return -(-slice_.length // BLOCK) * scale_nbytes(dtype) + slice_.length


def quantised_slices(
    push: str, layout: Layout, routes: Sequence[Route], by_reference: Collection[int]
) -> frozenset[int]:
    """The slices that a worker quantises in its next contribution. `by_reference`: the servers that
    read this worker's memory. Nothing is quantised for them, because no bytes are sent."""
    if push != INT8:
        return frozenset()
    return frozenset(
        slice_.id
        for slice_ in layout.slices
        if may_be_quantised(layout, slice_) and routes[slice_.id].primary not in by_reference
    )

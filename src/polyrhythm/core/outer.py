"""The outer optimizer of kind local: what `--outer` accepts, and the optimizer that it names.

*Servers use the averaged change of a round as a negative gradient, and make one step of the outer
optimizer with it.* The learning rate of the outer step is the one in `--outer`; the workers' own
rates only scale their local steps. `nesterov` with its defaults is DiLoCo's outer optimizer.
"""

from math import inf

from polyrhythm.core.elementwise import ELEMENTWISE, NOT_ELEMENTWISE, reason_against
from polyrhythm.core.text import plain
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import OptimizerSpec, Option

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
"""The defaults of torch's option `betas`, which is two options of `--outer`."""


def parse_outer(text: str) -> OptimizerSpec | None:
    """The outer optimizer, with its options as one parameter group; None if the job has no outer
    optimizer. `maximize` makes torch use the averaged change as a negative gradient."""
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
    """Whether a step only adds a multiple of the averaged change, and has no state."""
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

"""Torch optimizers, described by a name and options: how a server builds one for its slices.

`core/kinds.py` lists those that a server can run.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from polyrhythm.core.kinds import ELEMENTWISE as ELEMENTWISE
from polyrhythm.core.kinds import reason_against
from polyrhythm.core.placement.slices import Layout
from polyrhythm.core.values import plain
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec

_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
_FUSED_DTYPES = (torch.float32, torch.float64)
"""torch's fused SGD leaves most elements of half precision unchanged (pytorch issue 191763)."""
_HINTS = {
    "LBFGS": "give the job --kind local and call optimizer.step(closure)",
    "Adafactor": "give the job --kind local, or use AdamW",
    "Muon": "give the job --kind local, or use AdamW",
}
_HINT = (
    "give the job --kind local, with which each worker makes the optimizer's steps, or use one of"
    f" {', '.join(ELEMENTWISE)}"
)
SPARSE_ADAM = "SparseAdam"
TAKE_ROWS = ("SGD", "Adagrad", SPARSE_ADAM)
"""The optimizers that make a step with some rows of a gradient, as torch does. Weight decay changes
every row, so a parameter group with weight decay takes whole gradients only."""
_IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable")


def describe_optimizer(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """Return the optimizer as a spec, or raise an error that says why it cannot run on slices."""
    name = type(optimizer).__name__
    known = (*ELEMENTWISE, SPARSE_ADAM)
    if name not in known or type(optimizer) is not getattr(torch.optim, name):
        raise UsageError(
            f"{name} cannot run on a server, which holds slices and not whole tensors:"
            f" {reason_against(name)};"
            f" {_HINTS.get(name, _HINT)}"
        )
    return OptimizerSpec(name, tuple(_options(group) for group in optimizer.param_groups))


def _options(group: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in group.items():
        if key in ("params", "initial_lr", "param_names", *_IMPLEMENTATION):
            continue
        options[key] = _number(value)
    return options


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item()
    if isinstance(value, tuple | list):
        return [_number(part) for part in value]
    return value


def build_optimizer(
    spec: OptimizerSpec, groups: dict[int, list[torch.nn.Parameter]], *, fused: bool
) -> torch.optim.Optimizer:
    """Build one optimizer for all slices, in which each slice is one parameter. One optimizer per
    slice would be six times slower."""
    kind = getattr(torch.optim, spec.name)
    param_groups = [
        {"params": params, **options_of(spec, group)} for group, params in sorted(groups.items())
    ]
    how = "fused" if fused else "foreach"
    optimizer: torch.optim.Optimizer = kind(param_groups, **{how: True}, **_required(spec))
    _start_momentum_at_zero(optimizer)
    return optimizer


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[[torch.optim.Optimizer], object]:
    """The function `step` of an optimizer, without the wrappers of torch: the caller must disable
    gradients (`no_grad`), and torch's hooks for its profiler and compiler are not called. These
    hooks take longer than a small step, and load the compiler (`tensors/compiler.py`)."""
    step: Callable[[torch.optim.Optimizer], object] = inspect.unwrap(type(optimizer).step)
    return step


def options_of(spec: OptimizerSpec, group: int) -> dict[str, Any]:
    """The options of a parameter group, as torch's constructor takes them."""
    known = _parameters_of(spec.name)
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in spec.groups[group].items()
        if key in known
    }


@functools.cache
def _parameters_of(name: str) -> frozenset[str]:
    """The parameters of the constructor of an optimizer. To read them takes 0.4 ms."""
    return frozenset(inspect.signature(getattr(torch.optim, name)).parameters)


def takes_rows(spec: OptimizerSpec, group: int) -> bool:
    """Whether the optimizer makes a step with some rows of a gradient of this parameter group."""
    return spec.name in TAKE_ROWS and not spec.groups[group].get("weight_decay")


def check_optimizer(spec: OptimizerSpec) -> None:
    """Refuse an optimizer from a peer that torch cannot build, before a server allocates its
    slices."""
    if spec.name not in (*ELEMENTWISE, SPARSE_ADAM):
        raise UsageError(f"there is no optimizer {plain(spec.name)!r} that runs on slices")
    groups = {number: [torch.nn.Parameter(torch.zeros(1))] for number in range(len(spec.groups))}
    try:
        if spec.name == SPARSE_ADAM:
            for number in groups:
                torch.optim.SparseAdam([torch.zeros(1, 1)], **options_of(spec, number))
            return
        for (parameter,) in groups.values():
            parameter.grad = torch.zeros(1)
        optimizer = build_optimizer(spec, groups, fused=False)
        with torch.no_grad():
            bare_step(optimizer)(optimizer)  # torch checks some options only in `step`
    except Exception as error:  # torch raises errors of many types for wrong options
        raise UsageError(f"{spec.name} cannot be built: {plain(str(error))}") from None


def check_rows(spec: ModelSpec, layout: Layout) -> None:
    """Refuse SparseAdam for a tensor that is not cut between rows."""
    names, models = [optimizer.name for optimizer in spec.optimizers], spec.models
    for slice_ in layout.slices if SPARSE_ADAM in names else ():
        if layout.spaces[slice_.space].buffers or slice_.width:
            continue
        if names[models[slice_.group]] == SPARSE_ADAM:
            raise UsageError(
                "SparseAdam needs gradients of rows. One of its tensors has none: it has no rows, its"
                " rows are too long for a slice, or the job has several models. Optimize that tensor"
                " with Adam, or give the job --kind local"
            )


def can_fuse(spec: OptimizerSpec, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether torch's fused kernels can be used for a model whose parameters have these dtypes.
    *There is one answer for the whole model*: a primary and a replica of a slice must use the same
    kernels, whichever other slices they hold."""
    return spec.name in _FUSED and all(dtype in _FUSED_DTYPES for dtype in dtypes)


def _required(spec: OptimizerSpec) -> dict[str, Any]:
    return {"lr": spec.groups[0]["lr"]}


def _start_momentum_at_zero(optimizer: torch.optim.Optimizer) -> None:
    """Set SGD's momentum to zero before the first step. torch would use the first gradient as the
    momentum; without dampening, zero has the same result. Zero is also correct for a slice that
    gets its first contribution later than other slices."""
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"] and not group["dampening"]:
            for param in group["params"]:
                optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)

"""Describes a torch model and its optimizer as a spec: names, shapes, dtypes, parameter groups and
options of the optimizer. It uses no pickle."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from polyrhythm.core.placement.slices import BUFFERS, MEAN
from polyrhythm.errors import UsageError
from polyrhythm.learn.buffers import sharing_of
from polyrhythm.tensors.dtypes import NAMES
from polyrhythm.tensors.kinds import KINDS
from polyrhythm.tensors.optimizers import SPARSE_ADAM, describe_optimizer, takes_rows
from polyrhythm.wire.messages import (
    ModelPart,
    ModelSpec,
    OptimizerSpec,
    Option,
    StateName,
    TensorSpec,
)


def describe(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    kind: str,
    *,
    rows: bool = True,
    buffers: Mapping[str, str] | None = None,
) -> tuple[ModelSpec, list[torch.Tensor]]:
    """Return the spec, and the tensors in the same order. Tied weights occur once. `rows`: whether
    servers accept gradients of single rows. `buffers`: see `Worker.attach`."""
    groups = {
        id(parameter): number
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
    named: list[tuple[str, torch.Tensor, int]] = []
    for name, parameter in model.named_parameters():
        group = groups.pop(id(parameter), BUFFERS)
        named.append((name, parameter, group if parameter.requires_grad else BUFFERS))
    for name, buffer in model.named_buffers():
        named.append((name, buffer, BUFFERS))
    if groups:
        shapes = [
            list(parameter.shape)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in groups
        ]
        raise UsageError(
            f"the optimizer has {len(groups)} parameter(s) that are not in the model, the first of"
            f" shape {shapes[0]}: attach the model that holds them all, such as"
            " torch.nn.ModuleList([a, b])"
        )
    if not any(group != BUFFERS for _, _, group in named):
        raise UsageError(
            "the optimizer has no parameter of this model to train: all are frozen"
            " (requires_grad=False), or the optimizer has parameters of another model"
        )
    if not any(tensor.numel() for _, tensor, group in named if group != BUFFERS):
        raise UsageError(
            "every parameter that the optimizer has of this model is empty (0 elements), so there is"
            " nothing to train: check the sizes of the layers"
        )
    if KINDS[kind].steps_on_servers and any(
        _has_stepped(state) for state in optimizer.state.values()
    ):
        raise UsageError(
            "the optimizer has state already, which would be lost, because the servers hold the"
            " optimizer's state: attach an optimizer that has made no step"
        )
    if not KINDS[kind].steps_on_servers:
        rates: list[dict[str, Option]] = [
            {"lr": float(group.get("lr", 0.0))} for group in optimizer.param_groups
        ]
        spec = OptimizerSpec(type(optimizer).__name__, tuple(rates))
    else:
        spec = describe_optimizer(optimizer)
    tables = rows_of(model, optimizer, spec) if rows and KINDS[kind].steps_on_servers else set()
    untrained = {name: tensor for name, tensor, group in named if group == BUFFERS}
    shared = sharing_of(model, untrained, buffers)
    tensors = tuple(
        replace(
            _describe_tensor(name, tensor, group, rows=id(tensor) in tables),
            sharing=shared.get(name, MEAN),
        )
        for name, tensor, group in named
    )
    state = _state_names(model, [tensor for _, tensor, _ in named], tensors)
    return ModelSpec(tensors, spec, state), [tensor for _, tensor, _ in named]


def merge(models: Sequence[tuple[str, ModelSpec]]) -> ModelSpec:
    """Join the specs of several models to one spec. The name of each model is put before the names
    of its tensors."""
    tensors: list[TensorSpec] = []
    groups: list[dict[str, Option]] = []
    state: list[StateName] = []
    parts: list[ModelPart] = []
    for name, spec in models:
        first, group = len(tensors), len(groups)
        for tensor in spec.tensors:
            number = BUFFERS if tensor.group == BUFFERS else group + tensor.group
            tensors.append(replace(tensor, name=f"{name}.{tensor.name}", group=number))
        state += [StateName(f"{name}.{each.name}", first + each.tensor) for each in spec.saved]
        groups += spec.optimizer.groups
        counts = len(spec.tensors), len(spec.optimizer.groups)
        parts.append(ModelPart(name, spec.optimizer.name, *counts))
    optimizer = OptimizerSpec(" and ".join(part.optimizer for part in parts), tuple(groups))
    same = all(not spec.state for _, spec in models)
    return ModelSpec(tuple(tensors), optimizer, () if same else tuple(state), tuple(parts))


def _state_names(
    model: torch.nn.Module, tensors: list[torch.Tensor], specs: tuple[TensorSpec, ...]
) -> tuple[StateName, ...]:
    """The names in the model's `state_dict`, each with its tensor. Entries that are not parameters
    or buffers (the extra state of a module) are left out. The result is empty if these names are
    the same as in the spec."""
    index = {id(tensor): number for number, tensor in enumerate(tensors)}
    state = tuple(
        StateName(name, index[id(value)])
        for name, value in model.state_dict(keep_vars=True).items()
        if id(value) in index
    )
    own = {(spec.name, number) for number, spec in enumerate(specs)}
    return () if {(entry.name, entry.tensor) for entry in state} == own else state


def _has_stepped(state: dict[str, Any]) -> bool:
    """Whether the optimizer has made a step. State alone does not show it: Adagrad creates its
    state in its constructor, with a step count of zero."""
    return float(state.get("step", 1)) > 0


def rows_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, spec: OptimizerSpec
) -> set[int]:
    """The ids of the parameters whose gradients are contributed row by row: the tables of
    embeddings with `sparse=True`, and with SparseAdam all parameters."""
    tables = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }
    return {
        id(parameter)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if takes_rows(spec, number) and (spec.name == SPARSE_ADAM or id(parameter) in tables)
    }


def check_device(spec: ModelSpec, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse models whose tensors are on several devices, or have no values."""
    first, device = spec.tensors[0].name, tensors[0].device
    for described, tensor in zip(spec.tensors, tensors, strict=True):
        if tensor.device != device:
            raise UsageError(
                f"{first!r} is on the device {device} and {described.name!r} on {tensor.device}, and"
                " a worker computes on one device: call model.to(device) before attach()"
            )
    if device.type == "meta":
        raise UsageError(
            f"{first!r} is on the device meta, so it has no values: call model.to_empty(device=...)"
            " and initialise the parameters before attach()"
        )


def _describe_tensor(name: str, tensor: torch.Tensor, group: int, *, rows: bool) -> TensorSpec:
    if tensor.dtype not in NAMES:
        what = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
        raise UsageError(
            f"the {what} {name!r} has dtype {tensor.dtype}, which cannot be exchanged: convert it to"
            f" one of {', '.join(NAMES.values())}"
        )
    dense = tensor.detach()
    if dense.numel() and not dense.is_contiguous() and (rows or not _is_permuted(dense)):
        dense = dense.contiguous()
    strides = tuple(dense.stride())
    return TensorSpec(name, tuple(tensor.shape), NAMES[tensor.dtype], group, strides, rows)


def _is_permuted(tensor: torch.Tensor) -> bool:
    """True if the elements fill their memory without gaps, in some order (channels_last)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True

"""Which buffers of a model are averaged, and which every worker keeps to itself.

*Running statistics of normalisation layers are averaged. Every other buffer is local, because a
mean of two workers' values may be meaningless: the mean of two queues of unit vectors has shorter
vectors.* `attach(..., buffers=...)` overrides this. Frozen parameters, and parameters outside the
optimizer, are averaged too: if workers change them, as in MoCo's key encoder, they move them
towards one common model.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch.nn.modules.batchnorm import _NormBase

from polyrhythm.core.placement.slices import LOCAL, MEAN, SHARINGS
from polyrhythm.errors import UsageError
from polyrhythm.observe.words import listed
from polyrhythm.wire.messages import ModelSpec

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""The names of running statistics in torch's normalisation layers. Other layers, and layers that
were compiled to TorchScript, use them for the same purpose."""


def sharing_of(
    model: torch.nn.Module, named: Mapping[str, torch.Tensor], given: Mapping[str, str] | None
) -> dict[str, str]:
    """For each tensor of `named` that is not trained, whether it is `mean`, `local` or `first`.
    `given`: what the user's code says, by names or patterns of names."""
    statistics = {id(buffer) for buffer in _statistics(model)}
    buffers = {id(buffer) for buffer in model.buffers()}
    found = {
        name: LOCAL if id(tensor) in buffers - statistics else MEAN
        for name, tensor in named.items()
    }
    for pattern, sharing in (given or {}).items():
        if sharing not in SHARINGS:
            near = get_close_matches(str(sharing), SHARINGS, 1, 0.4)
            meant = f": did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                f"attach() got buffers={{{pattern!r}: {sharing!r}}}{meant or ':'} give"
                f" {', '.join(map(repr, SHARINGS[:-1]))} or {SHARINGS[-1]!r}"
            )
        matching = [name for name in named if _matches(name, pattern)]
        if not matching:
            raise UsageError(_unknown(model, pattern, list(named)))
        found |= dict.fromkeys(matching, sharing)
    return found


def asked_for(model: torch.nn.Module, spec: ModelSpec) -> list[str]:
    """The buffers that are averaged although they are not running statistics, because the user's
    code asks for it."""
    usual = sharing_of(model, dict(model.named_buffers()), None)
    return [
        each.name for each in spec.tensors if each.sharing == MEAN != usual.get(each.name, MEAN)
    ]


def quoted(names: list[str]) -> str:
    """The names of buffers in a message; at most five of them."""
    more = [] if len(names) <= 5 else [f"{len(names) - 5} more"]
    return listed([*map(repr, names[:5]), *more])


def _statistics(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The running statistics of the model's normalisation layers."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if isinstance(module, _NormBase) or name in _STATISTICS:
                yield buffer


def _matches(name: str, pattern: str) -> bool:
    """Whether a buffer has this name, in the whole model or in a module, or fits this pattern."""
    return name.endswith(f".{pattern}") or fnmatchcase(name, pattern)


def _unknown(model: torch.nn.Module, pattern: str, names: list[str]) -> str:
    what = f"attach() got buffers={{{pattern!r}: ...}}"
    if any(_matches(name, pattern) for name, _ in model.named_parameters()):
        return f"{what}, which is a parameter that the optimizer trains, and not a buffer"
    if any(name.startswith(f"{pattern}.") for name in names):
        near: list[str] = [f"{pattern}.*"]
    else:
        last = {name.rsplit(".", 1)[-1]: name for name in names}
        near = get_close_matches(pattern, [*names, *last], 1, 0.5)
    if near:
        return f"{what}, but the model has no such buffer: did you mean {near[0]!r}?"
    has = f"its buffers are {quoted(names)}" if names else "it has no buffers"
    return f"{what}, but the model has no such buffer: {has}"

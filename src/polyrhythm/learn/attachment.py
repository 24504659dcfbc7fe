"""The model and the optimizer as they were when they were attached.

Servers hold their own copy of both. *A change that the servers cannot learn of is refused with an
error, which names the tensor and says what to do instead.*
"""

from typing import Any

import torch

from polyrhythm.errors import ModelChanged
from polyrhythm.tensors.changed import BUFFER, PARAMETER, changed

_MAY_CHANGE = ("params", "lr", "initial_lr", "swa_lr")


class Attachment:
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._tensors = [
            (table, key, tensor)
            for module in model.modules()
            for table in (module._parameters, module._buffers)
            for key, tensor in table.items()
        ]
        self._model = model
        self._options = [
            [(key, value) for key, value in group.items() if key not in _MAY_CHANGE]
            for group in optimizer.param_groups
        ]
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._frozen = [
            (names.get(id(parameter), "?"), parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if not parameter.requires_grad
        ]

    def check_tensors(self) -> None:
        """Refuse a model in which an attached tensor was replaced: the new tensor would not be
        trained."""
        for table, key, tensor in self._tensors:
            if table.get(key) is not tensor:
                raise self._replaced(table, key, tensor)

    def _replaced(
        self, table: dict[str, Any], key: str, before: torch.Tensor | None
    ) -> ModelChanged:
        """The error for a replaced tensor of the model."""
        now = table.get(key)
        what, name = PARAMETER, key
        for prefix, module in self._model.named_modules():
            if table is module._parameters or table is module._buffers:
                what = PARAMETER if table is module._parameters else BUFFER
                name = f"{prefix}.{key}" if prefix else key
        if now is None or before is None:
            return changed("removed" if now is None else "replaced", what, name)
        return difference(what, name, now, before) or changed("replaced", what, name)

    def check_options(self, groups: list[dict[str, Any]]) -> None:
        """Refuse a changed option of an optimizer whose steps the servers make. Only learning rates
        are sent, so other changes would not reach the servers. `groups`: the present parameter groups of
        the optimizer."""
        for number, (options, group) in enumerate(zip(self._options, groups, strict=True)):
            for key, value in options:
                if group[key] is not value and group[key] != value:
                    where = f" of parameter group {number}" if len(groups) > 1 else ""
                    raise ModelChanged(
                        f"the optimizer's {key!r}{where} changed from {value} to {group[key]}: only the"
                        " learning rate may change while training (OneCycleLR: cycle_momentum=False),"
                        " or use --kind local"
                    )

    def check_frozen(self) -> None:
        """Refuse a parameter that was frozen when the model was attached and requires gradients
        now. The servers treat it as a buffer and would not optimize it."""
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise changed("thawed", PARAMETER, name)


def difference(
    what: str, name: str, now: torch.Tensor, before: torch.Tensor
) -> ModelChanged | None:
    """The error for a tensor that has another shape, dtype or device than before; None if these are
    equal."""
    if now.shape != before.shape:
        return changed("reshaped", what, name, now=list(now.shape), before=list(before.shape))
    if now.dtype != before.dtype:
        return changed("retyped", what, name, now=now.dtype, before=before.dtype)
    if now.device != before.device:
        return changed("moved", what, name, now=now.device, before=before.device)
    return None

"""The model and the optimizer as they were when they were attached.

Servers hold their own copy of both. *A change that the servers cannot learn of is refused with an
error.*
"""

from typing import Any

import torch

from polyrhythm.errors import UsageError

_MAY_CHANGE = ("params", "lr", "initial_lr", "swa_lr")


class Attachment:
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._tensors = [
            (table, key, tensor)
            for module in model.modules()
            for table in (module._parameters, module._buffers)
            for key, tensor in table.items()
        ]
        self._options = [
            [(key, value) for key, value in group.items() if key not in _MAY_CHANGE]
            for group in optimizer.param_groups
        ]
        self._frozen = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if not parameter.requires_grad
        ]

    def check_tensors(self) -> None:
        """Refuse a model in which an attached tensor was replaced: the new tensor would not be
        trained."""
        for table, key, tensor in self._tensors:
            if table.get(key) is not tensor:
                raise UsageError(
                    f"the model's {key!r} is not the tensor that was attached any more: something"
                    " replaced it (load_state_dict(assign=True)?); change it in place"
                )

    def check_options(self, groups: list[dict[str, Any]]) -> None:
        """Refuse a changed option of an optimizer whose steps the servers make. Only learning rates
        are sent, so other changes would not reach the servers. `groups`: its parameter groups
        now."""
        for options, group in zip(self._options, groups, strict=True):
            for key, value in options:
                if group[key] is not value and group[key] != value:
                    raise UsageError(
                        f"{key!r} changed from {value} to {group[key]}: only the learning rate may"
                        " change while training (OneCycleLR: cycle_momentum=False), or use --kind local"
                    )

    def check_frozen(self) -> None:
        """Refuse a parameter that was frozen when the model was attached and requires gradients
        now. The servers treat it as a buffer and would not optimize it."""
        thawed = sum(parameter.requires_grad for parameter in self._frozen)
        if thawed:
            raise UsageError(
                f"{thawed} parameter(s) require gradients that were frozen when the model was"
                " attached: freeze them only after attach(), or leave them frozen"
            )

"""The errors for a model that was changed after it was attached, so that the servers' copy no longer
fits: one sentence for each change, with advice of its own for a parameter and for a buffer."""

import torch

from polyrhythm.core.placement.slices import TensorPlace
from polyrhythm.errors import ModelChanged

PARAMETER, BUFFER = "parameter", "buffer"
_WHY = {
    "replaced": "is not the tensor that was attached: something put another one in its place",
    "removed": "is not in the model any more: something removed it after attach()",
    "reshaped": "has shape {now} now, and had {before} when it was attached",
    "retyped": "has dtype {now} now, and had {before} when it was attached",
    "moved": "is on the device {now} now, and was on {before} when it was attached",
    "relocated": "is not in the memory that attach() gave it: something assigned its .data, or called"
    " .to() or share_memory()",
    "thawed": "requires gradients now, and was frozen when the model was attached, so the servers do"
    " not train it",
}
_ADVICE = {
    "replaced": {
        PARAMETER: "load values with load_state_dict() without assign=True, or copy them with"
        " parameter.data.copy_()",
        BUFFER: "write into it, as in self.{key}.copy_(new) or self.{key} += 1, instead of assigning a"
        " new tensor to self.{key}",
    },
    "removed": dict.fromkeys((PARAMETER, BUFFER), "build the whole model before attach()"),
    "reshaped": {
        PARAMETER: "give the model its final shape before attach()",
        BUFFER: "give the buffer its largest size before attach(), and write into a part of it",
    },
    "retyped": dict.fromkeys(
        (PARAMETER, BUFFER), "convert the model before attach(), or compute under torch.autocast"
    ),
    "moved": dict.fromkeys(
        (PARAMETER, BUFFER), "leave the model on the device where attach() found it"
    ),
    "relocated": {
        PARAMETER: "change it in place, with parameter.data.copy_()",
        BUFFER: "change it in place, with self.{key}.copy_()",
    },
    "thawed": {
        PARAMETER: "attach the model before you freeze parameters, or leave them frozen",
        BUFFER: "",
    },
}


def changed(
    why: str, what: str, tensor: str, *, now: object = "", before: object = ""
) -> ModelChanged:
    """`why`: the change. `what`: parameter or buffer. `tensor`: its name in the model. `now` and
    `before`: the property that changed."""
    found = _WHY[why].format(now=now, before=before)
    advice = _ADVICE[why][what].format(key=tensor.rpartition(".")[2])
    return ModelChanged(f"the {what} {tensor!r} {found}; {advice}")


def left_home(tensor: torch.Tensor, place: TensorPlace, flat: torch.Tensor) -> ModelChanged:
    """The error for a tensor of the model that is not at its place in this flat buffer any more."""
    what = PARAMETER if isinstance(tensor, torch.nn.Parameter) else BUFFER
    name, shape = place.tensor.name, list(place.tensor.shape)
    if list(tensor.shape) != shape:
        return changed("reshaped", what, name, now=list(tensor.shape), before=shape)
    if tensor.dtype != flat.dtype:
        return changed("retyped", what, name, now=tensor.dtype, before=flat.dtype)
    if tensor.device != flat.device:
        return changed("moved", what, name, now=tensor.device, before=flat.device)
    return changed("relocated", what, name)

"""The errors for NaN and infinity in a contribution: one for a gradient, for a parameter and for a
buffer, each with advice of its own."""

from polyrhythm.errors import NotFinite

_FOUND = {
    "gradient": "the gradient of {tensor!r} holds NaN or infinity; nothing was sent: lower the"
    " learning rate or clip the gradients",
    "parameter": "the parameter {tensor!r} became NaN or infinite in this worker's local steps;"
    " nothing was sent: lower the learning rate, or take fewer --local-steps",
    "buffer": "the buffer {tensor!r} became NaN or infinite in this worker's last steps; nothing was"
    " sent: look at what writes to it in forward(), and at the inputs of that module",
}
_HINT = "; with --on-nan skip such a contribution is left out"


def not_finite(what: str, tensor: str) -> NotFinite:
    """`what`: gradient, parameter or buffer. `tensor`: its name in the model."""
    return NotFinite(_FOUND[what].format(tensor=tensor) + _HINT, what=what, tensor=tensor)

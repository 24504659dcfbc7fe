"""The kinds of contributions, as far as the machines must know: whether servers or workers make the
optimizer's steps.

`tensors/kinds.py` defines what a contribution of each kind contains, and how servers add and fold
it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KindTraits:
    steps_on_servers: bool
    """True: servers make the optimizer's steps, from gradients. False: workers make the steps, and
    send how the model has changed."""


GRADIENT = KindTraits(steps_on_servers=True)
LOCAL = KindTraits(steps_on_servers=False)
KINDS = {"gradient": GRADIENT, "local": LOCAL}
"""Each kind by its name in `--kind`."""


def steps_on_servers(kind: str) -> bool:
    """Whether servers make the optimizer's steps for this kind; False if the kind is not chosen
    yet."""
    return kind in KINDS and KINDS[kind].steps_on_servers


def steps_on_workers(kind: str) -> bool:
    """Whether workers make the optimizer's steps for this kind; False if the kind is not chosen
    yet."""
    return kind in KINDS and not KINDS[kind].steps_on_servers

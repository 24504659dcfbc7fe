"""The kinds of contributions, as far as decisions depend on them: where optimizer steps are made.

`tensors/kinds.py` has what a kind sends, and how servers add and fold it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KindTraits:
    steps_on_servers: bool
    """Servers make the optimizer's steps, from gradients. Otherwise workers make steps of their own,
    and send how these have changed the model."""


GRADIENT = KindTraits(steps_on_servers=True)
LOCAL = KindTraits(steps_on_servers=False)
KINDS = {"gradient": GRADIENT, "local": LOCAL}
"""By the name that `--kind` takes."""


def steps_on_servers(kind: str) -> bool:
    """Whether servers make the steps of this kind; False for a kind that is not chosen yet."""
    return kind in KINDS and KINDS[kind].steps_on_servers


def steps_on_workers(kind: str) -> bool:
    """Whether workers make steps of their own; False for a kind that is not chosen yet."""
    return kind in KINDS and not KINDS[kind].steps_on_servers

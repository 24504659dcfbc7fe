"""The kinds of contributions, as far as the machines must know: where the optimizer's steps are made,
and what a fold adds up.

`tensors/kinds.py` defines what a contribution of each kind contains, and how servers add and fold
it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KindTraits:
    steps_on_servers: bool = False
    """Whether servers make the optimizer's steps, from gradients."""
    steps_on_workers: bool = False
    """Whether workers make the optimizer's steps, and send how the model has changed."""
    keeps_rows: bool = False
    """Whether servers keep a row for each worker. A version is then the sum of the rows, and a
    contribution is the change of its worker's row. *A contribution is added when a fold names it,
    and a row that the fold does not name is deleted, so every server makes the same version.*"""


GRADIENT = KindTraits(steps_on_servers=True)
LOCAL = KindTraits(steps_on_workers=True)
STATISTICS = KindTraits(keeps_rows=True)
KINDS = {"gradient": GRADIENT, "local": LOCAL, "statistics": STATISTICS}
"""Each kind by its name in `--kind`."""
_UNKNOWN = KindTraits()


def steps_on_servers(kind: str) -> bool:
    """Whether servers make the optimizer's steps for this kind; False if the kind is not chosen
    yet."""
    return KINDS.get(kind, _UNKNOWN).steps_on_servers


def steps_on_workers(kind: str) -> bool:
    """Whether workers make the optimizer's steps for this kind; False if the kind is not chosen
    yet."""
    return KINDS.get(kind, _UNKNOWN).steps_on_workers


def keeps_rows(kind: str) -> bool:
    """Whether servers keep a row for each worker (kind statistics)."""
    return KINDS.get(kind, _UNKNOWN).keeps_rows

"""Detects values that the user's code writes into parameters although the servers make the steps.

With kind gradient, every version from the servers replaces the worker's parameters. A value that
the loop itself writes, such as a clipped weight, would be lost without a message. The check is a
sample, so that it costs little: it compares the digests of the parameters after the first versions,
and then ever less often. *A change that torch counts (`Tensor._version`) is checked whenever it
occurs; only a write through `.data` can remain unseen until the next sample.*
"""

from collections.abc import Callable

import torch
from xxhash import xxh3_64_intdigest

from polyrhythm.errors import ModelChanged
from polyrhythm.tensors.flat import FlatModel

_FIRST = 4
"""The number of versions that are checked at the beginning. After these, versions 8, 16, 32 and so
on are checked."""
_SUSPECTED = 2
"""The number of versions that are checked after torch has counted a change."""


class WrittenParameters:
    def __init__(self, flat: FlatModel, landed: Callable[[], int]) -> None:
        """`landed` returns how many slices of versions have arrived. If this number changes, the
        parameters may have changed too."""
        self._trained = flat.trained
        self._landed = landed
        self._number = 0
        self._counted = self._writes()
        self._suspected = 0
        self._before: tuple[int, dict[str, int]] | None = None
        """At the last version: how many slices had arrived, and the digest of every parameter."""
        self.version_came()

    def version_came(self) -> None:
        """The worker continues with the parameters of a new version."""
        number, self._number = self._number, self._number + 1
        due = number < _FIRST or number & (number - 1) == 0
        self._before = None
        if due or self._suspected:
            self._suspected = max(0, self._suspected - 1)
            self._before = self._landed(), self._digests()
        self._counted = self._writes()

    def check(self) -> None:
        """Raise ModelChanged if a parameter differs from the parameter in the version."""
        if self._writes() != self._counted:
            self._suspected = _SUSPECTED
        if self._before is None or self._before[0] != self._landed():
            return
        now = self._digests()
        for name, digest in self._before[1].items():
            if now[name] != digest:
                raise ModelChanged(
                    f"the training loop has changed the parameter {name!r} itself, which the next"
                    " version from the servers would undo: give the job --kind local, with which"
                    " such changes are contributed, or change the model before attach()"
                )

    def _writes(self) -> int:
        """How many times the parameters were changed in place, as torch counts it. Versions that
        arrive do not count."""
        return sum([tensor._version for _, tensor in self._trained])

    def _digests(self) -> dict[str, int]:
        """A digest of every parameter, by name."""
        return {name: _digest(tensor.detach()) for name, tensor in self._trained}


def _digest(tensor: torch.Tensor) -> int:
    """The digest of a parameter, whose elements fill its memory without gaps, in some order."""
    return xxh3_64_intdigest(
        tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).cpu().numpy().data
    )
